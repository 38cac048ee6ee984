"""Scores of generated answers against reference answers."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from flwr_splitmix.extras import needed_for

_NUMBER = re.compile(r"####\s*(-?\$?-?)([\d.,]*\d)")


def final_number(answer: str) -> str | None:
    """Return the first number that follows ####; None if there is none.

    A number has one form: without commas and a dollar sign, without zeros before it or at the end
    of its decimals, and with a digit before the point.

    Source: Cobbe et al., "Training Verifiers to Solve Math Word Problems" (2021), the answer
    format of GSM8K.
    """
    match = _NUMBER.search(answer)
    if match is None:
        return None
    whole, _, decimals = match[2].replace(",", "").partition(".")
    number = whole.lstrip("0") or "0"
    if decimals := decimals.rstrip("0").rstrip("."):
        number += f".{decimals}"
    return f"-{number}" if "-" in match[1] and number != "0" else number


def exact_match(answer: str, right: str) -> bool:
    """Return whether an answer is right.

    If the right answer contains #### and a number, only that number counts; else all words must
    be the same.
    """
    number = final_number(right)
    if number is not None:
        return final_number(answer) == number
    return answer.split() == right.split()


class _Words:
    """rouge-score's splitting into words, for letters of any alphabet: its own drops others."""

    def tokenize(self, text: str) -> list[str]:
        whole = unicodedata.normalize("NFC", text.lower())
        return "".join(char if _of_word(char) else " " for char in whole).split()


def _of_word(char: str) -> bool:
    # Marks are vowels of some alphabets and accents of others.
    return char.isalnum() or unicodedata.category(char).startswith("M")


def rouge_l(answers: Sequence[str], right: Sequence[str]) -> float:
    """Return the mean F-measure of the longest common subsequence of words, 0 to 1.

    A word is a run of letters, digits and marks of any alphabet, in lower case; of a-z and 0-9
    these are rouge-score's own words. Where words are written without spaces, a sentence is one.

    Source: Lin, "ROUGE: A Package for Automatic Evaluation of Summaries" (2004); rouge-score.
    """
    with needed_for("ROUGE-L"):
        from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"], tokenizer=_Words())
    scores = [scorer.score(r, s)["rougeL"].fmeasure for s, r in zip(answers, right, strict=True)]
    return float(sum(scores) / max(len(scores), 1))


class _NoSynonyms:
    """A stand-in for WordNet without synonyms."""

    def synsets(self, word: str) -> list[object]:
        return []


def meteor(answers: Sequence[str], right: Sequence[str]) -> float:
    """Return the mean METEOR of texts with one reference each, 0 to 1, without synonyms.

    Words match exactly, else by their Porter stem. The third stage, synonyms, is left out, because
    it needs WordNet's data, which no package provides; a synonym counts as a wrong word. alpha is
    0.9, beta 3, gamma 0.5; words are separated by white space, in lower case. Generated answers
    and texts read by attacks are scored with this same variant.

    Source: Banerjee and Lavie, "METEOR" (2005); nltk.
    """
    with needed_for("METEOR"):
        from nltk.translate.meteor_score import single_meteor_score

    scores = [
        single_meteor_score(r.split(), s.split(), wordnet=_NoSynonyms())
        for s, r in zip(answers, right, strict=True)
    ]
    return float(sum(scores) / max(len(scores), 1))


def bleu(answers: Sequence[str], right: Sequence[str]) -> float:
    """Return the corpus BLEU of answers with one reference each, 0 to 100.

    Source: Papineni et al. (2002), with Post's tokenisation (2018); sacrebleu.
    """
    with needed_for("BLEU"):
        from sacrebleu import corpus_bleu

    return float(corpus_bleu(list(answers), [list(right)]).score)
