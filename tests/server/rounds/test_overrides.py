"""Methods of Flower's strategies that a user's subclass of ours overrides: what they may return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord

from flwr_splitmix.links import LinkError
from flwr_splitmix.server.aggregation import AggregatorError, lower
from flwr_splitmix.server.rounds import round as one_round
from flwr_splitmix.strategies import PSL, SFL, SplitStrategy
from flwr_splitmix.testing.toy import Toy, sgd

Method = Callable[..., Any]


def overriding(
    kind: type[SplitStrategy], name: str, change: Callable[[Any], Any]
) -> type[SplitStrategy]:
    """Return a subclass whose method returns something made of what the overridden one returns."""

    def method(self: SplitStrategy, *arguments: Any) -> Any:
        return change(getattr(kind, name)(self, *arguments))

    return type("Own", (kind,), {name: method})


def rows(kind: type[SplitStrategy], **options: Any) -> list[tuple[Any, Any]]:
    toy = Toy(tests=4)
    strategy = kind(toy.upper(), device="cpu", steps_per_round=1, optimizer=sgd(0.1), **options)
    strategy.fit(toy.make_clients(sgd(0.1)), 2)
    return [(row["loss"], row["accuracy"]) for row in strategy.rows]


def each(returned: Any) -> Any:
    yield from returned


def with_nan(arrays: ArrayRecord) -> ArrayRecord:
    return ArrayRecord({n: Array(np.full_like(a.numpy(), np.nan)) for n, a in arrays.items()})


def test_messages_may_come_from_a_generator() -> None:
    """Flower's type is an iterable, which may be gone after one loop."""
    expected = rows(SFL, evaluation="federated")
    for name in ("configure_train", "configure_evaluate"):
        assert rows(overriding(SFL, name, each), evaluation="federated") == expected


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("configure_train", lambda _: None, "configure_train of Own returns None; expected mess"),
        ("configure_train", lambda _: "all", "configure_train of Own returns a str; expected"),
        ("configure_train", lambda _: [], "Own asked no node to train in round 1"),
        ("configure_evaluate", lambda _: None, "configure_evaluate of Own returns None; expected"),
        ("aggregate_train", lambda _: None, "aggregate_train of Own returns no arrays, so that"),
        ("aggregate_train", lambda pair: (None, pair[1]), "of Own returns no arrays, so that"),
        ("aggregate_train", lambda pair: pair[0], "of Own returns an ArrayRecord; expected a"),
        (
            "aggregate_train",
            lambda pair: (with_nan(pair[0]), pair[1]),
            "Own returns NaN or infinite",
        ),
        ("aggregate_train", lambda pair: (pair[0], {}), "a dict in its pair where MetricRecord"),
    ],
)
def test_what_an_override_returns_is_named(name: str, change: Method, sentence: str) -> None:
    """Otherwise it would be an error about something else, or nothing would learn, silently."""
    with pytest.raises(AggregatorError, match=sentence):
        rows(overriding(SFL, name, change), evaluation="federated")


def test_a_method_that_is_set_on_the_object_is_checked_too() -> None:
    """A missing metric would make NaN a round later, as if by the clients' fault."""
    toy = Toy(tests=4)
    strategy = SFL(toy.upper(), device="cpu", steps_per_round=1, optimizer=sgd(0.1))
    aggregate = strategy.aggregate_train

    def without_metrics(*arguments: Any) -> Any:
        return aggregate(*arguments)[0], {}

    strategy.aggregate_train = without_metrics  # type: ignore[assignment,method-assign]
    with pytest.raises(AggregatorError, match="a dict in its pair where MetricRecord"):
        strategy.fit(toy.make_clients(sgd(0.1)), 1)


def test_an_aggregation_is_checked_by_whoever_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is read as a whole twice."""
    checked: list[str] = []
    for module in (lower, one_round):
        monkeypatch.setattr(
            module, "check_finite", lambda _, strategy, *__: checked.append(type(strategy).__name__)
        )
    rows(SFL)
    assert checked == ["FedAvg"] * 2
    checked.clear()
    rows(overriding(SFL, "aggregate_train", lambda pair: pair))
    assert checked == ["FedAvg", "Own"] * 2


def test_a_start_with_flowers_loop_is_told_its_place() -> None:
    """Flower's examples override `start` so; nothing wraps this strategy."""

    class Own(SFL):
        def start(self, grid: Any, initial_arrays: ArrayRecord, *_: Any, **__: Any) -> Any:
            return self.configure_train(1, initial_arrays, ConfigRecord(), grid)

    strategy = Own(Toy().upper(), device="cpu")
    with pytest.raises(LinkError, match=r"its own start\(\) has not called super\(\)"):
        strategy.start(None, ArrayRecord())


def test_without_averaging_nothing_need_be_returned() -> None:
    for change in (lambda _: None, lambda _: (ArrayRecord(), None)):
        assert rows(overriding(PSL, "aggregate_train", change)) == rows(PSL)


def test_no_messages_are_no_evaluation() -> None:
    kind = overriding(SFL, "configure_evaluate", lambda _: [])
    assert [accuracy for _, accuracy in rows(kind, evaluation="federated")] == [None, None]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda result: {"accuracy": result.accuracy}, "returns a dict"),
        (lambda result: result.accuracy, "returns a float"),
        (lambda result: type(result), "returns the class EvaluationResult"),
    ],
)
def test_what_an_evaluation_of_ones_own_returns_is_named(change: Method, message: str) -> None:
    with pytest.raises(
        TypeError, match=f"evaluate_round of Own {message}; expected an EvaluationR"
    ):
        rows(overriding(SFL, "evaluate_round", change), evaluation="federated")


def test_an_evaluation_of_ones_own_may_return_nothing() -> None:
    kind = overriding(SFL, "evaluate_round", lambda _: None)
    assert [accuracy for _, accuracy in rows(kind, evaluation="federated")] == [None, None]
