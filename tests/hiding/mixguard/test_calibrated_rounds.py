"""Calibration over the rounds of a run: when it is done, refined, reported and kept."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from flwr_splitmix.clients import MixGuardClient
from flwr_splitmix.hiding.mixguard import MixGuardOptions, Mixtures
from flwr_splitmix.strategies import MixGuard
from flwr_splitmix.testing.laws import sgd
from tests.hiding.mixguard.clients import ORDER, TOY, client_of


def test_calibration_brings_the_decoded_texts_nearer() -> None:
    options = MixGuardOptions(
        secret_tokens=0, max_length=32, calibration_epochs=60, calibration_lr=1e-2, k=2, m=2
    )
    toy = replace(TOY, options=options, width=8)
    strategy = MixGuard(toy.server(), device="cpu", steps_per_round=1)
    client = toy.clients_for(strategy)[0]
    assert isinstance(client, MixGuardClient)
    client.hiding._errors = deque()  # of all steps
    strategy.fit([client], 1)
    assert client.hiding.calibrated
    errors = list(client.hiding._errors)
    first, last = errors[:20], errors[-20:]
    assert np.mean([after for _, after in last]) < 0.95 * np.mean([b for b, _ in last])
    assert first[0][0] == pytest.approx(first[0][1])  # the identity at first


def test_calibration_is_done_once_and_refined_as_often_as_asked() -> None:
    calls: list[str] = []

    class Counting(MixGuardClient):
        def run(self, method: str, arguments: Any) -> dict[str, Any]:
            reply = super().run(method, arguments)
            calls.append(f"{method}+public" if "public" in reply else method)
            return reply

    options = MixGuardOptions(secret_tokens=0, max_length=32, calibration_epochs=2, refine_every=2)
    toy = replace(TOY, kind=Counting, options=options)
    strategy = MixGuard(toy.server(), device="cpu", steps_per_round=4)
    strategy.fit(toy.clients_for(strategy), 2)
    assert calls.count("decode_public") == 2 * toy.examples // toy.batch
    assert calls.count("encode+public") == 2 * 2


def test_refinement_counts_steps_over_all_rounds() -> None:
    options = MixGuardOptions(secret_tokens=0, max_length=32, calibration_epochs=1, refine_every=3)
    toy = replace(TOY, options=options)
    strategy = MixGuard(toy.server(), device="cpu", steps_per_round=2)
    client = toy.clients_for(strategy)[0]
    assert isinstance(client, MixGuardClient)
    strategy.fit([client], 6)
    assert client.calibration is not None
    (first, *_) = client.calibration.optimizer.state.values()
    assert int(first["step"]) == toy.examples // toy.batch + 12 // 3


def test_a_round_without_calibration_says_what_came_of_the_last_one() -> None:
    """Not that nothing is off; also when another process goes on."""
    options = MixGuardOptions(secret_tokens=0, max_length=32, calibration_epochs=1, refine_every=0)
    toy = replace(TOY, options=options)
    strategy = MixGuard(toy.server(), device="cpu", steps_per_round=1)
    client = toy.clients_for(strategy)[0]
    strategy.fit([client], 2)
    first, second = strategy.rows
    assert first["train_decode_error"] == second["train_decode_error"] > 0
    other = toy.clients_for()[0]
    other.attach(ORDER, None)
    other.restore(*client.state())
    assert other.release()[1]["decode-error"] == second["train_decode_error"]


def test_refinement_sees_the_head_that_the_last_step_left() -> None:
    """The trunk that answers has taken that step too."""
    options = MixGuardOptions(secret_tokens=0, max_length=32, calibration_epochs=1, refine_every=1)
    client = client_of(replace(TOY, options=options))
    client.hiding.calibrated = True
    reply = client.run("encode", {"number": 0, "progress": 0.0, "gradient": None})
    answer = {"number": 0, "outputs": reply["messages"], "public": None}
    gradient = client.run("decode", answer)["gradients"]
    words = client.head.words
    assert isinstance(words, torch.nn.Embedding)
    before = words.weight.detach().clone()
    client.run("encode", {"number": 1, "progress": 0.1, "gradient": gradient})
    after = words.weight.detach()
    assert not torch.equal(before, after)
    mixtures = client._calibration._sent[0]
    assert isinstance(mixtures, Mixtures)
    batch = mixtures.batch
    real = mixtures.own_mask.bool()
    table = after[batch.inputs[batch.mask.bool()]]
    torch.testing.assert_close(mixtures.hidden[real], table)


def test_the_calibrator_is_part_of_the_state() -> None:
    options = MixGuardOptions(secret_tokens=0, max_length=32, calibration_epochs=1)
    toy = replace(TOY, options=options)
    strategy = MixGuard(toy.server(), device="cpu", steps_per_round=1)
    client = toy.clients_for(strategy, sgd())[0]
    strategy.fit([client], 1)
    tensors, meta = client.state()
    other = toy.clients_for()[0]
    other.attach(ORDER, None)
    other.restore(tensors, meta)
    assert other.attach(ORDER, None)["calibration-steps"] == 0
    again, _ = other.state()
    assert tensors.keys() == again.keys()
    assert all(torch.equal(tensors[name], again[name]) for name in tensors)
