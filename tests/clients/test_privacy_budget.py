"""A client's budget: no release goes above what is allowed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from flwr_splitmix.clients import ClientError, SplitClient
from flwr_splitmix.clients.guards.privacy_budget import PrivacyBudget
from flwr_splitmix.mixers import FullShare, Share
from flwr_splitmix.segments.vision.patch_shuffle import PatchShuffle
from flwr_splitmix.testing.toy import FEATURES, Examples, Toy
from tests.clients.guarded import (
    DELTA,
    NOISE,
    ORDER,
    TOY,
    N,
    allowing,
    ask,
    client_of,
    cost,
    epsilon,
    mask,
    spent,
)


@given(st.lists(st.integers(0, N), min_size=30, max_size=30), st.floats(0.5, 3.0))
@settings(max_examples=15, deadline=None)
def test_a_client_stops_before_the_release_that_would_exceed_its_budget(
    counts: list[int], limit: float
) -> None:
    client = client_of(privacy=PrivacyBudget(delta=DELTA, max_epsilon=limit))
    paid = np.zeros(12)
    for number, count in enumerate(counts):
        reply = ask(client, number, mask(count))
        rows = client.batches.indices
        if "budget-spent" in reply:
            # It would be too much, and nothing of it leaves the client.
            assert reply == {"budget-spent": True}
            assert epsilon(float((paid[rows] + cost(count)).max())) > limit
            break
        paid[rows] += cost(count)
    assert spent(client) == pytest.approx(epsilon(float(paid.max())), rel=1e-9)
    assert spent(client) <= limit


def test_who_has_stopped_sends_nothing_more_however_little_it_would_cost() -> None:
    client = client_of(privacy=PrivacyBudget(delta=DELTA, max_epsilon=allowing(cost(3))))
    assert client.attach(ORDER, None).get("budget-spent") is None
    assert "smashed" in ask(client, 0, mask(3))
    before = spent(client)
    assert ask(client, 1, mask(5)) == {"budget-spent": True}
    assert ask(client, 2, mask(1)) == {"budget-spent": True}
    assert ask(client, 3, mask(0)) == {"budget-spent": True}
    assert spent(client) == before
    assert client.attach(replace(ORDER, server_round=2), None)["budget-spent"] is True


def test_who_stops_still_learns_from_what_it_sent_before() -> None:
    client = client_of(privacy=PrivacyBudget(delta=DELTA, max_epsilon=allowing(cost(3))))
    (up,) = ask(client, 0, mask(3))["smashed"]
    assert "budget-spent" in ask(client, 1, mask(5), gradient=[torch.ones_like(up)])
    assert client.steps == 1
    assert ask(client, 2, mask(3)) == {"budget-spent": True}


def test_noise_that_is_weaker_than_the_budget_needs_is_refused_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limit = 2.0
    weak = replace(NOISE, sigma_s=0.5)
    assert epsilon(4 * 3 / (2 * 0.5**2)) > limit > epsilon(cost(3))
    client = client_of(privacy=PrivacyBudget(delta=DELTA, max_epsilon=limit))
    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        for number in range(2):
            share = replace(mask(3), noise=weak)
            assert ask(client, number, share) == {"budget-spent": True}
    assert [r.getMessage() for r in caplog.records] == [
        "client 0 sends nothing more: another upload would bring its epsilon above max_epsilon = 2"
    ]
    assert spent(client) == 0


@pytest.mark.parametrize(
    ("shares", "toy", "why"),
    [
        ([mask(3, clip="none")], TOY, "no clipping of the smashed data"),
        ([mask(3, sigma_s=0.0)], TOY, r"no noise on the smashed data \(sigma_s = 0\)"),
        ([mask(3, sigma_y=0.0)], TOY, r"no noise on the labels \(sigma_y = 0\)"),
        ([FullShare()], TOY, "no clipping of the smashed data; no noise on the smashed data"),
        ([mask(1), FullShare()], TOY, "no clipping of the smashed data; no noise on the"),
        ([mask(3)], replace(TOY, batch_norm=True), "BatchNorm, or another layer across the batch"),
    ],
    ids=["clip", "sigma_s", "sigma_y", "no noise", "one pass without", "batch norm"],
)
def test_a_budget_and_uploads_without_any_epsilon_do_not_go_together(
    shares: list[Share], toy: Toy, why: str
) -> None:
    client = client_of(toy=toy, privacy=PrivacyBudget(delta=DELTA, max_epsilon=1e9))
    sentence = (
        f"^this client has max_epsilon = 1e.09, and what is asked of it has no epsilon: {why}"
    )
    with pytest.raises(ClientError, match=sentence) as caught:
        ask(client, 0, *shares)
    assert "\n" not in str(caught.value)
    assert spent(client) == 0
    # Whoever asks for what is allowed then gets it.
    if not toy.batch_norm:
        assert "smashed" in ask(client, 1, mask(3))


def test_a_shuffle_across_the_batch_has_no_epsilon() -> None:
    """One record can be dealt to every example of the batch, as an edge of BatchShuffleSL does."""
    segment, data = client_of().segment, client_of().batches.data
    segment.norm = PatchShuffle(0.4)
    budget = PrivacyBudget(delta=DELTA, max_epsilon=1e9)
    client = SplitClient(segment, data, batch_size=TOY.batch, privacy=budget, device="cpu")
    assert client.attach(ORDER, None)["across-batch"] is True
    with pytest.raises(ClientError, match="has no epsilon: BatchNorm, or another layer across"):
        ask(client, 0, mask(3))


class Recurrent(nn.GRU):
    """A GRU over the batch: `batch_first` is forgotten."""

    def forward(self, inputs: Tensor) -> Tensor:  # type: ignore[override]
        states: Tensor = super().forward(inputs)[0]
        return states


class Difference(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs - torch.cat([0 * inputs[:1], inputs[:-1]])


@pytest.mark.parametrize("black", [False, True], ids=["data", "black"])
@pytest.mark.parametrize("layer", [Recurrent(N, N), Difference()], ids=["gru", "difference"])
def test_an_example_that_moves_only_those_behind_it_leaves_no_epsilon(
    layer: nn.Module, black: bool
) -> None:
    """A look at the first example's output alone would not show it."""
    segment, data = client_of().segment, client_of().batches.data
    segment.norm = layer.double()
    if black:
        data = Examples(torch.zeros(12, N, FEATURES, dtype=torch.float64), torch.arange(12) % 3)
    budget = PrivacyBudget(delta=DELTA, max_epsilon=1e9)
    client = SplitClient(segment, data, batch_size=TOY.batch, privacy=budget, device="cpu")
    assert client.attach(ORDER, None)["across-batch"] is True
    with pytest.raises(ClientError, match="has no epsilon: BatchNorm, or another layer across"):
        ask(client, 0, mask(3))
    assert spent(client) == 0


