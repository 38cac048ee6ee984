"""Both attacks on a real run of MixGuard, from what its server saw and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flwr_splitmix.attacks import (
    Recorder,
    gradient_ratio,
    read_labels,
    read_tokens,
    repeated_text,
    score,
)
from flwr_splitmix.attacks.recording.packing import UShapeStep
from flwr_splitmix.clients import MixGuardClient, Order, UShapeClient
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import MixGuard as MixGuardHiding
from flwr_splitmix.hiding.mixguard import MixGuardOptions, Mixtures
from flwr_splitmix.strategies import MixGuard, USplitSL
from flwr_splitmix.testing.laws import TextToy
from flwr_splitmix.testing.toy_texts import SPECIAL_IDS, VOCABULARY

STEPS = 3


def uploads_of_the_first(recorder: Recorder) -> list[tuple[Tensor, Tensor]]:
    """Return client 0's messages and the gradients that it returned, each (m, b, T, d), by step."""
    steps = [step for step in recorder.trace.steps() if isinstance(step, UShapeStep)]
    pairs = [(step.messages[0], step.returned[0]) for step in steps]
    return [(torch.stack(list(one)), torch.stack(list(other))) for one, other in pairs]


class Confessing(MixGuardHiding):
    """Tells a test, and nobody else, what it hid."""

    hidden: list[Tensor]

    def obfuscate(self, batch: MaskedBatch) -> Mixtures:
        mixtures = super().obfuscate(batch)
        assert isinstance(mixtures, Mixtures)
        if self.side.head.training:
            self.hidden.append(mixtures.hidden)
        return mixtures


@pytest.mark.parametrize("strength", [0.1, 10.0])
@pytest.mark.parametrize("kind", ["adaptive", "constant"])
def test_the_gradient_ratio_reads_the_hidden_states(kind: Any, strength: float) -> None:
    options = MixGuardOptions(
        secret_tokens=2, max_length=32, calibration_epochs=1, perturbation=kind, strength=strength
    )
    public = TextToy().texts(20_000, 12)
    hiding = Confessing(public, vocab_size=VOCABULARY, special_ids=SPECIAL_IDS, options=options)
    hiding.hidden = []
    toy = TextToy(hiding=lambda: hiding, clients=1, width=24, dropout=0.0)
    recorder = Recorder()
    strategy = MixGuard(toy.server(), device="cpu", steps_per_round=STEPS, observers=[recorder])
    client = toy.clients_for(strategy, repeatable_secrets=False)[0]
    strategy.fit([client], 1)
    uploads = uploads_of_the_first(recorder)
    assert len(uploads) == len(hiding.hidden) == STEPS
    for (messages, gradients), states in zip(uploads, hiding.hidden, strict=True):
        estimate = gradient_ratio(messages, gradients).estimate
        assert score(estimate.unsqueeze(0), states, states.flip(0)).best > 0.999


def test_the_words_can_be_read_behind_an_embedding() -> None:
    options = MixGuardOptions(
        secret_tokens=0, max_length=32, calibration_epochs=0, perturbation=None
    )
    toy = replace(TextToy(kind=MixGuardClient, clients=1, width=24, dropout=0.0), options=options)
    recorder = Recorder()
    strategy = MixGuard(toy.server(), device="cpu", steps_per_round=1, observers=[recorder])
    client = toy.clients_for(strategy, repeatable_secrets=False)[0]
    table = toy.head().words.weight.detach()
    strategy.fit([client], 1)
    ((messages, gradients),) = uploads_of_the_first(recorder)
    attack = gradient_ratio(messages, gradients)
    # The sign of the decoding is not told; of the two readings one is the text.
    batch = client.batches
    texts = toy.texts(0, toy.examples).batch(batch.indices)[0]
    real = texts >= 0
    hits = [
        float(
            (read_tokens(sign * attack.estimate, table).ids[:, : texts.shape[1]] == texts)[real]
            .double()
            .mean()
        )
        for sign in (1, -1)
    ]
    assert max(hits) == 1.0


@pytest.mark.parametrize("kind", [UShapeClient, MixGuardClient])
def test_the_labels_of_two_classes_can_be_read(kind: Any) -> None:
    options = MixGuardOptions(secret_tokens=2, max_length=32, calibration_epochs=1)
    toy = TextToy(kind=kind, clients=1, task="classification", classes=2, width=24, options=options)
    toy = replace(toy, batch=12, dropout=0.0)
    recorder = Recorder()
    strategy = (MixGuard if kind is MixGuardClient else USplitSL)(
        toy.server(), device="cpu", steps_per_round=1, observers=[recorder]
    )
    (client,) = toy.clients_for(strategy, repeatable_secrets=False)
    strategy.fit([client], 1)
    ((_, gradients),) = uploads_of_the_first(recorder)
    labels = toy.texts(0, toy.examples).batch(client.batches.indices)[1].bool()
    assert 0 < labels.sum() < len(labels)
    sides = read_labels(gradients)
    assert torch.equal(sides, labels) or torch.equal(sides, ~labels)


@pytest.mark.parametrize("k", [3, 8])
def test_a_text_that_is_mixed_twice_is_what_the_mixtures_share(k: int) -> None:
    options = MixGuardOptions(
        k=k, secret_tokens=0, max_length=32, calibration_epochs=0, perturbation=None
    )
    toy = TextToy(kind=MixGuardClient, clients=1, tests=4, width=24, options=options)
    (client,) = toy.clients_for(repeatable_secrets=False)
    messages = []
    for server_round in (1, 2):  # evaluations of a head that has learned nothing in between
        client.attach(Order(0, 0, server_round, 2), None)
        place = {"kind": "federated", "start": 0, "stop": 4}
        reply = client.run("encode_test", place)
        messages.append(torch.stack(reply["messages"]))
        texts = MaskedBatch.of(toy.texts(10_000, 4).batch(range(4)), torch.device("cpu"))  # type: ignore[arg-type]
    width = min(len(m[0, 0]) for m in messages)
    real = texts.mask.bool()
    hidden = client.head.eval()(texts.inputs, texts.mask)
    common = repeated_text(*(m[:, :, : texts.inputs.shape[1]][:, real] for m in messages))
    assert width >= texts.inputs.shape[1]
    assert common.cosine == pytest.approx(1, abs=1e-9)
    assert score(common.estimate, hidden[real], hidden[real].flip(0)).best > 1 - 1e-9
    other = repeated_text(messages[0][:, 0, :3], messages[1][:, 1, :3])
    assert other.cosine < 0.999


def test_what_cannot_be_attacked_is_said() -> None:
    with pytest.raises(ValueError, match=r"they must be \(m, ...\) of one target"):
        repeated_text(torch.zeros(3, 2, 4, 5), torch.zeros(3, 1, 4, 5))
    with pytest.raises(ValueError, match="of at least two texts"):
        read_labels(torch.zeros(1, 4, 5))
