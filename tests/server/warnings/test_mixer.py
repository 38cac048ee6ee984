"""Warnings about clients' states say what became of them."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn
from torch.utils.data import TensorDataset

from flwr_splitmix.clients import SplitClient
from flwr_splitmix.description import SegmentDescription, SplitDescription
from flwr_splitmix.links import Clients
from flwr_splitmix.links.host import ClientHost
from flwr_splitmix.links.local import LocalClients
from flwr_splitmix.mixers import (
    InputLevel,
    Mixer,
    Mixup,
    NoMixing,
    PatchCutMix,
    RandomCutout,
    Shuffled,
    SmashedShape,
    VanillaCutMix,
)
from flwr_splitmix.segments import Geometry
from flwr_splitmix.server.warnings.mixer import MixerWarnings
from flwr_splitmix.server.warnings.tally import RoundTally
from flwr_splitmix.strategies import PSL, STRATEGIES, CutMixSL, MixupSL, SplitStrategy
from flwr_splitmix.testing.toy import Toy


def present(*state_rounds: int) -> Clients:
    """Return clients with states of these rounds."""
    segment = SegmentDescription(prefix=0, patches=4, width=8)
    descriptions = [
        SplitDescription(num_examples=8, batch_size=4, segment=segment, state_round=state_round)
        for state_round in state_rounds
    ]
    return LocalClients(1, dict(enumerate(descriptions)), {}, None, host=ClientHost())


def test_prefix_tokens_have_seen_the_image_only_behind_a_block(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Own segments may be cut at the embedding, where a class token has seen nothing."""
    clients = present(0, 0)
    mixer = CutMixSL(Toy().upper(), device="cpu").mixer
    shape = SmashedShape(batch=4, patches=4, width=8, prefix=1)
    with caplog.at_level(logging.WARNING, "flwr.splitmix"):
        MixerWarnings(mixer).on_clients(clients, shape)
    assert caplog.messages == [
        "clients 0 and 1 send 1 prefix token of every image, which have attended to all "
        "of it if the model is cut at a block: they are summed with the others', not masked"
    ]


