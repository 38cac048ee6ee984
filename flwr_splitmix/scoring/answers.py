"""Scores of generated answers against reference answers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from flwr_splitmix.extras import needed_for

_NUMBER = re.compile(r"####\s*\$?(-?[\d.,]*\d)")


def final_number(answer: str) -> str | None:
    """Return the number behind the first ####, without commas and zeros of no meaning.

    None if there is no such number.

    Source: Cobbe et al., "Training Verifiers to Solve Math Word Problems" (2021), GSM8K's answers.
    """
    match = _NUMBER.search(answer)
    if match is None:
        return None
    number = match[1].replace(",", "")
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    return number


def exact_match(said: str, right: str) -> bool:
    """Return whether an answer is right: its final number, else all of its words.

    If the right answer ends in #### and a number, only that number counts.
    """
    number = final_number(right)
    if number is not None:
        return final_number(said) == number
    return said.split() == right.split()


def rouge_l(said: Sequence[str], right: Sequence[str]) -> float:
    """Return the mean F-measure of the longest common subsequence of words, 0 to 1.

    Source: Lin, "ROUGE: A Package for Automatic Evaluation of Summaries" (2004); rouge-score.
    """
    with needed_for("ROUGE-L"):
        from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"])
    scores = [scorer.score(r, s)["rougeL"].fmeasure for s, r in zip(said, right, strict=True)]
    return float(sum(scores) / max(len(scores), 1))


class _NoSynonyms:
    """In WordNet's place: no word has a synonym."""

    def synsets(self, word: str) -> list[object]:
        return []


def meteor(said: Sequence[str], right: Sequence[str]) -> float:
    """Return the mean METEOR of texts with one reference each, 0 to 1, in its first two stages.

    Words match exactly, then by their stem (Porter's). The third stage, synonyms, is left out: it
    needs WordNet's data, which are no package's; a synonym counts as a wrong word here. alpha is
    0.9, beta 3, gamma 0.5; words are those between spaces, in lower case. Generated answers and
    what attacks read of texts are scored by this one variant.

    Source: Banerjee and Lavie, "METEOR" (2005); nltk.
    """
    with needed_for("METEOR"):
        from nltk.translate.meteor_score import single_meteor_score

    scores = [
        single_meteor_score(r.split(), s.split(), wordnet=_NoSynonyms())
        for s, r in zip(said, right, strict=True)
    ]
    return float(sum(scores) / max(len(scores), 1))


def bleu(said: Sequence[str], right: Sequence[str]) -> float:
    """Return the corpus BLEU of answers with one reference each, 0 to 100.

    Source: Papineni et al. (2002), with Post's tokenisation (2018); sacrebleu.
    """
    with needed_for("BLEU"):
        from sacrebleu import corpus_bleu

    return float(corpus_bleu(list(said), [list(right)]).score)
