"""Attacks as they are run: what is checked, what is timed, and what their results say."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from flwr_splitmix.attacks.base import Attack, Goal, Guess, View
from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.results import keep, kept_results
from flwr_splitmix.attacks.running.images import image_case, run_on_images
from flwr_splitmix.attacks.running.request import AttackRequest
from flwr_splitmix.attacks.running.texts import run_on_texts
from flwr_splitmix.attacks.texts.checked_guesses import checked_guesses
from flwr_splitmix.attacks.texts.releasing import release_texts
from flwr_splitmix.attacks.texts.text_case import TextCase
from flwr_splitmix.attacks.texts.view import (
    TextAttack,
    TextGuess,
    TextReading,
    TextRelease,
    TextView,
)
from flwr_splitmix.hiding import Hiding
from tests.attacks.texts.tiny_decoder import PUBLIC, WORDS, decode, texts, tiny_parts, view_of
from tests.attacks.victims import attacked

BUSY = 0.5
"""Seconds of processor time that scores take here at least."""

PRIVATE = texts(3, 2)
Damage = Callable[[list[TextGuess]], Any]


class First(TextAttack):
    """Guesses the first word of the vocabulary everywhere."""

    name = "first-word"

    def readings(self, release: TextRelease, view: TextView) -> Iterable[TextReading]:
        yield torch.zeros(release.messages.shape[1], dtype=torch.int64), 0.0, "first"


class Grey(Attack):
    """Guesses grey images, until its time is over."""

    name = "grey"
    goal: ClassVar[Goal] = "images"
    needs = frozenset({"smashed data"})

    def run(self, view: View) -> Guess:
        where = [(i, 0) for i, _ in enumerate(view.releases)]
        for _ in self.budget.steps(len(where)):
            pass
        values = torch.full((len(where), *view.knowledge.image_shape), 0.5)
        return Guess(values, torch.ones(len(where)), where)


@cache
def compute(key: str) -> None:
    """Spend `BUSY` seconds of this thread's processor time, the first time."""
    began = time.thread_time()
    while time.thread_time() - began < BUSY:
        np.sort(np.arange(10_000.0))


def text_case() -> TextCase:
    parts = tiny_parts(0)
    released = release_texts(parts, Hiding(), PRIVATE)
    return TextCase(view_of(parts, released.releases), released.origins, [True, False, False])


def test_scores_are_none_of_the_time_after_which_an_attack_was_stopped() -> None:
    """`splitmix attack run` counted those of texts in."""
    compute.cache_clear()

    def slow(ids: Sequence[int]) -> str:
        compute("texts")
        return decode(ids)

    def classify(images: Tensor) -> Tensor:
        compute("images")
        return torch.zeros(len(images), 10)

    request = AttackRequest(attack="any", adversary="server", victims=3)
    results = [
        run_on_texts(
            First, text_case()._replace(trained=[True] * 3), PUBLIC, Budget("smoke", seconds=0),
            request, slow,
        ),
        run_on_images(
            Grey, image_case(attacked(), Grey, request), attacked().public(9),
            Budget("smoke", seconds=0), request, classifier=classify,
        ),
    ]  # fmt: skip
    for result in results:
        assert result.stopped_after is not None
        assert result.stopped_after < BUSY
    assert compute.cache_info().misses == 2


def test_a_result_says_what_was_asked_for_and_reads_back_as_it_was_kept(tmp_path: Path) -> None:
    request = AttackRequest(
        attack="grey", adversary="server", victims=8, assumed=("upper", "lower"), repeats=2, seed=3
    )
    case = image_case(attacked(), Grey, request)
    result = run_on_images(Grey, case, attacked().public(9), Budget("smoke"), request)
    assert (result.method, result.attack, result.adversary) == ("PSL", "grey", "server")
    assert (result.victims, result.repeats, result.seed, result.scale) == (8, 2, 3, "smoke")
    assert result.assumed == ["lower", "upper"]
    assert {row["trained"] for row in result.rows} == {True, False}
    keep(tmp_path, result)
    (read,) = kept_results(tmp_path)
    assert read.model_dump() == result.model_dump()
    assert read.pictures is not None


def test_texts_of_a_result_say_which_were_trained_on() -> None:
    request = AttackRequest(attack="first-word", adversary="server", victims=3, client=1)
    result = run_on_texts(First, text_case(), PUBLIC, Budget("smoke"), request, decode)
    assert [row["trained"] for row in result.rows] == [True, False, False]
    assert (result.client, result.stopped_after, result.pictures) == (1, None, None)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda g: None, "First.run returns None; expected a list of TextGuess"),
        (lambda g: [g[0].ids], r"returns a tensor \(16,\) as guess 0; expected a TextGuess\(rel"),
        (lambda g: [replace(g[0], release=3)], "release 3, but the view has 3 releases, counted"),
        (lambda g: [replace(g[0], release=-1)], "release -1, but the view has 3 releases"),
        (lambda g: [replace(g[0], ids=[1] * 16)], "ids a list of an int.*; expected an int64"),
        (
            lambda g: [g[0], replace(g[1], ids=g[1].ids[1:])],
            r"\(number 1\) with ids \(15,\) of torch.int64; expected an int64 tensor \(16,\), a",
        ),
        (lambda g: [replace(g[0], ids=g[0].ids.float())], r"ids \(16,\) of torch.float32; exp"),
        (lambda g: [replace(g[0], ids=g[0].ids + WORDS)], "ids from 300 to 300; tokens are from 0"),
        (lambda g: [replace(g[0], confidence=float("nan"))], "a confidence of NaN; it must be a"),
    ],
)
def test_what_is_no_guess_at_texts_is_named(damage: Damage, message: str) -> None:
    """Unchecked, a guess at a wrong release would count as none."""
    attack, view = First(), text_case().view
    attack.fit(view, PUBLIC, Budget("smoke"))
    guesses = attack.run(view)
    assert checked_guesses(attack, guesses, view) == guesses
    with pytest.raises((TypeError, ValueError), match=message):
        checked_guesses(attack, damage(guesses), view)
