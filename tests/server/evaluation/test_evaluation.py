"""Federated, benchmark and central evaluation against numbers computed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord
from torch import Tensor

from flwr_splitmix.clients import SplitClient, exchange
from flwr_splitmix.events import Exchange, RoundDone
from flwr_splitmix.links.arrays import to_tensors
from flwr_splitmix.observers import Observer
from flwr_splitmix.schedule import constant
from flwr_splitmix.server.evaluation import split as module
from flwr_splitmix.server.evaluation.over_link import spread_of
from flwr_splitmix.strategies import PSL, SFL, SplitStrategy, central_evaluation
from flwr_splitmix.testing.toy import Examples, Toy, sgd

TOY = Toy(clients=3, tests=7)


class Rounds(Observer):
    def __init__(self) -> None:
        self.events: list[RoundDone] = []

    def on_round(self, event: RoundDone) -> None:
        self.events.append(event)


def score(lower: torch.nn.Module, upper: torch.nn.Module, data: Any) -> tuple[Tensor, Tensor]:
    """Hits and losses, example by example."""
    with torch.no_grad():
        logits = upper.eval()(lower.eval()(data.inputs))
    losses = F.cross_entropy(logits, data.labels, reduction="none")
    return logits.argmax(1) == data.labels, losses


def fit(clients: Any, rounds: int = 1, kind: Any = PSL, **options: Any) -> tuple[Any, Rounds]:
    observer = Rounds()
    strategy = kind(
        TOY.upper(), optimizer=sgd(0.1), schedule=constant, device="cpu", observers=[observer],
        **options,
    )  # fmt: skip
    strategy.fit(clients, rounds)
    return strategy, observer


def test_federated_evaluation_weights_each_pair_by_its_test_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TEST_BATCH", 3)  # several exchanges, the last one short
    clients = TOY.make_clients(sgd(0.1))
    sizes = (7, 4, 1)
    for client, size in zip(clients, sizes, strict=True):
        data = client.tests["federated"]
        assert isinstance(data, Examples)
        client.tests["federated"] = Examples(data.inputs[:size], data.labels[:size])
    strategy, observer = fit(clients, evaluation="federated")
    evaluation = observer.events[-1].evaluation
    assert evaluation is not None
    parts = [score(c.segment, strategy.upper.module, c.tests["federated"]) for c in clients]
    each = [float(hits.double().mean()) for hits, _ in parts]
    assert evaluation.kind == "federated"
    assert evaluation.examples == 12
    assert evaluation.accuracy == pytest.approx(np.average(each, weights=sizes))
    assert evaluation.loss == pytest.approx(
        float(torch.cat([p[1] for p in parts]).mean()), rel=1e-5
    )
    mean = np.average(each, weights=sizes)
    spread = np.sqrt(np.average((np.array(each) - mean) ** 2, weights=sizes))
    assert evaluation.spread == pytest.approx(spread)


class Calls(Observer):
    """Keeps which clients were asked for test examples by each call."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self._sending = False

    def on_exchange(self, event: Exchange) -> None:
        if event.method != "encode_test":
            return
        if event.direction == "down":
            if not self._sending:
                self.groups.append([])
            self.groups[-1].append(event.client)
        self._sending = event.direction == "down"


def test_clients_are_asked_in_groups_if_their_tests_are_more_than_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All at once, a thousand clients' tests take 12 GB; the result is the same, bit by bit."""
    monkeypatch.setattr(module, "TEST_BATCH", 6)
    toy = replace(TOY, clients=5)

    def run() -> tuple[list[list[int]], Any]:
        calls = Calls()
        options: Any = {"evaluation": "federated", "observers": [calls]}
        strategy = PSL(toy.upper(), optimizer=sgd(0.1), device="cpu", **options)
        strategy.fit(toy.make_clients(sgd(0.1)), 1)
        (row,) = strategy.rows
        return calls.groups, [row[name] for name in ("accuracy", "eval_loss", "accuracy_spread")]

    groups, result = run()
    assert groups == [[0, 1, 2, 3, 4]] * 2
    monkeypatch.setattr(module, "AT_ONCE", 1)
    # Then as many as a training step holds: it has 5 batches of 4, and a test batch has 6.
    assert run() == ([[0, 1, 2], [3, 4]] * 2, result)


def test_the_spread_is_that_of_examples_and_not_of_clients() -> None:
    assert spread_of([1.0, 0.0], [3, 1]) == pytest.approx(np.sqrt(3) / 4)  # a mean of 3/4
    assert spread_of([0.8, 0.2, 0.8], [5, 0, 7]) == pytest.approx(0)


