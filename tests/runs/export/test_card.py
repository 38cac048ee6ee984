"""What a model card says of each method."""

from __future__ import annotations

from typing import Any

import pytest

from flwr_splitmix.apps.kept.export_facts import parts_of
from flwr_splitmix.methods import METHODS, Method, plain
from flwr_splitmix.runs.export.card import model_card

FACTS: dict[str, Any] = {
    "kind": "language", "model": "small", "client": None, "run": "r", "round": 1, "rounds": 1,
    "task": "generation", "prompt": "", "accuracy": None, "dataset": "d", "partition": "iid",
    "clients": 2, "parts": 2, "seed": 0, "versions": {}, "delta": 1e-5,
    "averaged": True, "epsilon": None, "epsilon_covers": None,
}  # fmt: skip


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_card_has_no_markdown_of_the_docs_and_denies_no_noise(method: Method) -> None:
    """No "have an docs/epsilon of flwr-splitmix"; nor is MixGuard said to add no noise."""
    card = model_card({**FACTS, "strategy": method.name})
    for value in vars(method).values():
        if isinstance(value, str):
            assert not set("[]*`") & set(plain(value))
            assert "docs/epsilon" not in plain(value)
    for field in (method.at_cut, method.up, method.protects):
        assert f": {plain(field)}\n" in card
    assert "Epsilon: none is accounted for" in card


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_what_an_export_leaves_out_is_said(method: Method) -> None:
    card = model_card({**FACTS, "strategy": method.name})
    assert method.left_out in card.split("## Training")[0]
    assert ("calibrator is left out" in card) == (method.name == "MixGuard")


def test_links_to_pages_stay_and_others_are_words() -> None:
    assert plain("see [privacy.md](privacy.md#a), *k* of an [epsilon](language.md#b)") == (
        "see docs/privacy.md of flwr-splitmix, k of an epsilon"
    )


def test_averaging_is_outside_the_epsilon_of_uploads_only() -> None:
    """Heads and tails that are averaged are what DP-SGD's epsilon is about."""
    spent = {**FACTS, "epsilon": 2.0, "epsilon_covers": "this"}
    assert "It covers this.\n" in model_card({**spent, "strategy": "DPSGDSL"})


@pytest.mark.parametrize("kind", ["vision", "language"])
@pytest.mark.parametrize(("shape", "whose"), [("L", "lower segment"), ("U", "head and tail")])
def test_segments_that_were_averaged_are_among_what_the_server_got(
    kind: str, shape: str, whose: str
) -> None:
    """The card does not name only what crosses the cut."""
    pixels = {"mean": [0.5], "std": [0.5], "channels": 1, "stored_size": [8, 8], "image_size": 8}
    images = {"preprocessing": pixels, "timm_lacks": "none", "classes": ["a", "b"]}
    for method in (method for method in METHODS if method.shape == shape):
        facts = {**FACTS, **images, "kind": kind, "strategy": method.names[-1]}
        sentence = f"as well, to be averaged: the trained weights of each client's {whose}\n"
        assert sentence in model_card(facts)
        assert "averaged: " not in model_card({**facts, "averaged": False})


@pytest.mark.parametrize(
    ("trained", "phrase"), [(6, "6 clients, s"), (3, "6 clients, of which 3 t")]
)
def test_data_are_said_to_be_divided_among_those_they_were_divided_among(
    trained: int, phrase: str
) -> None:
    """Clients that have no data do not count."""
    card = model_card({**FACTS, "strategy": "USplitSL", "parts": 6, "clients": trained})
    assert f"iid among {phrase}" in card


@pytest.mark.parametrize(
    ("partitions", "parts"), [({"0": 6, "2": 6}, 6), ({"0": 6, "2": 0}, 6), ({}, 2), ({"0": 0}, 2)]
)
def test_the_division_is_what_nodes_said(partitions: dict[str, int], parts: int) -> None:
    assert parts_of({"trained": {"0": 1, "2": 1}, "partitions": partitions}) == parts
    assert parts_of({"trained": {"0": 1, "2": 1}, "partitions": {"0": 5, "2": 6}}) == 2
