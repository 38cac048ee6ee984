"""docs/attacks.md defines each score that attacks print, as the code computes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from flwr_splitmix.attacks.scoring.intervals import Measure, curve_measures
from flwr_splitmix.attacks.scoring.scores import score_guess
from flwr_splitmix.attacks.scoring.text_scores import TextFloors, score_texts
from flwr_splitmix.attacks.texts.releasing import release_texts
from flwr_splitmix.attacks.texts.view import TextGuess
from flwr_splitmix.hiding import Hiding
from tests.attacks.guesses import floors, guess_of, truth_of
from tests.attacks.texts.tiny_decoder import BEGIN, PUBLIC, decode, texts, tiny_parts

PAGE = Path(__file__).parents[2] / "docs" / "attacks.md"
NEEDS_WEIGHTS = {"LPIPS"}
"""Metrics that are left out where torch's cache lacks a network."""


def _defined() -> dict[str, tuple[bool, bool]]:
    """Return, by metric, whether lower is stronger and whether the gate uses it, as on the page."""
    body = PAGE.read_text(encoding="utf-8").partition("### Metrics\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (`.*`) \| .* \| .* \| (lower|higher) \| (yes|no) \|", body, re.M)
    return {
        name: (side == "lower", gate == "yes")
        for names, side, gate in rows
        for name in re.findall("`(.+?)`", names)
    }


def _printed() -> Iterator[Measure]:
    """Yield measures of every kind: of each goal with images, of rates, and of texts."""
    images, order = torch.rand(4, 1, 32, 32), torch.tensor([[2, 0, 1, 3]] * 4)
    alone = truth_of(images, torch.arange(4)[:, None])
    classify = lambda pictures: torch.zeros(len(pictures), 2)  # noqa: E731
    yield from score_guess(
        "images", guess_of(images), alone, floors(), classifier=classify
    ).measures
    placed = truth_of(images, torch.arange(4)[:, None], order=order, owners=order % 2)
    scores = torch.tensor([0.9, 0.1, 0.8, 0.2])
    yield from score_guess("order", guess_of(order), placed, floors()).measures
    yield from score_guess("owners", guess_of(order), placed, floors()).measures
    yield from score_guess("labels", guess_of(torch.zeros(4).long()), alone, floors()).measures
    yield from score_guess("labels", guess_of(scores), alone, floors()).measures
    yield from score_guess("membership", guess_of(scores), alone, floors()).measures
    yield from curve_measures(np.arange(10_100.0), np.arange(10_100) < 100)
    parts, private = tiny_parts(0), texts(2, 2)
    guesses = [TextGuess(number, text, 1.0, "any") for number, text in enumerate(private)]
    origins = release_texts(parts, Hiding(), private).origins
    yield from score_texts(guesses, origins, TextFloors(parts, PUBLIC, BEGIN), decode).measures


def test_each_metric_that_attacks_print_is_defined_with_its_side_and_gate() -> None:
    printed = {each.metric: (each.lower_is_stronger, each.main) for each in _printed()}
    defined = _defined()
    assert {name: defined.get(name) for name in printed} == printed
    assert defined.keys() - printed.keys() <= NEEDS_WEIGHTS
