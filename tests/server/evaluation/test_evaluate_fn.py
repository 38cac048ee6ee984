"""What an evaluate_fn may return, and of what central evaluation is made."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import MetricRecord
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from flwr_splitmix.strategies import SFL, central_evaluation
from flwr_splitmix.testing.toy import Toy

TOY = Toy(clients=2, tests=4)


def rows(evaluate: Callable[..., Any]) -> tuple[Any, Any]:
    """Return the metrics of the last round in Flower's result, and its row."""
    strategy = SFL(TOY.upper(), device="cpu", steps_per_round=1)
    result = strategy.fit(TOY.make_clients(), 1, evaluate_fn=evaluate)
    return result.evaluate_metrics_serverapp[1], strategy.rows[-1]


@pytest.mark.parametrize(
    "accuracy", [0.25, np.float32(0.25), torch.tensor(0.25), np.array(0.25)], ids=repr
)
def test_an_accuracy_of_any_kind_of_number_is_kept(accuracy: Any) -> None:
    metrics, row = rows(lambda server_round, arrays: {"accuracy": accuracy, "correct": np.int64(3)})
    assert isinstance(metrics, MetricRecord)
    assert dict(metrics) == {"accuracy": 0.25, "correct": 3}
    assert (row["accuracy"], row["accuracy_kind"]) == (0.25, "central")
    assert row["eval_loss"] is None


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ((0.5, {"accuracy": 0.3}), "evaluate_fn returned a tuple; expected a MetricRecord with"),
        (0.3, "evaluate_fn returned a float; expected a MetricRecord"),
        ({"accuracy": torch.zeros(2)}, "evaluate_fn returned 'accuracy' as a Tensor; metrics are"),
        ({"accuracy": "0.3"}, "evaluate_fn returned 'accuracy' as a str; metrics are numbers"),
    ],
)
def test_what_is_no_metric_is_named(returned: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        rows(lambda server_round, arrays: returned)


@pytest.mark.parametrize(
    ("accuracy", "times"), [(71.5, 1), (-0.1, 1), (1, 0), (0.0, 0), (math.nan, 0)]
)
def test_an_accuracy_that_is_no_share_is_told_once(
    accuracy: float, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    """71.5 would become a top-1 of 7150 %."""
    strategy = SFL(TOY.upper(), device="cpu", steps_per_round=1)
    strategy.fit(TOY.make_clients(), 3, evaluate_fn=lambda *_: MetricRecord({"accuracy": accuracy}))
    warnings = [text for text in caplog.messages if "divide percentages by 100" in text]
    assert len(warnings) == times
    assert all(f"round 1: evaluate_fn returned an accuracy of {accuracy:g}" in s for s in warnings)


@pytest.mark.parametrize(
    ("metrics", "columns"),
    [
        ({"eval_f1": 1.0, "eval-auc": 2.0}, {"eval_f1": 1.0, "eval_auc": 2.0, "eval_loss": None}),
        ({"eval_f1": 1.0, "f1": 2.0}, {"eval_eval_f1": 1.0, "eval_f1": 2.0, "eval_loss": None}),
        ({"eval_loss": 1.0}, {"eval_loss": 1.0}),
        ({"eval_loss": 1.0, "loss": 2.0}, {"eval_eval_loss": 1.0, "eval_loss": 2.0}),
    ],
)
def test_a_prefix_that_a_name_has_is_not_doubled(
    metrics: dict[str, float], columns: dict[str, float | None]
) -> None:
    """Flower's apps name their metrics so."""
    _, row = rows(lambda *_: {"accuracy": 0.5, **metrics})
    assert {name: row[name] for name in row if name.startswith("eval_")} == columns


def test_metrics_that_are_lists_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Flower's result has them."""
    metrics = MetricRecord({"accuracy": 0.5, "per-class": [0.25, 0.75], "f1": 0.5})
    strategy = SFL(TOY.upper(), device="cpu", steps_per_round=1)
    result = strategy.fit(TOY.make_clients(), 3, evaluate_fn=lambda *_: metrics)
    assert result.evaluate_metrics_serverapp[3]["per-class"] == [0.25, 0.75]
    assert [text for text in caplog.messages if "list" in text] == [
        "round 1: the run's rows leave out 'per-class' of evaluate_fn; a metric that is a list "
        "has no column: report each of its numbers as a metric"
    ]


def test_an_evaluation_beside_a_central_one_has_columns_of_its_own() -> None:
    rows: list[dict[str, Any]] = []
    evaluate: Any
    for evaluate in (None, lambda *_: {"accuracy": 0.25, "loss": 1.5, "f1": 0.1}):
        strategy = SFL(TOY.upper(), device="cpu", steps_per_round=1, evaluation="federated")
        strategy.fit(TOY.make_clients(), 1, evaluate_fn=evaluate)
        rows += strategy.rows
    alone, row = rows
    assert alone["accuracy"] is not None
    assert "eval_federated_accuracy" not in alone
    assert (row["accuracy"], row["accuracy_kind"], row["eval_loss"]) == (0.25, "central", 1.5)
    assert row["eval_f1"] == pytest.approx(0.1)
    assert row["eval_federated_accuracy"] == alone["accuracy"]
    assert row["eval_federated_loss"] == alone["eval_loss"]


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"upper": TOY.upper()}, "upper is ToyUpper; expected .* strategy.upper"),
        ({"lower": dict(TOY.lower().state_dict())}, "lower is dict; expected a module like"),
        ({"data": DataLoader(TOY.data(0))}, "data is DataLoader; .* data=loader.dataset"),
        ({"data": Streamed()}, "data is Streamed; expected a map-style data set"),
        (
            {"data": (TOY.data(0).inputs, TOY.data(0).labels)},
            r"^data is a tuple of arrays; .*TensorDataset\(inputs",
        ),
    ],
)
def test_arguments_of_central_evaluation(changes: dict[str, Any], message: str) -> None:
    arguments = {"upper": SFL(TOY.upper()).upper, "lower": TOY.lower(), "data": TOY.test_data(0)}
    with pytest.raises(TypeError, match=message):
        central_evaluation(**{**arguments, **changes})


