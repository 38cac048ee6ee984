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


def bleu(said: Sequence[str], right: Sequence[str]) -> float:
    """Return the corpus BLEU of answers with one reference each, 0 to 100.

    Source: Papineni et al. (2002), with Post's tokenisation (2018); sacrebleu.
    """
    with needed_for("BLEU"):
        from sacrebleu import corpus_bleu

    return float(corpus_bleu(list(said), [list(right)]).score)