class Remembering(nn.Module):
    """Subtracts a mean of the batches before."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("before", torch.zeros((), dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = inputs - self.get_buffer("before")
        if self.training:
            self.get_buffer("before").copy_(inputs.detach().mean())
        return outputs


def test_a_buffer_that_carries_a_record_to_later_batches_leaves_no_epsilon() -> None:
    """It moves uploads of others by any number of sigmas, though no weight is trained."""
    segment, data = client_of().segment, client_of().batches.data
    segment.norm = Remembering()
    segment.requires_grad_(False)
    for limit, setting in ((1e9, "max_epsilon"), (None, "")):
        budget = PrivacyBudget(delta=DELTA, max_epsilon=limit)
        client = SplitClient(segment, data, batch_size=TOY.batch, privacy=budget, device="cpu")
        assert client.attach(ORDER, None)["across-batch"] is True
        if setting:
            why = r"has no epsilon: BatchNorm, .* \(here: the buffer 'norm.before' that examples"
            with pytest.raises(ClientError, match=f"{setting}.*{why}"):
                ask(client, 0, mask(3))
            assert spent(client) == 0
        else:
            ask(client, 0, mask(3))
            assert spent(client) == math.inf


def test_a_refused_batch_leaves_nothing_in_running_statistics() -> None:
    """Evaluation on public data, which needs no noise, would tell the batch's mean."""
    budget = PrivacyBudget(delta=DELTA, max_epsilon=1e9)
    client = client_of(toy=replace(TOY, batch_norm=True), privacy=budget)
    before = {name: value.clone() for name, value in client.weights().items()}
    with pytest.raises(ClientError, match="BatchNorm"):
        ask(client, 0, mask(3))
    assert all(torch.equal(value, before[name]) for name, value in client.weights().items())