@pytest.mark.parametrize("shared", ["weight", "buffer"])
def test_a_lower_segment_that_shares_tensors_with_the_upper_one_is_refused(shared: str) -> None:
    """The upper segment would be scored with the clients' weights in place of its own."""
    lower, upper = TOY.lower(), TOY.upper()
    if shared == "weight":
        upper.tied = next(lower.parameters())
    else:
        lower.register_buffer("scale", torch.ones(()))
        upper.register_buffer("scale", lower.get_buffer("scale"))
    strategy = SFL(upper, device="cpu")
    data = TOY.test_data(0)
    assert data is not None
    with pytest.raises(ValueError, match=r"lower shares weights with the upper .*copy\.deepcopy"):
        central_evaluation(strategy.upper, lower, data)
    central_evaluation(strategy.upper, copy.deepcopy(lower), data)


@pytest.mark.parametrize("lower", [nn.Sequential(TOY.lower()), Toy(width=5).lower()])
def test_another_lower_segment_than_the_clients_is_named(lower: nn.Module) -> None:
    strategy = SFL(TOY.upper(), device="cpu", steps_per_round=1)
    data = TOY.test_data(0)
    assert data is not None
    evaluate = central_evaluation(strategy.upper, lower, data)
    with pytest.raises(ValueError, match="lower segment does not fit central_evaluation's: it"):
        strategy.fit(TOY.make_clients(), 1, evaluate_fn=evaluate)


def test_further_numbers_become_columns_of_the_row() -> None:
    """The page promises columns for all that is in Flower's result."""
    _, row = rows(lambda server_round, arrays: {"accuracy": 0.5, "loss": 1.0, "f1-macro": 0.75})
    assert (row["eval_loss"], row["eval_f1_macro"]) == (1.0, 0.75)


def test_metrics_without_an_accuracy_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        metrics, row = rows(lambda server_round, arrays: {"f1": 0.75})
    assert "round 1: evaluate_fn returned no 'accuracy', so the run's rows have none" in caplog.text
    assert (dict(metrics), row["accuracy"]) == ({"f1": 0.75}, None)


def test_they_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A run of 100 rounds does not have 100 warnings."""
    strategy = SFL(TOY.upper(), device="cpu", steps_per_round=1)
    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        result = strategy.fit(
            TOY.make_clients(), 3, evaluate_fn=lambda *of: MetricRecord({"auc": 0.75})
        )
    assert caplog.text.count("evaluate_fn returned no 'accuracy'") == 1
    assert list(result.evaluate_metrics_serverapp) == [1, 2, 3]
