"""Laws 1, 5, 6 and 7 over the strategies of the U shape."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flwr_splitmix.clients import MixGuardClient, UShapeClient
from flwr_splitmix.clients.ushape.batch_in_flight import UShapeBatchInFlight
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import Hiding, MixGuardOptions, SentBatch
from flwr_splitmix.strategies import USHAPE_STRATEGIES, MixGuard, UShapeStrategy, USplitSL
from flwr_splitmix.testing.laws import (
    TextToy,
    check_graphs_are_freed,
    check_resume_equals_uninterrupted,
    check_same_tensors,
    check_ushape_equals_whole,
    check_ushape_wire,
)
from flwr_splitmix.testing.toy_texts import text_toy

pytestmark = pytest.mark.usefixtures("frozen_objects")

EXACT = MixGuardOptions(secret_tokens=2, max_length=32, calibration_epochs=0, perturbation=None)
"""MixGuard without what is no part of a graph."""

NAMES = sorted(USHAPE_STRATEGIES)


@pytest.mark.parametrize("task", ["classification", "generation"])
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("name", ["USplitSL", "NaiveMixSL", "MixGuard"])
def test_split_equals_whole(name: str, clients: int, task: Any) -> None:
    toy = text_toy(name, clients=clients, task=task, options=EXACT)
    check_ushape_equals_whole(USHAPE_STRATEGIES[name], toy)


@pytest.mark.parametrize(
    "options", [{"secret_per_sample": True}, {"m": 5}, {"k": 2, "m": 2}, {"pad_to": 16}], ids=str
)
def test_split_equals_whole_for_every_kind_of_secret(options: dict[str, Any]) -> None:
    toy = text_toy("MixGuard", options=replace(EXACT, **options))
    check_ushape_equals_whole(MixGuard, toy)


@pytest.mark.parametrize(
    "options", [{}, {"stop_in": 4, "lose_newest": True, "checkpoint_every": 2}], ids=str
)
@pytest.mark.parametrize("name", NAMES)
def test_resume_equals_uninterrupted(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    toy = text_toy(name, clients=2, tests=6)
    check_resume_equals_uninterrupted(USHAPE_STRATEGIES[name], tmp_path, toy, **options)


@pytest.mark.parametrize("task", ["classification", "generation"])
@pytest.mark.parametrize("name", NAMES)
def test_the_wire_carries_hidden_states_only(name: str, task: Any) -> None:
    check_ushape_wire(USHAPE_STRATEGIES[name], text_toy(name, task=task, tests=6))


@pytest.mark.parametrize("name", NAMES)
def test_graphs_are_freed(name: str) -> None:
    # Every batch of one length: tensors are counted by their number, whatever their shape.
    check_graphs_are_freed(USHAPE_STRATEGIES[name], text_toy(name, clients=1), many=120)


def test_mixguard_on_an_affine_trunk_is_the_plain_u_shape() -> None:
    """Law 2: where decoding is exact, and nothing hidden changes the text, nothing changes."""
    options = replace(EXACT, secret_tokens=0, m=4)
    plain = TextToy(affine=True, dropout=0.0, task="classification", batch=1)
    trained = []
    for strategy, toy in (
        (USplitSL, plain),
        (MixGuard, replace(plain, kind=MixGuardClient, options=options)),
    ):
        ushape_strategy = strategy(toy.server(), device="cpu", steps_per_round=1)
        # A trunk that looks at nothing but the place itself does not see the supports' lengths.
        ushape_strategy.trunk.module.get_parameter("past.weight").data.zero_()
        clients = toy.clients_for(ushape_strategy)
        ushape_strategy.fit(clients, 1)
        trained.append([c.weights() for c in clients])
    for one, other in zip(*trained, strict=True):
        check_same_tensors("MixGuard", one, other, 1e-9)


class Noise(Hiding):
    """A third party's: adds noise to what it sends, and shifts what it reads."""

    warning = "noise of 0.1 hides little"

    def obfuscate(self, batch: MaskedBatch) -> SentBatch:
        encoded = super().obfuscate(batch)
        return replace(encoded, messages=[m + 0.1 * torch.randn_like(m) for m in encoded.messages])

    def recover(self, outputs: Any, sent: SentBatch) -> Tensor:
        return super().recover(outputs, sent) - 0.1


