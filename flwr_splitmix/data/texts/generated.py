"""Generated texts for runs without files: sentences with and without word-order errors, sums."""

from __future__ import annotations

from functools import lru_cache
from itertools import chain

import numpy as np

from flwr_splitmix.data.texts.rows import TextRows, TextSets, TextTask
from flwr_splitmix.seeding import derive_seed, frozen_generator

GENERATED = "generated"
"""Name of the source of generated texts."""

TRAIN, TEST, PUBLIC = 2000, 400, 400
"""Numbers of training rows, test rows and public texts."""

NOUNS = {
    "animals": ("dog", "cat", "horse", "bird", "goat", "rabbit"),
    "people": ("teacher", "farmer", "singer", "doctor", "child's friend", "neighbour"),
    "things": ("clock", "engine", "boat", "bell", "machine", "radio"),
}
ADJECTIVES = ("old", "young", "small", "tall", "quiet", "busy", "friendly", "strange")
PLACES = ("near", "behind", "beside", "in front of")
VERBS = ("sleep", "wait", "stop", "move", "start", "disappear")
ADVERBS = ("today", "in the morning", "at night", "again", "now", "every week")
NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry")
FRUITS = ("apples", "pears", "nuts", "plums", "eggs", "stones")
NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
)  # fmt: skip


def generated_sets(task: TextTask, *, seed: int = 0) -> TextSets:
    """Make a training and a test set without common rows.

    "classification": sentences such as "the old dog near the boats sleeps now .", right (1) or
    wrong (0): with two neighbouring words swapped, up to the verb. The natural partition is the
    kind of the first noun (NOUNS). "generation": small sums in words, answered by a sentence and,
    as in GSM8K, a last line of #### and the number. The natural partition is the kind of sum.

    Parameters
    ----------
    task
        Kind of the rows.
    seed
        Seed of the draws.
    """
    make = _sentence if task == "classification" else _sum
    rng = frozen_generator(derive_seed(seed, f"generated {task}"))
    rows_of: dict[str, tuple[str, str, int]] = {}
    while len(rows_of) < TRAIN + TEST:
        text, answer, label, group = make(rng)
        rows_of.setdefault(text, (answer, group, label))
    texts = tuple(rows_of)
    answers, groups, labels = zip(*rows_of.values(), strict=True)
    is_generation = task == "generation"
    rows = TextRows(
        texts,
        np.zeros(0, np.int64) if is_generation else np.array(labels, np.int64),
        answers if is_generation else (),
        groups,
    )
    train, test = (rows.subset(part) for part in (np.arange(TRAIN), np.arange(TRAIN, TRAIN + TEST)))
    return TextSets(train, test, () if is_generation else ("wrong", "right"), GENERATED)


@lru_cache
def generated_public(task: TextTask, *, seed: int = 0) -> tuple[str, ...]:
    """Make public texts of the same words: right sentences, or stories with arbitrary sums."""
    rng = frozen_generator(derive_seed(seed, f"generated public {task}"))
    texts: dict[str, None] = {}
    while len(texts) < PUBLIC:
        if task == "classification":
            text, _, label, _ = _sentence(rng)
            if not label:
                continue
        else:
            text = _story(rng)
        texts[text] = None
    return tuple(texts)


def _sentence(rng: np.random.RandomState) -> tuple[str, str, int, str]:
    kind = _one_of(rng, tuple(NOUNS))
    every = tuple(chain.from_iterable(NOUNS.values()))
    many, other_many, right = (bool(rng.randint(2)) for _ in range(3))
    subject = _number(_one_of(rng, NOUNS[kind]), many)
    other = _number(_one_of(rng, every), other_many)
    verb = _number(_one_of(rng, VERBS), not many)
    place, adjective, adverb = (_one_of(rng, words) for words in (PLACES, ADJECTIVES, ADVERBS))
    words = f"the {adjective} {subject} {place} the {other} {verb}".split()
    if not right:
        first = rng.randint(len(words) - 1)
        words[first : first + 2] = words[first + 1], words[first]
    return f"{' '.join(words)} {adverb} .", "", int(right), kind


def _number(word: str, ends_in_s: bool) -> str:
    """Return a plural noun or a singular verb if it ends in s, else the word itself."""
    return f"{word}s" if ends_in_s else word


def _sum(rng: np.random.RandomState) -> tuple[str, str, int, str]:
    a, b = rng.randint(2, 10, size=2)
    name, fruit = _one_of(rng, NAMES), _one_of(rng, FRUITS)
    if rng.randint(2):
        kind, result, sign = "finding", a + b, "plus"
        text = f"{name} has {NUMBERS[a]} {fruit} and finds {NUMBERS[b]} more ."
    else:
        a, b = max(a, b), min(a, b)
        kind, result, sign = "losing", a - b, "minus"
        text = f"{name} has {NUMBERS[a]} {fruit} and loses {NUMBERS[b]} of them ."
    text += f" How many {fruit} does {name} have now ?"
    sentence = f"{NUMBERS[a]} {sign} {NUMBERS[b]} is {NUMBERS[result]} ."
    return text, f"{sentence}\n#### {result}", 0, kind


def _story(rng: np.random.RandomState) -> str:
    name, other = _one_of(rng, NAMES), _one_of(rng, NAMES)
    fruit, number = _one_of(rng, FRUITS), _one_of(rng, NUMBERS)
    sign = ("plus", "minus")[rng.randint(2)]
    return (
        f"Question: {name} has {number} {fruit} . How many {fruit} does {other} have now ?\n"
        f"Answer: {_one_of(rng, NUMBERS)} {sign} {_one_of(rng, NUMBERS)} is "
        f"{_one_of(rng, NUMBERS)} .\n"
        f"#### {rng.randint(19)}"
    )


def _one_of(rng: np.random.RandomState, words: tuple[str, ...]) -> str:
    return words[rng.randint(len(words))]
