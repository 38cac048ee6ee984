"""Parts of a user's code without effect: each is named in the log, once per run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from flwr.app import Message, MetricRecord
from flwr.serverapp.strategy import FedAvg, Krum
from torch import Tensor

from flwr_splitmix.clients import SplitClient
from flwr_splitmix.links import StreamLink
from flwr_splitmix.schedule import constant
from flwr_splitmix.strategies import PSL, SFL, SplitStrategy
from flwr_splitmix.testing.toy import Toy, sgd

TOY = Toy(clients=3)


class Evaluates:
    """The method of Flower's strategies that nothing calls."""

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        raise AssertionError


class OwnSFL(Evaluates, SFL):
    """A strategy with that method."""


class OwnFedAvg(Evaluates, FedAvg):
    """An aggregator with that method."""


def warnings_about(
    caplog: pytest.LogCaptureFixture,
    word: str,
    kind: type[SplitStrategy] = SFL,
    client: type[SplitClient] = SplitClient,
    **options: Any,
) -> list[str]:
    """Return what a run of two rounds logs about a word."""
    strategy = kind(
        TOY.upper(), optimizer=sgd(0.1), schedule=constant, device="cpu", steps_per_round=1,
        **options,
    )  # fmt: skip
    caplog.clear()
    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        strategy.fit(TOY.make_clients(sgd(0.1), client), 2)
    return [record.getMessage() for record in caplog.records if word in record.getMessage()]