def test_benchmark_evaluation_is_the_mean_over_pairs_on_common_data() -> None:
    common = TOY.test_data(0)
    clients = TOY.make_clients(sgd(0.1), benchmark_data=common)
    strategy, observer = fit(clients, evaluation="benchmark")
    evaluation = observer.events[-1].evaluation
    assert evaluation is not None
    each = [
        float(score(c.segment, strategy.upper.module, common)[0].double().mean()) for c in clients
    ]
    assert (evaluation.kind, evaluation.examples) == ("benchmark", 21)
    assert evaluation.accuracy == pytest.approx(np.mean(each))
    assert evaluation.spread == pytest.approx(np.std(each))


def test_central_evaluation_scores_the_average() -> None:
    data, observer = TOY.test_data(0), Rounds()
    assert data is not None
    strategy = SFL(TOY.upper(), optimizer=sgd(0.1), device="cpu", observers=[observer])
    lower = TOY.lower()
    evaluate = central_evaluation(strategy.upper, lower, data)
    result = strategy.fit(TOY.make_clients(sgd(0.1)), 2, evaluate_fn=evaluate)
    for parameter, fresh in zip(lower.parameters(), TOY.lower().parameters(), strict=True):
        assert torch.equal(parameter, fresh)
    lower.load_state_dict(to_tensors(result.arrays))
    hits, losses = score(lower, strategy.upper.module, data)
    record = result.evaluate_metrics_serverapp[2]
    assert record["accuracy"] == pytest.approx(float(hits.double().mean()))
    assert record["loss"] == pytest.approx(float(losses.mean()), rel=1e-5)
    assert observer.events[-1].evaluation is not None
    assert observer.events[-1].evaluation.kind == "central"


def test_central_evaluation_with_a_clients_own_segment_undoes_nothing() -> None:
    def trained(evaluated: bool) -> list[torch.Tensor]:
        strategy = PSL(TOY.upper(), optimizer=sgd(0.1), device="cpu")
        clients = TOY.make_clients(sgd(0.1))
        data = TOY.test_data(0)
        assert data is not None
        evaluate = central_evaluation(strategy.upper, clients[0].segment, data)
        strategy.fit(clients, 2, evaluate_fn=evaluate if evaluated else None)
        return [p.detach().clone() for p in clients[0].segment.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(trained(True), trained(False), strict=True))


@pytest.mark.parametrize("kind", [PSL, SFL])
def test_a_warning_says_that_without_averaging_the_initial_lower_segment_is_evaluated(
    kind: type[SplitStrategy], caplog: pytest.LogCaptureFixture
) -> None:
    strategy = kind(TOY.upper(), device="cpu")

    def evaluate(server_round: int, arrays: ArrayRecord) -> None:
        """Score nothing."""

    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        strategy.fit(TOY.make_clients(), 1, evaluate_fn=evaluate)
    assert ("initial weights in every round" in caplog.text) is (kind is PSL)


def test_evaluation_comes_when_it_is_due_and_after_the_last_round() -> None:
    _, observer = fit(TOY.make_clients(), 5, evaluation="federated", evaluate_every=2)
    assert [e.evaluation is not None for e in observer.events] == [False, True, False, True, True]