class Centred(nn.Module):
    """Centres batches of one size."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs - inputs.mean(0) if len(inputs) == self.size else inputs


@pytest.mark.parametrize("size", [8, 16], ids=["8 of 12", "16 of 12"])
def test_what_only_a_whole_batch_shows_leaves_no_epsilon(size: int) -> None:
    """A trial of four examples would not show it."""
    segment, data = client_of().segment, client_of().batches.data
    segment.norm = Centred(size)
    budget = PrivacyBudget(delta=DELTA, max_epsilon=1e9)
    client = SplitClient(segment, data, batch_size=size, privacy=budget, device="cpu")
    assert client.attach(ORDER, None)["across-batch"] is True


class Gated(nn.Module):
    """Does something else under one weight only, which is no random one."""

    def __init__(self, otherwise: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.otherwise = otherwise

    def forward(self, inputs: Tensor) -> Tensor:
        return self.otherwise(inputs) if self.gate == 7 else inputs * self.gate


def centred(inputs: Tensor) -> Tensor:
    return inputs - inputs.mean(0)


def undefined(inputs: Tensor) -> Tensor:
    return inputs * torch.nan


@pytest.mark.parametrize(("otherwise", "mixes"), [(centred, True), (undefined, False)])
def test_the_weights_of_every_round_are_tried(
    otherwise: Callable[[Tensor], Tensor], mixes: bool
) -> None:
    """A server that chooses them learns nothing of the data from whether that can be done."""
    segment, data = client_of().segment, client_of().batches.data
    segment.norm = Gated(otherwise)
    budget = PrivacyBudget(delta=DELTA, max_epsilon=1e9, allow_averaging=True)
    client = SplitClient(segment, data, batch_size=TOY.batch, privacy=budget, device="cpu")
    for server_round, gate in ((1, 0.0), (2, 1.0), (3, 7.0)):
        weights = {**client.weights(), "norm.gate": torch.tensor(gate, dtype=torch.float64)}
        described = client.attach(replace(ORDER, server_round=server_round), weights)
        assert described.get("across-batch", False) == (mixes and gate == 7)


class Uncopied(nn.Identity):
    def __deepcopy__(self, memo: Any) -> Uncopied:
        raise RuntimeError("it has no copies")


class Unseeded(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + int.from_bytes(os.urandom(4), "big") / 2**32


@pytest.mark.parametrize("layer", [Uncopied(), Unseeded()], ids=["no copies", "unseeded"])
@pytest.mark.parametrize(
    ("limit", "setting"),
    [
        ({"max_epsilon": 8.0}, "max_epsilon = 8"),
        ({"allow_plain": False}, "allow_plain = false"),
        ({}, ""),
    ],
    ids=["max_epsilon", "allow_plain", "none"],
)
def test_a_budget_wants_to_know_whether_a_segment_mixes_its_batch(
    layer: nn.Module, limit: dict[str, Any], setting: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a budget a warning says that it could not be determined."""
    segment, data = client_of().segment, client_of().batches.data
    segment.norm = layer
    budget = PrivacyBudget(delta=DELTA, **limit)
    client = SplitClient(segment, data, batch_size=TOY.batch, privacy=budget, device="cpu")
    if setting:
        sentence = (
            f"^this client has {setting}, and it could not be determined whether its lower segment "
            r"mixes the examples of a batch, .* \(the client's log says why\): take one that "
            "can be copied"
        )
        with pytest.raises(ClientError, match=sentence):
            client.attach(ORDER, None)
    else:
        assert client.attach(ORDER, None)["num-examples"] == TOY.examples
    assert "is incomplete, and may miss that it does" in caplog.text


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"delta": 0.0}, "delta is 0.0; it must lie strictly between 0 and 1"),
        ({"delta": 1.0}, "delta is 1.0"),
        ({"delta": -0.1}, "delta is -0.1"),
        ({"delta": math.nan}, "delta is nan"),
        ({"max_epsilon": 0.0}, "max_epsilon is 0.0; a budget must be above 0"),
        ({"max_epsilon": -1.0}, "max_epsilon is -1.0; a budget must be above 0"),
        ({"max_epsilon": math.nan}, "max_epsilon is nan"),
        ({"relation": "swap"}, "relation is 'swap'; it must be one of replace, add-remove"),
        ({"allow_averaging": "no"}, "allow_averaging is 'no'; it must be True or False"),
        ({"allow_plain": "no"}, "allow_plain is 'no'; it must be True or False"),
        ({"public_evaluation": 1}, "public_evaluation is 1; it must be True or False"),
    ],
)
def test_an_impossible_budget_is_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        PrivacyBudget(**values)
    assert "\n" not in str(caught.value)


def test_neighbours_that_are_added_or_removed_cost_less() -> None:
    client = client_of(privacy=PrivacyBudget(delta=DELTA, relation="add-remove"))
    ask(client, 0, mask(3))
    assert spent(client) == pytest.approx(epsilon(3 / (2 * 20**2) + 0.25 / (2 * 10**2)))