@pytest.mark.parametrize(
    ("strategy", "options", "named"),
    [
        (SFL, {}, []),
        (SFL, {"aggregator": Krum(min_train_nodes=1, min_available_nodes=1)}, []),
        (OwnSFL, {}, ["OwnSFL"]),
        (SFL, {"aggregator": OwnFedAvg(min_train_nodes=1, min_available_nodes=1)}, ["OwnFedAvg"]),
    ],
)
def test_an_aggregation_of_evaluations_that_nothing_calls(
    strategy: Any, options: dict[str, Any], named: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert warnings_about(caplog, "aggregate_evaluate", strategy, **options) == [
        f"{name}.aggregate_evaluate is never called: an evaluation is computed over the link, not "
        "from replies; an observer gets its result in on_round"
        for name in named
    ]


class Configures(FedAvg):
    """An aggregator that chooses who evaluates."""

    def configure_evaluate(self, *arguments: Any) -> Iterable[Message]:
        raise AssertionError


def test_the_evaluation_of_an_aggregator_that_nothing_calls(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options: dict[str, Any] = {"min_train_nodes": 1, "min_available_nodes": 1}
    for aggregator, name, reason in (
        (Configures(**options), "Configures.configure_evaluate", "an aggregator has no part in an"),
        (
            FedAvg(**options, evaluate_metrics_aggr_fn=lambda replies, key: MetricRecord()),
            "FedAvg.evaluate_metrics_aggr_fn",
            "an evaluation is computed over the link",
        ),
    ):
        (warning,) = warnings_about(caplog, "never called", aggregator=aggregator)
        assert warning.startswith(f"{name} is never called: {reason}")


class Old:
    """Methods that Flower's strategies had under other names."""

    def configure_fit(self, *arguments: Any) -> None:
        raise AssertionError

    def aggregate_fit(self, *arguments: Any) -> None:
        raise AssertionError


class OldSFL(Old, SFL):
    """A strategy with those methods."""


class OldFedAvg(Old, FedAvg):
    """An aggregator with those methods."""


def test_methods_of_an_older_flower_that_nothing_calls(caplog: pytest.LogCaptureFixture) -> None:
    aggregator = OldFedAvg(min_train_nodes=1, min_available_nodes=1)
    for name, warnings in (
        ("OldSFL", warnings_about(caplog, "_fit", OldSFL)),
        ("OldFedAvg", warnings_about(caplog, "_fit", aggregator=aggregator)),
    ):
        assert warnings == [
            f"{name}.{old}_fit is never called: in flwr.serverapp.strategy its name is {old}_train"
            for old in ("configure", "aggregate")
        ]


class Reports(SplitClient):
    """A client with metrics of its own."""

    def release(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        arrays, metrics = super().release()
        return arrays, {**metrics, "gradNorm": 1.0, "top 1\n": 0.5, "own-norm": 2.0}


@pytest.mark.parametrize("strategy", [PSL, SFL])
def test_metrics_that_their_names_exclude(strategy: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_about(caplog, "metrics", strategy, Reports) == [
        "left out of the run's metrics: 'gradNorm' and 'top 1'; the name of a client's metric "
        "begins with a lower-case letter, and has at most 40 more, digits, '_' or '-'"
    ]
    assert warnings_about(caplog, "metrics", strategy) == []


class ReportsLists(SplitClient):
    """A client with metrics that are lists."""

    def release(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        arrays, metrics = super().release()
        return arrays, {**metrics, "per-class": [1.0, 2.0], "own": 1.0, "Top": [1.0]}


@pytest.mark.parametrize("strategy", [PSL, SFL])
def test_metrics_that_are_lists(strategy: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_about(caplog, "list", strategy, ReportsLists) == [
        "left out of the run's rows: 'per-class'; a metric that is a list has no column: report "
        "each of its numbers as a metric"
    ]


class OneReports(SplitClient):
    """A client with metrics that the others do not have."""

    def release(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        arrays, metrics = super().release()
        assert self.order is not None
        return arrays, metrics | ({"gradNorm": 1.0} if self.order.client == 1 else {})


def test_a_single_client_floods_no_log(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_about(caplog, "gradNorm", PSL, OneReports) == []


def reports(**metrics: float) -> type[SplitClient]:
    """Return a client with these metrics, too."""

    class Own(SplitClient):
        def release(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
            arrays, others = super().release()
            return arrays, {**others, **{n.replace("__", "-"): m for n, m in metrics.items()}}

    return Own


@pytest.mark.parametrize("strategy", [PSL, SFL])
def test_metrics_that_share_a_column(strategy: Any, caplog: pytest.LogCaptureFixture) -> None:
    """One of the two is in no row."""
    assert warnings_about(caplog, "column", strategy, reports(own__norm=1.0, own_norm=2.0)) == [
        "the clients' metrics 'own-norm' and 'own_norm' share the column train_own_norm, which has "
        "the latter; give one another name"
    ]
    assert warnings_about(caplog, "column", strategy, reports(own__norm=1.0, norm=2.0)) == []


@pytest.mark.parametrize(
    ("metrics", "columns"),
    [
        ({"train_top1": 1.0}, {"train_top1": 1.0}),
        ({"train__top1": 1.0}, {"train_top1": 1.0}),
        ({"train_top1": 1.0, "top1": 2.0}, {"train_train_top1": 1.0, "train_top1": 2.0}),
        ({"train_epsilon": 1.0}, {"train_train_epsilon": 1.0}),
        ({"train_loss": 1.0, "train__loss": 2.0}, {"train_loss": 1.0}),
        ({"trained": 1.0}, {"train_trained": 1.0}),
    ],
)
def test_a_prefix_that_a_name_has_is_not_doubled(
    metrics: dict[str, float], columns: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    """But where that column is another metric's, or would be read as the run's epsilon."""
    strategy = PSL(TOY.upper(), device="cpu", steps_per_round=1)
    strategy.fit(TOY.make_clients(kind=reports(**metrics)), 1)
    (row,) = strategy.rows
    assert {name: row[name] for name in row if name.startswith("train_")} == columns
    assert "share the column" not in caplog.text


@pytest.mark.parametrize("strategy", [PSL, SFL])
def test_a_loss_of_clients_beside_the_servers(
    strategy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert warnings_about(caplog, "column", strategy, reports(train__loss=1.0, loss=2.0)) == [
        "the clients' metric 'train-loss' has no column: the loss of this run is computed at the "
        "server; give it another name"
    ]


def test_a_link_that_fit_does_not_use(caplog: pytest.LogCaptureFixture) -> None:
    """Its wire_dtype seems to round what fit passes on as it is."""
    strategy = PSL(TOY.upper(), device="cpu", steps_per_round=1, link=StreamLink(wire_dtype="int8"))
    clients = TOY.make_clients(sgd(0.1))
    for _ in range(2):
        strategy.fit(clients, 1)
    assert [message for message in caplog.messages if "link" in message] == [
        "PSL was given a StreamLink as its link, which fit does not use: clients of this process "
        "are called directly, and nothing is rounded on the way"
    ]
    assert warnings_about(caplog, "link") == []
