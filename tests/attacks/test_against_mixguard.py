"""Both attacks on a real run of MixGuard, from what its server saw and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from flwr_splitmix.attacks import Recorder, gradient_ratio, read_tokens, score
from flwr_splitmix.clients import MixGuardClient
from flwr_splitmix.clients.mixguard_client import Mixtures
from flwr_splitmix.clients.texts import TextBatch
from flwr_splitmix.mixguard import MixGuardOptions
from flwr_splitmix.strategies import MixGuard
from flwr_splitmix.testing.laws import TextToy

STEPS = 3


class Confessing(MixGuardClient):
    """Tells a test, and nobody else, what it hid."""

    hidden: list[Tensor]

    def obfuscate(self, batch: TextBatch) -> Mixtures:
        sent = super().obfuscate(batch)
        if self.segments.training:
            self.hidden.append(sent.hidden)
        return sent


@pytest.mark.parametrize("strength", [0.1, 10.0])
@pytest.mark.parametrize("kind", ["adaptive", "constant"])
def test_the_gradient_ratio_reads_the_hidden_states(kind: Any, strength: float) -> None:
    options = MixGuardOptions(
        secret_tokens=2, max_length=32, calibration_epochs=1, perturbation=kind, strength=strength
    )
    toy = TextToy(kind=Confessing, clients=1, width=24, options=options, dropout=0.0)
    recorder = Recorder()
    strategy = MixGuard(toy.server(), device="cpu", steps_per_round=STEPS, observers=[recorder])
    client = toy.clients_for(strategy, repeatable_secrets=False)[0]
    assert isinstance(client, Confessing)
    client.hidden = []
    strategy.fit([client], 1)
    recordings = recorder.recordings[0]
    assert len(recordings) == len(client.hidden) == STEPS
    for recording, hidden in zip(recordings, client.hidden, strict=True):
        assert recording.gradients is not None
        estimate = gradient_ratio(recording.messages, recording.gradients).estimate
        assert score(estimate.unsqueeze(0), hidden, hidden.flip(0)).best > 0.999


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
    (recording,) = recorder.recordings[0]
    assert recording.gradients is not None
    found = gradient_ratio(recording.messages, recording.gradients)
    # The sign of the decoding is not told; of the two readings one is the text.
    batch = client.batches
    texts = toy.texts(0, toy.examples).batch(batch.indices)[0]
    real = texts >= 0
    hits = [
        float(
            (read_tokens(sign * found.estimate, table).ids[:, : texts.shape[1]] == texts)[real]
            .double()
            .mean()
        )
        for sign in (1, -1)
    ]
    assert max(hits) == 1.0
