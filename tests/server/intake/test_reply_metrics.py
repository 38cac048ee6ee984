"""Which of the metrics in clients' replies are averaged, and how."""

from __future__ import annotations

import math
from typing import Any

import pytest

from flwr_splitmix.server.intake.checks import UploadError
from flwr_splitmix.server.intake.reply_metrics import client_means, common_metrics, read_metrics
from tests.server.replies import reply_of


@pytest.mark.parametrize(("size", "name"), [("num-examples", "own"), ("num-steps", "train-loss")])
def test_means_of_what_clients_say_have_the_same_cap(size: str, name: str) -> None:
    metrics: list[dict[str, Any]] = [{"num-examples": 10, size: 10, name: 1.0} for _ in range(4)]
    metrics += [{"num-examples": 10, size: 2**31 - 1, name: 0.0}]
    assert client_means([reply_of({}, entry) for entry in metrics])[name] == pytest.approx(4 / 104)


def test_the_training_loss_is_the_mean_over_the_steps_that_the_trunk_learned_from() -> None:
    """A client with ten times the texts does not count ten times, if it sends as many batches."""
    metrics: list[dict[str, Any]] = [
        {"num-examples": 12, "num-steps": 30, "train-loss": 0.2, "own": 0.2},
        {"num-examples": 120, "num-steps": 30, "train-loss": 1.3, "own": 1.3},
        {"num-examples": 60, "num-steps": 15, "train-loss": 0.5, "own": 0.5},
    ]
    means = client_means([reply_of({}, entry) for entry in metrics])
    assert means["train-loss"] == pytest.approx((0.2 + 1.3 + 0.5 / 2) / 2.5)
    assert means["own"] == pytest.approx((12 * 0.2 + 120 * 1.3 + 60 * 0.5) / 192)


def test_who_says_that_it_has_no_examples_is_in_no_mean() -> None:
    nothing = reply_of({}, {"num-examples": 0, "train-loss": 9.0})
    assert client_means([nothing]) == {}
    assert client_means([nothing, reply_of({}, {"num-examples": 2, "own": 1.0})]) == {"own": 1.0}


@pytest.mark.parametrize(
    ("epsilons", "largest"),
    [
        ([1.0, 2.0, 3.0], 3.0),
        ([1.0, math.inf, 3.0], math.inf),
        ([math.inf] * 3, math.inf),
        ([1.0, math.nan, 3.0], math.inf),
    ],
    ids=str,
)
def test_an_epsilon_without_a_bound_is_the_largest(epsilons: list[float], largest: float) -> None:
    replies = [reply_of({}, {"num-examples": 1, "epsilon": epsilon}) for epsilon in epsilons]
    assert client_means(replies) == {"epsilon": largest}


@pytest.mark.parametrize("name", ["epsilon_greedy", "epsilons"])
def test_only_epsilons_are_taken_for_epsilons(name: str) -> None:
    """A rate of exploration, though most clients have one, is none."""
    replies = [reply_of({}, {"num-examples": 1, name: number}) for number in (0.1, 0.3, math.inf)]
    assert client_means(replies) == {name: pytest.approx(0.2)}


def test_a_number_that_is_none_does_not_take_the_mean_from_all() -> None:
    losses = (1.0, 3.0, math.nan, math.inf)
    replies = [reply_of({}, {"num-examples": 1, "train-loss": loss}) for loss in losses]
    assert client_means(replies) == {"train-loss": 2.0}


def test_most_clients_decide_what_is_averaged() -> None:
    replies = [reply_of({}, {"num-examples": 1, "train-loss": float(i)}) for i in range(3)]
    replies.append(reply_of({}, {"num-examples": 1, "own": 7.0}))
    assert client_means(replies) == {"train-loss": 1.0}


def test_half_an_example_is_no_weight() -> None:
    half = reply_of({}, {"num-examples": 0.5, "train-loss": 1.0})
    assert client_means([half]) == {}


@pytest.mark.parametrize("beyond", [10**400, -(10**400), 10**5000], ids=["400", "minus", "5000"])
def test_a_whole_number_that_no_float_can_hold_is_in_no_mean(beyond: int) -> None:
    """Its OverflowError would end the `fit`, and name no client."""
    replies = [reply_of({}, {"num-examples": 1, "own": number}) for number in (1, 3, beyond)]
    assert client_means(replies) == {"own": 2.0}


def test_whole_numbers_that_only_their_sum_takes_beyond_all_floats_have_no_mean() -> None:
    most = int(1.5e308)
    replies = [reply_of({}, {"num-examples": 1, "own": number}) for number in (most, most, 0.5)]
    assert client_means(replies) == {}


def test_what_a_reply_lacks_is_named() -> None:
    """If no client returns num-examples, none is told that most do."""
    without = [reply_of({}, {"own": 1.0}) for _ in range(2)]
    with pytest.raises(UploadError, match="returned no num-examples, the number of its examples"):
        read_metrics(without[0], common_metrics(without), 4)
    others = [reply_of({}, {"num-examples": 4, "own": 1.0}) for _ in range(2)]
    lacks = reply_of({}, {"num-examples": 4})
    with pytest.raises(UploadError, match="most clients did: 'own' is missing"):
        read_metrics(lacks, common_metrics([*others, lacks]), 4)
