"""Attacks that undo MixGuard and read its words: by gradients, by separation, by simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flwr_splitmix.attacks.catalogue import text_attacks
from flwr_splitmix.attacks.fitted import Budget, NotApplicable
from flwr_splitmix.attacks.texts.adaptive import Adaptive, examples_of, network_input
from flwr_splitmix.attacks.texts.read_ratio import ReadRatio
from flwr_splitmix.attacks.texts.read_sources import ReadSources
from flwr_splitmix.attacks.texts.releasing import Released, release_texts
from flwr_splitmix.attacks.texts.view import TextRelease, TextView
from flwr_splitmix.hiding import DPForward, Hiding
from tests.attacks.texts.tiny_decoder import (
    PUBLIC,
    attacked,
    guard,
    score_of,
    seeded,
    texts,
    tiny_parts,
    view_of,
)

PRIVATE = texts(6, 2)  # with fewer nothing beats a floor


@pytest.mark.parametrize("k", [3, 10])
def test_gradients_of_one_text_tell_its_words(k: int) -> None:
    parts = tiny_parts(1)
    hiding = guard(k=k, sampler="rotated")  # of the others each sum shows much of the text
    with seeded():
        released = release_texts(parts, hiding, PRIVATE, gradients=True)
    scored = attacked(ReadRatio(), parts, released)
    assert scored.measure("token accuracy").value > 0.98
    noise = [replace(r, gradients=torch.randn_like(r.messages)) for r in released.releases]
    other = attacked(ReadRatio(), parts, Released(noise, released.origins))
    assert other.measure("token accuracy").value < 0.9


def test_a_gradient_of_nothing_makes_no_guess() -> None:
    parts = tiny_parts(0)
    nothing = torch.zeros(3, 4, 48)
    view = view_of(parts, [TextRelease(torch.randn(3, 4, 48), nothing, nothing)])
    attack = ReadRatio()
    attack.fit(view, None)
    assert attack.run(view) == []


def test_separated_components_are_read() -> None:
    parts = tiny_parts(0)
    with seeded():
        released = release_texts(parts, guard(k=3), PRIVATE)
    scored = attacked(ReadSources(), parts, released)
    assert scored.measure("token accuracy").beats_floor
    noise = [TextRelease(torch.randn_like(r.messages)) for r in released.releases]
    sham = attacked(ReadSources(), parts, Released(noise, released.origins))
    assert not sham.measure("token accuracy").beats_floor


def adaptive(
    released: Released, make: Callable[[Sequence[Tensor]], Hiding]
) -> tuple[Adaptive, TextView]:
    view = view_of(tiny_parts(0), released.releases)
    knowledge = replace(view.knowledge, client=make)
    view = replace(view, knowledge=knowledge)
    attack = Adaptive()
    attack.fit(view, PUBLIC[:70], Budget("paper", iterations=90))
    return attack, view


def test_the_adaptive_attack_learns_from_simulated_secrets() -> None:
    parts = tiny_parts(0)
    options: dict[str, Any] = {"k": 3, "sampler": "convex"}
    with seeded():
        released = release_texts(parts, guard(**options), PRIVATE)
    attack, view = adaptive(released, lambda public: guard(public, **options))
    assert attack.inverters.keys() == {"joint", "cancelled"}
    assert score_of(attack.run(view), parts, released).measure("token accuracy").beats_floor
    noise = [TextRelease(torch.randn_like(r.messages)) for r in released.releases]
    sham = attack.run(replace(view, releases=noise))
    assert not score_of(sham, parts, released).measure("token accuracy").beats_floor


def test_of_one_message_it_learns_to_read_through_noise() -> None:
    parts = tiny_parts(0)
    released = release_texts(parts, DPForward(epsilon=1e4, clip_norm=10.0), PRIVATE)
    attack, view = adaptive(released, lambda public: DPForward(epsilon=1e4, clip_norm=10.0))
    assert attack.inverters.keys() == {"joint"}
    assert score_of(attack.run(view), parts, released).measure("token accuracy").beats_floor


def test_secret_tokens_are_no_words_of_an_example() -> None:
    parts = tiny_parts(0)
    with seeded():
        released = release_texts(parts, guard(secret_tokens=4), PRIVATE[:1])
    ((states, words),) = examples_of(released, "joint")
    assert states.shape == (len(PRIVATE[0]) + 4, 3 * 48)
    assert words[words >= 0].tolist() == PRIVATE[0].tolist()
    assert int((words == -1).sum()) == 4


def test_what_is_seen_of_messages() -> None:
    messages = torch.arange(12.0).view(2, 3, 2)
    assert network_input(messages, "joint")[1].tolist() == [2.0, 3.0, 8.0, 9.0]
    assert network_input(messages, "cancelled")[1].tolist() == [10.0, 12.0]


def test_without_the_method_or_gradients_there_is_no_such_attack() -> None:
    parts = tiny_parts(0)
    plain = view_of(parts, release_texts(parts, Hiding(), PRIVATE[:1]).releases)
    with pytest.raises(NotApplicable, match="no client half of the method"):
        Adaptive().fit(plain, PUBLIC)
    with pytest.raises(NotApplicable, match="no gradients and one message of a text only"):
        ReadRatio().fit(plain, None)
    with pytest.raises(NotApplicable, match="one message of a text only"):
        ReadSources().fit(plain, None)
    assert {"adaptive", "gradient-ratio", "blind-source"} <= text_attacks().keys()
