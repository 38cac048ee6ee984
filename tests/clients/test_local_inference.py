"""Inference at the client alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flwr_splitmix.clients import ClientError, MixGuardClient
from flwr_splitmix.clients.ushape.local_inference import score_locally
from flwr_splitmix.hiding.mixguard import CalibratedTrunk, Calibration, Calibrator, MixGuardOptions
from flwr_splitmix.segments.language import LanguageCut, cut_language_model, generate
from flwr_splitmix.strategies import MixGuard, USplitSL
from flwr_splitmix.testing.laws import TextToy
from tests.segments.language.tiny_models import config_of, whole_model


@pytest.mark.parametrize("task", ["classification", "generation"])
def test_what_a_split_evaluation_scores_is_scored_here_too(task: Any) -> None:
    toy = TextToy(clients=1, tests=10, task=task)
    strategy = USplitSL(toy.server(), device="cpu", evaluation="federated", steps_per_round=2)
    (client,) = toy.clients_for(strategy)
    result = strategy.fit([client], 1)
    local = score_locally(client, strategy.trunk.module, "federated")
    split = result.evaluate_metrics_clientapp[1]
    assert local["accuracy"] == pytest.approx(split["accuracy"])
    assert local["loss"] == pytest.approx(split["loss"])


def test_the_calibrator_stands_between_trunk_and_tail() -> None:
    options = MixGuardOptions(secret_tokens=0, max_length=32, calibration_epochs=5)
    toy = TextToy(kind=MixGuardClient, clients=1, tests=6, options=options)
    strategy = MixGuard(toy.server(), device="cpu", steps_per_round=2)
    (client,) = toy.clients_for(strategy)
    strategy.fit([client], 1)
    assert isinstance(client, MixGuardClient)
    assert client.calibration is not None
    trunk = CalibratedTrunk(strategy.trunk.module, client.calibration).eval()
    hidden, mask = torch.randn(2, 4, toy.width).double(), torch.ones(2, 4)
    expected = client.calibration(strategy.trunk.module.eval()(hidden, mask))
    torch.testing.assert_close(trunk(hidden, mask), expected)
    plain = score_locally(client, strategy.trunk.module, "federated")
    assert score_locally(client, trunk, "federated")["loss"] != plain["loss"]


def test_texts_are_written_through_the_calibrator() -> None:
    parts: Any = cut_language_model(whole_model(config_of("qwen3"), scale=0.6), LanguageCut(1, 1))
    calibrator = Calibrator(parts.config.hidden_size, 4)
    with torch.no_grad():
        calibrator.blocks[0].get_parameter("up.weight").normal_(0, 0.5)
    ids = torch.randint(3, 20, (2, 5))
    plain = generate(parts, ids, max_new_tokens=6)
    parts.trunk = CalibratedTrunk(parts.trunk, Calibration(calibrator))
    written = generate(parts, ids, max_new_tokens=6)
    assert not torch.equal(written, plain)
    head, trunk, tail = (part.eval() for part in parts.all_here())
    text = ids
    with torch.no_grad():
        for _ in range(6):
            mask = torch.ones_like(text)
            following = tail(trunk(head(text, mask), mask), mask)[:, -1].argmax(-1)
            text = torch.cat([text, following[:, None]], 1)
    assert torch.equal(written, text[:, 5:])


def test_missing_test_data_are_named() -> None:
    toy = TextToy(clients=1)
    with pytest.raises(ClientError, match="this client has no benchmark test data"):
        score_locally(toy.clients_for()[0], toy.server(), "benchmark")
