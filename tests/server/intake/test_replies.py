"""What is taken in of clients' replies at the end of a round: weights, numbers and means."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord

from flwr_splitmix.description import Description
from flwr_splitmix.links.link import Clients
from flwr_splitmix.server.aggregation.choice import fedavg
from flwr_splitmix.server.intake.replies import ReplyIntake
from tests.server.replies import reply_of


class Alone(Clients):
    """Clients that have only replied."""

    def _exchange(self, method: str, payloads: Any) -> Any:
        raise AssertionError


def sized(described: dict[int, Any], counts: list[Any], kind: type[Clients]) -> tuple[Clients, Any]:
    """Take in replies that are not averaged, with these numbers of examples and a loss each."""
    clients = kind(1, {c: Description(num_examples=n) for c, n in described.items()}, {}, None)
    metrics = [{} if n is None else {"num-examples": n} for n in counts]
    replies = [reply_of({}, {**client_metrics, "train-loss": 1.0}) for client_metrics in metrics]
    clients.replies = dict(zip(clients.nodes, replies, strict=True))
    return clients, ReplyIntake(ArrayRecord()).check_example_counts(clients)


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (0.5, "has 0.5 examples now, and reported 10 before"),
        (11, "has 11 examples now, and reported 10 before"),
        (math.nan, "has nan examples now, and reported 10 before"),
        ([10], "returned no num-examples, the number of its examples, in its metrics"),
        (None, "returned no num-examples, the number of its examples, in its metrics"),
    ],
    ids=str,
)
def test_another_number_of_examples_costs_its_client_where_nothing_is_averaged(
    number: Any, why: str
) -> None:
    """As a weight, half an example is 0, by whose sum a loss would be divided."""
    clients, means = sized({0: 10, 1: 10}, [10, number], Alone)
    assert clients.failures == {1: why}
    assert len(clients.replies) == 1
    assert means == {"train-loss": 1.0}
    assert sized({0: 10}, [number], Alone)[1] == {}


class BehindGroups(Alone):
    """Three nodes behind one mixing group."""

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(client for client in (0, 1, 2) if client not in self.failures)


@pytest.mark.parametrize("number", [0.5, 0, -1, math.inf, math.nan, 2.0**31], ids=str)
def test_a_node_behind_a_mixer_has_a_whole_number_of_examples(number: float) -> None:
    clients, means = sized({-1: 12}, [10, 2**31 - 1, number], BehindGroups)
    assert clients.failures == {2: f"has {number} examples; it must be 1 to 2147483647"}
    assert means == {"train-loss": 1.0}


LIKE = {"a": np.zeros((2, 3), np.float32), "count": np.array(5), "b": np.ones(4, np.float32)}


def checked(*replies: Message) -> Alone:
    """Check the replies of clients that began with `LIKE` and have 10 examples each."""
    clients = Alone(1, dict.fromkeys(range(len(replies)), Description(num_examples=10)), {}, None)
    clients.replies = dict(enumerate(replies))
    record = ArrayRecord({name: Array(array) for name, array in LIKE.items()})
    ReplyIntake(record).check(clients, record, robust=False)
    return clients


TEN = {"num-examples": 10}


def test_names_and_order_are_the_servers() -> None:
    """Otherwise an aggregator could skip the round for other names, or another order."""
    turned = {name: LIKE[name] for name in reversed(LIKE)}
    clients = checked(
        reply_of(turned, {**TEN, "x": 1}, ["mine", "also mine"]),
        reply_of(LIKE, {"x": 1, **TEN}),
    )
    assert clients.failures == {}
    for reply in clients.replies.values():
        assert list(reply.content.array_records) == ["arrays"]
        assert list(reply.content.array_records["arrays"]) == list(LIKE)
        assert list(reply.content.metric_records) == ["metrics"]
    arrays, _ = fedavg().aggregate_train(1, list(clients.replies.values()))
    assert arrays is not None


def test_a_record_that_a_mod_adds_costs_nobody() -> None:
    """It has metrics of its own, which nobody asked for."""
    replies = [reply_of(LIKE, {**TEN, "x": 1}) for _ in range(2)]
    for reply in replies:
        reply.content["extra"] = MetricRecord({"seconds": 2.0, "num-examples": 5})
    clients = checked(*replies)
    assert clients.failures == {}
    for reply in clients.replies.values():
        (metrics,) = reply.content.metric_records.values()
        assert dict(metrics) == {**TEN, "x": 1, "seconds": 2.0}


def test_who_had_nothing_to_predict_stays_in_the_average() -> None:
    metrics = {**TEN, "train-loss": 1.0}
    clients = checked(reply_of(LIKE, metrics), reply_of(LIKE, metrics), reply_of(LIKE, TEN))
    assert clients.failures == {}
    assert len(clients.replies) == 3


def lies_of_its_shape() -> Array:
    honest = Array(np.zeros((7, 7), np.float32))
    return Array(dtype="float32", shape=(2, 3), stype=honest.stype, data=honest.data)


@pytest.mark.parametrize(
    "other",
    [
        lies_of_its_shape(),
        Array(dtype="float32", shape=(2, 3), stype="numpy.ndarray", data=b"no array"),
        Array(dtype="float32", shape=(2, 3), stype="other", data=b""),
        Array(np.zeros((2, 3), np.complex64)),
        Array(np.full((2, 3), "x")),
        Array(np.zeros((3, 2), np.float32)),
    ],
    ids=["another shape than it says", "no array", "another kind", "complex", "text", "shape"],
)
def test_arrays_that_are_none_cost_their_client_only(other: Array) -> None:
    """Such as a complex number, or bytes that are not an array."""
    clients = checked(reply_of(LIKE, TEN), reply_of({**LIKE, "a": other}, TEN))
    assert clients.alive == (0,)
    assert clients.failures[1].startswith("returned ")


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (reply_of({name: LIKE[name] for name in ("a", "b")}, TEN), "it lacks count ()"),
        (reply_of({**LIKE, "\n": np.zeros(2, np.float32)}, TEN), r"it also has \n (2,)"),
        (
            reply_of({"a": LIKE["a"], "count": LIKE["count"], "c": LIKE["b"]}, TEN),
            f"it lacks b {LIKE['b'].shape}; it also has c {LIKE['b'].shape}",
        ),
        (
            reply_of({**LIKE, "a": np.zeros((3, 2), np.float32)}, TEN),
            "it has a (3, 2) in place of (2, 3)",
        ),
    ],
    ids=["fewer", "more", "others", "another shape"],
)
def test_weights_of_other_names_or_shapes_cost_their_client_only(
    other: Message, difference: str
) -> None:
    clients = checked(reply_of(LIKE, TEN), other)
    assert clients.failures == {1: f"returned other weights than it was given: {difference}"}


def test_counters_may_be_large_and_weights_may_not() -> None:
    large = {**LIKE, "count": np.array(2_000_000)}
    hidden = {**LIKE, "a": np.full((2, 3), 2_000_000)}  # integers in the place of weights
    clients = checked(reply_of(large, TEN), reply_of(hidden, TEN))
    assert clients.failures == {1: "returned weights with numbers of another kind"}


@pytest.mark.parametrize("dtype", [np.longdouble, np.float64, np.float16])
def test_one_clients_width_of_numbers_is_not_everybodys(dtype: Any) -> None:
    """No node could read an average that a longdouble in one reply would make."""
    odd = {name: value.astype(dtype) for name, value in LIKE.items() if value.dtype.kind == "f"}
    clients = checked(reply_of({**LIKE, **odd}, TEN), reply_of(LIKE, TEN))
    assert clients.failures == {}
    for reply in clients.replies.values():
        arrays = next(iter(reply.content.array_records.values()))
        assert {name: array.numpy().dtype for name, array in arrays.items()} == {
            name: value.dtype for name, value in LIKE.items()
        }


@pytest.mark.parametrize("large", [10**30, [10**30, 1]], ids=["number", "list"])
def test_a_large_whole_number_is_averaged(large: int | list[int]) -> None:
    """NumPy has no integers so large."""
    clients = checked(reply_of(LIKE, {**TEN, "own": large}), reply_of(LIKE, {**TEN, "own": large}))
    assert clients.failures == {}
    _, metrics = fedavg().aggregate_train(1, list(clients.replies.values()))
    assert metrics is not None
    assert metrics["own"] == pytest.approx(large)


@pytest.mark.parametrize("beyond", [10**400, [1, 10**400]], ids=["number", "list"])
def test_a_whole_number_that_no_float_can_hold_costs_its_client_only(
    beyond: int | list[int],
) -> None:
    usual = [1, 2] if isinstance(beyond, list) else 1
    usual_replies = [reply_of(LIKE, {**TEN, "own": usual}) for _ in range(2)]
    clients = checked(*usual_replies, reply_of(LIKE, {**TEN, "own": beyond}))
    assert clients.failures == {2: "returned metrics that are NaN or infinite"}
    assert set(clients.replies) == {0, 1}


def test_a_number_of_examples_that_python_does_not_print_costs_its_client_only() -> None:
    clients, means = sized({0: 10, 1: 10}, [10, 10**5000], Alone)
    assert clients.failures == {1: "has more than 2147483647 examples now, and reported 10 before"}
    assert means == {"train-loss": 1.0}
    behind, means = sized({-1: 12}, [10, 10**5000, 10], BehindGroups)
    assert behind.failures == {1: "has more than 2147483647 examples; it must be 1 to 2147483647"}
    assert means == {"train-loss": 1.0}