@pytest.mark.parametrize(
    ("scale", "comparison"),
    [(255.0, "larger"), (1 / 255, "smaller"), (3.0, ""), (0.0, "")],
)
@pytest.mark.parametrize("strategy", ["PSL", "CutMixSL", "MixupSL"])
def test_a_client_whose_inputs_are_scaled_otherwise_is_named(
    strategy: str, scale: float, comparison: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One whose pixels go up to 255 makes smashed data that crowd out the others'."""
    toy = Toy(clients=4)
    server = STRATEGIES[strategy](toy.upper(), device="cpu", steps_per_round=2)
    clients = toy.clients_for(server)
    with torch.no_grad():
        for parameter in clients[2].segment.parameters():
            parameter.mul_(scale)
    with caplog.at_level(logging.WARNING, "flwr.splitmix"):
        server.fit(clients, 1, initial_arrays=ArrayRecord())
    warnings = [message for message in caplog.messages if "sends smashed data" in message]
    warning = (
        f"client 2 sends smashed data more than 10 times {comparison} than the median client's: are"
    )
    assert [message.startswith(warning) for message in warnings] == [True] * bool(comparison)


@pytest.mark.parametrize(
    ("unmixed", "warned"), [({0: 1, 2: 1}, False), ({0: 2}, False), ({0: 1, 2: 2}, True)]
)
def test_more_clients_left_over_than_one_a_step_are_named_though_one_was_told(
    unmixed: dict[int, int], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """One in each step is told before the first; more are so because clients leave."""
    warnings = MixerWarnings(Mixup(k=2))
    warnings.on_leftover(3)
    assert "in each step one is left over" in caplog.text
    tally = RoundTally(mixes=True)
    tally.steps = 2
    tally.unmixed.update(unmixed)
    warnings.on_plans(1, tally, [0, 1, 2])
    assert ("left over when groups were formed, in 3 uploads in all" in caplog.text) == warned
    assert ("left over when groups were formed" in caplog.text) == warned


def test_small_mixing_ratios_are_no_small_inputs(caplog: pytest.LogCaptureFixture) -> None:
    toy = Toy(clients=6)
    server = MixupSL(toy.upper(), device="cpu", k=3, alpha=0.05, steps_per_round=1)
    with caplog.at_level(logging.WARNING, "flwr.splitmix"):
        server.fit(toy.clients_for(server), 8)
    assert "sends smashed data" not in caplog.text


class Idle(NoMixing):
    """Somebody's own mixer, which says what it does not do."""

    def without_effect(self, patches: int) -> str:
        return "swaps nothing" if patches == 1 else ""


@pytest.mark.parametrize(
    ("mixer", "patches", "times"),
    [
        (RandomCutout(), 1, 1),
        (Shuffled(RandomCutout()), 1, 1),
        (RandomCutout(), 2, 0),
        (RandomCutout(0.3), 1, 1),
        (RandomCutout(1.0), 1, 0),
        (NoMixing(), 1, 0),
        (Mixup(), 1, 0),
        (PatchCutMix(), 1, 1),
        (PatchCutMix(), 2, 0),
        (VanillaCutMix(), 1, 1),
        (Shuffled(NoMixing()), 1, 1),
        (Shuffled(PatchCutMix()), 1, 1),
        (InputLevel(PatchCutMix()), 1, 1),
        (InputLevel(PatchCutMix(), (1, 4)), 1, 0),
        (InputLevel(Mixup()), 1, 0),
        (Idle(), 1, 1),
    ],
    ids=str,
)
def test_what_a_mixer_cannot_do_with_the_only_patch_is_told_once(
    mixer: Mixer, patches: int, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It is sent whole or not at all, in its only place: such runs look like masked ones."""
    segments = [nn.Sequential(nn.Linear(4, 3), nn.Unflatten(1, (1, 3))) for _ in range(2)]
    if patches > 1:
        segments = [nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3))) for _ in range(2)]
    data: Any = TensorDataset(torch.randn(8, 4), torch.arange(8) % 3)
    clients = [SplitClient(segment, data, batch_size=4, device="cpu") for segment in segments]
    upper = nn.Sequential(nn.Flatten(), nn.Linear(3 * patches, 3))
    SplitStrategy(upper, mixer=mixer, num_classes=3, device="cpu").fit(clients, 2)
    assert caplog.text.count("each sample has only one patch, so ") == times


@pytest.mark.parametrize(
    ("mixer", "positions", "warned"),
    [
        (Shuffled(NoMixing()), "lower", True),
        (Shuffled(NoMixing()), "upper", False),
        (Shuffled(NoMixing()), "none", False),
        (Shuffled(NoMixing()), None, True),
        (PatchCutMix(), "lower", False),
    ],
    ids=str,
)
def test_patches_that_tell_their_places_are_told_where_a_mixer_moves_them(
    mixer: Mixer, positions: Any, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A segment of one's own seldom has a geometry, and then denies nothing."""
    segments = [nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3))) for _ in range(2)]
    if positions is not None:
        for segment in segments:
            geometry: Any = Geometry(2, 3, positions=positions)
            segment.geometry = geometry
    data: Any = TensorDataset(torch.randn(8, 4), torch.arange(8) % 3)
    clients = [SplitClient(segment, data, batch_size=4, device="cpu") for segment in segments]
    upper = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    SplitStrategy(upper, mixer=mixer, num_classes=3, device="cpu").fit(clients, 2)
    warnings = [line for line in caplog.messages if "which may then reveal where they were" in line]
    assert len(warnings) == warned
    assert all("clients 0 and 1 have" in line and "positions='none'" in line for line in warnings)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, ["client 0 has fewer batches than the mean: the data start over within an epoch"]),
        (
            {"steps_per_round": 2},
            ["client 0 has fewer batches than the mean: the data start over with"],
        ),
        (
            {"steps_per_round": 8},
            [
                "client 0 has fewer batches than the mean: the data start over within an epoch",
                "client 1 has fewer batches than the 8 steps of an epoch: the data start over "
                "within it",
            ],
        ),
        (
            {"steps_per_round": 8, "epochs_per_round": 2},
            ["client 0 has fewer batches than the mean: the data start over within an epoch"],
        ),
        # All start over, as is asked for.
        (
            {"steps_per_round": 9},
            ["client 0 has fewer batches than the mean: the data start over with"],
        ),
    ],
    ids=str,
)
def test_who_starts_over_within_an_epoch_is_named(
    options: dict[str, Any], named: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Also a client of 6 batches, with 8 steps in a round and a mean of 6 batches."""
    toy = Toy(clients=3, examples=(16, 24, 32))
    PSL(toy.upper(), device="cpu", **options).fit(toy.make_clients(), 1)
    warnings = [message for message in caplog.messages if "start over" in message]
    assert len(warnings) == len(named)
    assert all(warning.startswith(start) for warning, start in zip(warnings, named, strict=True))