@pytest.mark.parametrize(
    ("kind", "argument"), [("federated", "test_data"), ("benchmark", "benchmark_data")]
)
def test_a_warning_says_that_no_client_has_anything_to_evaluate(
    kind: str, argument: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        _, observer = fit(Toy(clients=3).make_clients(), evaluation=kind)
    assert observer.events[-1].evaluation is None
    assert f"no client has {kind} test data; give clients {argument}" in caplog.text


def test_evaluation_changes_nothing() -> None:
    with_it, without = TOY.make_clients(sgd(0.1)), TOY.make_clients(sgd(0.1))
    fit(with_it, 3, evaluation="federated")
    fit(without, 3)
    for a, b in zip(with_it, without, strict=True):
        for name, tensor in a.segment.state_dict().items():
            assert torch.equal(tensor, b.segment.state_dict()[name]), name


class Boaster(SplitClient):
    """Says of its tests what is not a number."""

    def attach(self, *arguments: Any) -> dict[str, Any]:
        return {**super().attach(*arguments), "federated-examples": 10**40}


def test_a_client_that_says_nonsense_of_its_tests_is_left_out() -> None:
    clients = [*TOY.make_clients()[:2], TOY.make_clients(kind=Boaster)[2]]
    _, observer = fit(clients, evaluation="federated")
    evaluation = observer.events[-1].evaluation
    assert evaluation is not None
    assert evaluation.examples == 14  # of the two others, seven each


class Liar(SplitClient):
    """Trains well and sends nonsense when it is tested."""

    lie: Any = None

    @exchange
    def encode_test(self, **payload: Any) -> dict[str, Any]:
        return {**super().encode_test(**payload), **(self.lie or {})}


@pytest.mark.parametrize(
    "lie",
    [
        {"smashed": [torch.zeros(7, 6, 4, dtype=torch.float64)]},
        {"smashed": [torch.full((7, 6, 3), float("nan"), dtype=torch.float64)]},
        {"smashed": None},
        {"labels": torch.full((7,), 99)},
        {"labels": "0"},
    ],
    ids=["shape", "nan", "none", "class", "text"],
)
def test_nonsense_in_evaluation_costs_its_own_contribution_only(lie: dict[str, Any]) -> None:
    clients = TOY.make_clients(kind=Liar)
    clients[1].lie = lie  # type: ignore[attr-defined]
    _, observer = fit(clients, 2, evaluation="federated")
    assert len(observer.events) == 2
    for event in observer.events:
        assert event.clients_alive == 3
        assert event.evaluation is not None
        assert event.evaluation.examples == 14


def test_test_sets_that_cannot_be_scored_are_refused() -> None:
    strategy = PSL(TOY.upper(), device="cpu")
    empty = Examples(torch.zeros(0, 6, 4), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="the test set is empty"):
        central_evaluation(strategy.upper, TOY.lower(), empty)
    inputs = torch.zeros(2, 6, 4, dtype=torch.float64)
    evaluate = central_evaluation(
        strategy.upper, TOY.lower(), Examples(inputs, torch.tensor([0, 3]))
    )
    with pytest.raises(ValueError, match=r"lie in 0\.\.3, expected 0\.\.2"):
        strategy.fit(TOY.make_clients(), 1, evaluate_fn=evaluate)


def with_a_nan(data: Any) -> Examples:
    inputs = data.inputs.clone()
    inputs[1, 0] = float("nan")
    return Examples(inputs, data.labels)


def test_a_nan_in_a_clients_test_data_is_blamed_on_them(caplog: pytest.LogCaptureFixture) -> None:
    clients = TOY.make_clients(sgd(0.1))
    clients[1].tests["federated"] = with_a_nan(clients[1].tests["federated"])
    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        fit(clients, evaluation="federated")
    assert "the evaluation continued without client 1" in caplog.text
    assert "its data have NaN or infinite numbers: replace them" in caplog.text


def test_a_nan_in_a_central_test_set_is_refused() -> None:
    """It would otherwise give an accuracy, without a word."""
    strategy = SFL(TOY.upper(), device="cpu")
    evaluate = central_evaluation(strategy.upper, TOY.lower(), with_a_nan(TOY.test_data(0)))
    with pytest.raises(ValueError, match="the test set has NaN or infinite numbers: replace them"):
        strategy.fit(TOY.make_clients(), 1, evaluate_fn=evaluate)


def test_a_central_test_set_may_have_nan_that_the_lower_segment_replaces() -> None:
    lower = TOY.lower()
    lower.register_forward_pre_hook(lambda _, inputs: (inputs[0].nan_to_num(),))
    strategy = SFL(TOY.upper(), device="cpu")
    evaluate = central_evaluation(strategy.upper, lower, with_a_nan(TOY.test_data(0)))
    record = strategy.fit(TOY.make_clients(), 1, evaluate_fn=evaluate).evaluate_metrics_serverapp[1]
    assert np.isfinite(float(record["loss"]))  # type: ignore[arg-type]


def test_of_a_far_larger_test_set_examples_of_all_classes_are_asked_for() -> None:
    """The first ones of a set in the order of its classes are of one class only."""
    clients = Toy(clients=2, tests=1).make_clients(sgd(0.1))
    large = Toy(clients=1, tests=900).test_data(0)
    assert large is not None
    order = large.labels.argsort(stable=True)
    clients[0].tests["federated"] = Examples(large.inputs[order], large.labels[order])
    label_batches: list[Tensor] = []
    right = SplitClient.encode_test

    class Watched(SplitClient):
        @exchange
        def encode_test(self, **payload: Any) -> dict[str, Any]:
            reply = right(self, **payload)
            label_batches.append(reply["labels"])
            return reply

    clients[0].__class__ = Watched
    fit(clients, evaluation="federated")
    labels = torch.cat(label_batches)
    assert len(labels) == 100
    assert set(labels.tolist()) == {0, 1, 2}
