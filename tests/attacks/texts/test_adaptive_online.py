"""What a server sees of calibration, and the attack that learns from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flwr_splitmix.attacks.fitted import Budget, NotApplicable
from flwr_splitmix.attacks.texts import adaptive_online
from flwr_splitmix.attacks.texts.adaptive_online import AdaptiveOnline, Restorer
from flwr_splitmix.attacks.texts.public_releases import PublicReleases, load_public, save_public
from flwr_splitmix.attacks.texts.releasing import release_texts
from flwr_splitmix.attacks.texts.view import TextKnowledge, TextView
from flwr_splitmix.attacks.texts.vocabulary import ReaderAttack
from flwr_splitmix.clients import TextSet, UShapeClient
from flwr_splitmix.events import Exchange
from flwr_splitmix.hiding import Hiding, SnD
from flwr_splitmix.segments.language import LanguageParts
from flwr_splitmix.strategies import USplitSL
from tests.attacks.texts.tiny_decoder import (
    BEGIN,
    LENGTH,
    PUBLIC,
    WORDS,
    guard,
    score_of,
    seeded,
    texts,
    tiny_parts,
)

OWN = texts(60, 3)


def hiding_of(kind: str) -> Hiding:
    if kind == "SnD":
        return SnD(TextSet(OWN, OWN), vocab_size=WORDS, eta=400.0, calibration_epochs=2)
    return guard(
        OWN,
        sampler="convex",
        support_scale=0.5,
        calibration_epochs=2,
        secret_tokens=3 if kind == "secret" else 0,
    )


def calibrated(parts: LanguageParts, hiding: Hiding, **limits: int) -> PublicReleases:
    """Run a round of a real client and server, watched."""
    head, trunk, tail = parts.all_here()
    watching = PublicReleases(**limits)
    private = texts(12, 9)
    strategy = USplitSL(trunk, device="cpu", steps_per_round=1, observers=[watching])
    client = UShapeClient(
        head,
        tail,
        TextSet(private, private),
        hiding=hiding,
        batch_size=6,
        device="cpu",
        repeatable_secrets=True,
    )
    strategy.fit([client], 1)
    return watching


@pytest.mark.parametrize(("kind", "messages"), [("plain", 3), ("secret", 3), ("SnD", 1)])
def test_what_is_seen_of_calibration_is_public_texts_mixed_and_plain(
    kind: str, messages: int, tmp_path: Path
) -> None:
    parts = tiny_parts(0)
    public_releases = list(calibrated(parts, hiding_of(kind)).releases)
    refined = 6 if kind == "SnD" else 0  # a batch beside the one training step
    assert len(public_releases) == 2 * len(OWN) + refined
    length = LENGTH + (3 if kind == "secret" else 0)
    assert {tuple(release.messages.shape) for release in public_releases} == {
        (messages, length, 48)
    }
    assert {tuple(release.states.shape) for release in public_releases} == {(length, 48)}
    if kind != "secret":
        assert parts.head is not None
        expected_states = {tuple(parts.head(ids[None])[0, 1:3].flatten().tolist()) for ids in OWN}
        assert {
            tuple(release.states[1:3].flatten().tolist()) for release in public_releases
        } == expected_states
    save_public(tmp_path / "public", public_releases)
    for release, loaded in zip(public_releases, load_public(tmp_path / "public"), strict=True):
        assert torch.equal(release.messages, loaded.messages)
        assert torch.equal(release.states, loaded.states)
    assert load_public(tmp_path / "none") == []


def test_the_newest_are_kept() -> None:
    every = list(calibrated(tiny_parts(0), hiding_of("plain")).releases)
    some = list(calibrated(tiny_parts(0), hiding_of("plain"), limit=7).releases)
    assert len(some) == 7
    for one, other in zip(some, every[-7:], strict=True):
        assert torch.equal(one.states, other.states)


def test_who_does_not_calibrate_shows_nothing() -> None:
    assert not calibrated(tiny_parts(0), Hiding()).releases
    view = TextView("server", [], TextKnowledge("USplitSL", {}, tiny_parts(0), begin=BEGIN))
    with pytest.raises(NotApplicable, match="no public texts as clients that calibrate send them"):
        AdaptiveOnline().fit(view, PUBLIC, Budget("smoke"))


@pytest.mark.parametrize("kind", ["plain", "SnD"])
def test_it_learns_from_calibration_to_read_private_texts(kind: str) -> None:
    parts = tiny_parts(0)
    public_releases = calibrated(parts, hiding_of(kind)).releases
    private = texts(4, 2)
    with seeded():
        released = release_texts(parts, hiding_of(kind), private)

    def accuracy(public: Any) -> float:
        knowledge = TextKnowledge(kind, {}, parts, begin=BEGIN)
        view = TextView("server", released.releases, knowledge, public)
        attack = AdaptiveOnline()
        attack.fit(view, PUBLIC, Budget("cpu"))
        guesses = attack.run(view)
        assert {guess.way for guess in guesses} <= {"joint", "cancelled"}
        return score_of(guesses, parts, released).measure("token accuracy").value

    assert accuracy(public_releases) > 0.6
    # It is calibration that teaches it: messages beside others' states teach nothing.
    wrong = [
        type(one)(one.messages, other.states)
        for one, other in zip(
            public_releases, [*list(public_releases)[17:], *list(public_releases)[:17]], strict=True
        )
    ]
    assert accuracy(wrong) < 0.3


def test_public_texts_that_are_none_are_left_out() -> None:
    def watched(*groups: object) -> int:
        watching = PublicReleases()
        watching.on_exchange(Exchange(1, 0, "encode_public", "up", {"public": groups}, 0))
        return len(watching.releases)

    def group(rows: int = 2, **changed: object) -> dict[str, object]:
        states, mask = torch.zeros(rows, 4, 5), torch.ones(rows, 4, dtype=torch.uint8)
        return {"messages": [states, states], "mask": mask, **changed}

    assert watched(group(), group()) == 2
    empty = torch.zeros(2, 4, dtype=torch.uint8)
    odd = [
        None, "text", {}, group(messages="text"), group(messages=[1]), group(messages=[empty]),
        group(mask=None), group(mask=empty), group(mask=torch.ones(2, 3)), group(rows=3),
    ]  # fmt: skip
    for other in odd:
        assert watched(other, group()) == watched(group(), other) == 0, other
    nothing = PublicReleases()
    nothing.on_exchange(Exchange(1, 0, "encode_public", "up", {"public": 3}, 0))
    assert not nothing.releases


def test_the_networks_share_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """None has a part of the whole limit, as the head's fitting takes time before."""
    limits: list[float] = []

    def train(pairs: Any, budget: Budget, **more: Any) -> Restorer:
        assert budget.seconds is not None
        limits.append(budget.seconds)
        return Restorer(pairs[0][0].shape[1], pairs[0][1].shape[1])

    def fit_head(attack: AdaptiveOnline, view: Any, public: Any) -> None:
        object.__setattr__(attack.budget, "_began", attack.budget._began - 600)

    monkeypatch.setattr(adaptive_online, "train_restorer", train)
    monkeypatch.setattr(ReaderAttack, "learn", fit_head)
    parts, hiding = tiny_parts(0), hiding_of("plain")
    with seeded():
        released = release_texts(parts, hiding, texts(2, 2))
    knowledge = TextKnowledge("plain", {}, parts, begin=BEGIN)
    view = TextView("server", released.releases, knowledge, calibrated(parts, hiding).releases)
    AdaptiveOnline().fit(view, PUBLIC, Budget("smoke", seconds=1000))
    assert limits[0] == pytest.approx(200, abs=10)
    assert limits[1] == pytest.approx(400, abs=10)  # the first one took no time here