class NoisySL(UShapeStrategy):
    """Its server half: that it says what `Noise` warns of."""

    hiding = Noise


class TestAThirdPartysHiding:
    toy = TextToy(hiding=Noise, clients=2, tests=6)

    def test_split_equals_whole(self) -> None:
        check_ushape_equals_whole(NoisySL, replace(self.toy, tests=0))

    def test_resume_equals_uninterrupted(self, tmp_path: Path) -> None:
        check_resume_equals_uninterrupted(NoisySL, tmp_path, self.toy)

    def test_the_wire_carries_hidden_states_only(self) -> None:
        noisy = check_ushape_wire(NoisySL, self.toy)
        plain = check_ushape_wire(USplitSL, replace(self.toy, hiding=None))
        for method in ("encode", "encode_test"):  # test texts are hidden as training texts are
            one, other = (
                next(e for e in events if e.method == method and "messages" in e.payload)
                for events in (noisy, plain)
            )
            noise = one.payload["messages"][0] - other.payload["messages"][0]
            assert 0.05 < noise.std() < 0.2

    def test_graphs_are_freed(self) -> None:
        check_graphs_are_freed(NoisySL, replace(self.toy, clients=1), many=120)

    def test_its_strategy_logs_its_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        for kind in (USplitSL, NoisySL):
            assert Noise.warning not in caplog.text
            kind(self.toy.server(), device="cpu", steps_per_round=1).fit(self.toy.clients_for(), 1)
        assert Noise.warning in caplog.text


class Leaky(UShapeClient):
    """Sends something that it should not."""

    def run(self, method: str, arguments: Any) -> dict[str, Any]:
        return self.leak(method, super().run(method, arguments))

    def leak(self, method: str, reply: dict[str, Any]) -> dict[str, Any]:
        return reply


class Labels(Leaky):
    def leak(self, method: str, reply: dict[str, Any]) -> dict[str, Any]:
        if method == "encode" and reply:
            return {**reply, "labels": torch.zeros(4, dtype=torch.int64)}
        return reply


class Logits(Leaky):
    def leak(self, method: str, reply: dict[str, Any]) -> dict[str, Any]:
        if method == "decode":
            return {"gradients": [*reply["gradients"], torch.zeros(4, 3, 23)]}
        return reply


class Ids(Leaky):
    def leak(self, method: str, reply: dict[str, Any]) -> dict[str, Any]:
        if method == "encode" and reply:
            return {**reply, "mask": torch.full_like(reply["mask"], 7)}
        return reply


class Answers(Leaky):
    def leak(self, method: str, reply: dict[str, Any]) -> dict[str, Any]:
        if method == "score":
            return {**reply, "scores": {**reply["scores"], "each": [1, 0, 1]}}
        return reply


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Labels, "encode up holds labels, mask, messages; allowed keys"),
        (Logits, r"decode up: gradients is \(4, 3, 23\) of torch.float32; expected"),
        (Ids, r"encode up: mask is \(4, \d\) of torch.uint8; expected masks"),
        (Answers, "score up holds more than a number for each score"),
    ],
)
def test_the_law_notices_what_a_client_should_not_send(kind: Any, sentence: str) -> None:
    with pytest.raises(AssertionError, match=f"law 6, the wire carries.*{sentence}"):
        check_ushape_wire(USplitSL, TextToy(kind=kind, tests=6))


def test_law_1_notices_a_gradient_that_is_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hiding, "perturb", lambda self, gradient, hidden, sent: 2 * gradient)
    with pytest.raises(AssertionError, match="law 1, split equals whole: head and tail"):
        check_ushape_equals_whole(USplitSL)


def test_law_1_notices_a_graph_that_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Hiding.recover

    def cut(self: Hiding, outputs: Any, sent: SentBatch) -> Tensor:
        return right(self, [0.5 * output for output in outputs], sent)

    monkeypatch.setattr(Hiding, "recover", cut)
    check_ushape_equals_whole(USplitSL)  # the same computation on both sides
    monkeypatch.setattr(UShapeBatchInFlight, "learn", lambda self, gradient, num_rounds: False)
    with pytest.raises(AssertionError, match="head and tail of client 0"):
        check_ushape_equals_whole(USplitSL)
