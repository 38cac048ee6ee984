"""The promises of the papers' methods as strategies, and the options that they reject."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg
from torch import nn

from flwr_splitmix.methods import METHODS, Method, strategy_class
from flwr_splitmix.mixers import (
    FullShare,
    InputLevel,
    Mixup,
    PatchCutMix,
    Shuffled,
    SmashedShape,
)
from flwr_splitmix.segments import split_vision_model
from flwr_splitmix.server.intake.checks import UploadError
from flwr_splitmix.server.intake.finite import FiniteCheck
from flwr_splitmix.server.intake.split import LabelRules, read_upload
from flwr_splitmix.strategies import (
    BatchShuffleSL,
    CutMixSL,
    CutoutSL,
    InputMixupSL,
    MixupSL,
    ShuffledCutMixSL,
    ShuffledPSL,
    SplitStrategy,
    VanillaCutMixSL,
)
from flwr_splitmix.testing.toy import Toy
from tests.laws.makers import maker


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_who_averages_does_so_by_fedavg(method: Method) -> None:
    assert strategy_class(method.name).averages is False
    if method.twin is not None and method.shape == "L":
        assert type(maker(method.twin)(Toy().upper()).aggregator.strategy) is FedAvg
        assert maker(method.name)(Toy().upper()).aggregator.strategy is None


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        (VanillaCutMixSL, {"k": 3}, "k is 3; VanillaCutMix mixes pairs, .* it must be 2"),
        (VanillaCutMixSL, {"beta": 0.0}, r"beta is 0\.0; it must be greater than 0"),
        (
            CutMixSL,
            {"alpha": 0.0},
            r"alpha is 0\.0; it must be greater than 0 and at most 1e.100, or None",
        ),
        (CutMixSL, {"k": 1}, "k is 1; a mixing group needs at least 2 clients"),
        (
            MixupSL,
            {"alpha": -1.0},
            r"alpha is -1\.0; it must be greater than 0 and at most 1e.100, or None",
        ),
        (ShuffledCutMixSL, {"alpha": math.nan}, "alpha is nan; it must be greater than 0"),
        (CutoutSL, {"ratio": 0.0}, r"ratio is 0\.0; it must be above 0 and at most 1, or None"),
        (CutoutSL, {"ratio": 1.01}, r"ratio is 1\.01; it must be above 0 and at most 1"),
        (BatchShuffleSL, {"labels": [], "kappa": 0.0}, r"kappa is 0\.0; it must be above 0"),
        (BatchShuffleSL, {"labels": [], "kappa": 1.1}, r"kappa is 1\.1; it must be above 0"),
        (BatchShuffleSL, {"labels": [], "kappa": math.nan}, "kappa is nan"),
        (InputMixupSL, {"across": "everyone"}, "across is 'everyone'; it must be one of clients"),
        (InputMixupSL, {"grid": (4, 0)}, r"grid\[1\] is 0; it must be at least 1"),
    ],
)
def test_options_outside_their_range_are_rejected_with_one_clear_error(
    kind: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        kind(Toy().upper(), **options)


@pytest.mark.parametrize("kind", [ShuffledPSL, ShuffledCutMixSL])
def test_a_shuffle_needs_positions_in_the_upper_segment(kind: Any) -> None:
    options: dict[str, Any] = {"image_size": 16, "depth": 1, "seed": 0}
    lower = split_vision_model(positions="lower", **options)
    with pytest.raises(ValueError, match=f"{kind.__name__} moves patches.*positions='upper'"):
        kind(lower.upper)
    kind(split_vision_model(positions="upper", **options).upper)
    kind(nn.Linear(2, 2), num_classes=2)  # a segment that says nothing is taken at its word


@pytest.mark.parametrize("kind", [ShuffledPSL, ShuffledCutMixSL])
def test_a_shuffle_behind_layers_that_mix_by_slot_is_told_the_models_own_cut(kind: Any) -> None:
    """Such a model has no embedding to cut at."""
    with pytest.raises(
        ValueError, match=f"{kind.__name__} moves patches.*cut_at='stem'"
    ) as refused:
        kind(split_vision_model("mixer_s16_224").upper)
    assert "embedding with" not in str(refused.value)
    kind(split_vision_model("mixer_s16_224", cut_at="stem").upper)


def test_raw_inputs_do_not_cross_a_link() -> None:
    strategy = InputMixupSL(Toy().upper(), across="clients", device="cpu")
    grid: Any = None
    with pytest.raises(ValueError, match=r"InputMixupSL mixes raw inputs across clients.*\(fit\)"):
        strategy.start(grid, ArrayRecord(), num_rounds=1)
    mixer = Shuffled(InputLevel(Mixup(), across="clients"))
    shuffled = SplitStrategy(Toy().upper(), mixer=mixer, device="cpu")
    with pytest.raises(ValueError, match="mixes raw inputs across clients"):
        shuffled.start(grid, ArrayRecord(), num_rounds=1)


@pytest.mark.parametrize(("clients", "alone"), [(4, 0), (5, 1)])
def test_only_who_was_left_over_is_reported_unmixed(
    clients: int, alone: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="flwr.splitmix"):
        toy = Toy(clients=clients)
        strategy = InputMixupSL(toy.upper(), across="clients", steps_per_round=3, device="cpu")
        strategy.fit(toy.make_clients(), 1)
    warnings = [r.getMessage() for r in caplog.records if "left over" in r.getMessage()]
    assert len(warnings) == alone
    assert all(f"in {3 * alone} uploads in all" in sentence for sentence in warnings)


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ([torch.tensor([0, 1, 2, 0])], r"uploaded \(4,\) of torch.int64, expected \(4, 3\)"),
        (torch.ones(4, 3) / 3, "no list of 1 soft label$"),
        ([], "no list of 1 soft label$"),
        ([None], "labels for a pass that is not its own"),
        ([torch.ones(4, 4) / 4], r"uploaded \(4, 4\)"),
        ([torch.full((4, 3), 1.1)], r"soft labels outside 0\.\.1"),
        ([torch.full((4, 3), -0.1)], r"soft labels outside 0\.\.1"),
        ([torch.full((4, 3), math.nan)], "NaN or infinite"),
        ([torch.ones(4, 3, dtype=torch.float64)], "of torch.float64, expected"),
        (None, "no list of 1 soft label$"),
    ],
)
def test_soft_labels_are_checked(labels: Any, sentence: str) -> None:
    shape = SmashedShape(4, 6, 3, classes=3)
    mixer = InputLevel(PatchCutMix(), (2, 3), across="batch")
    plan = mixer.plan([0], shape, np.random.default_rng(0))
    reply = {"smashed": [torch.zeros(shape.size)], "labels": [torch.full((4, 3), 1 / 3)]}
    read_upload(reply, plan, 0, LabelRules(3), torch.float32, finite=FiniteCheck())
    with pytest.raises(UploadError, match=sentence):
        read_upload(
            {**reply, "labels": labels}, plan, 0, LabelRules(3), torch.float32, finite=FiniteCheck()
        )


def test_everyone_is_alone_where_nothing_is_mixed() -> None:
    """Of k = 2 and one client, that one sends everything: there is no group of one that mixes."""
    plan = CutMixSL(Toy().upper()).mixer.plan([0], SmashedShape(4, 6, 3), np.random.default_rng(0))
    assert plan.shares(0) == [FullShare()]
    assert plan.unmixed == (0,)
