"""Flower strategies as aggregators of lower segments: how, and what is kept of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower

from flwr_splitmix import Run
from flwr_splitmix.links.arrays import to_tensors
from flwr_splitmix.schedule import constant
from flwr_splitmix.server.aggregation import (
    AggregatorError,
    AggregatorName,
    LowerAggregator,
    make_aggregator,
)
from flwr_splitmix.strategies import PSL, SFL
from flwr_splitmix.testing.toy import Toy, sgd
from tests.server.aggregation.aggregators import ANY_NODES, noisy

Numbers = dict[str, np.ndarray]


def fitted(aggregator: flower.Strategy, rounds: int = 1, run: Run | None = None) -> Numbers:
    """Return the floating-point part of the lower segment after some rounds of `fit`."""
    toy = Toy(clients=2)
    strategy = SFL(
        toy.upper(), aggregator=aggregator, optimizer=sgd(0.1), schedule=constant, device="cpu",
        run=run,
    )  # fmt: skip
    result = strategy.fit(toy.make_clients(sgd(0.1)), rounds)
    return floats(to_tensors(result.arrays))


def floats(tensors: Mapping[str, torch.Tensor]) -> Numbers:
    return {name: t.numpy() for name, t in tensors.items() if t.is_floating_point()}


@pytest.fixture(scope="module")
def change() -> tuple[Numbers, Numbers]:
    """Return what a round begins with, and by how much FedAvg moves it."""
    initial = floats(Toy(clients=2).make_clients()[0].weights())
    averaged = fitted(make_aggregator("FedAvg"))
    return initial, {name: averaged[name] - value for name, value in initial.items()}


@pytest.mark.parametrize("name", ["FedAvgM", "FedAdam", "FedYogi", "FedAdagrad"])
def test_server_optimizers_take_their_first_step_in_fit(
    name: AggregatorName, change: tuple[Numbers, Numbers]
) -> None:
    """Reddi et al., "Adaptive Federated Optimization" (2021), algorithm 2, from moments of 0.

    BatchNorm's statistics are averaged.
    """
    options: dict[str, Any] = {
        "FedAvgM": {"server_learning_rate": 0.5, "server_momentum": 0.9},
        "FedAdagrad": {"eta": 0.3, "tau": 0.1},
    }.get(name, {"eta": 0.3, "tau": 0.1, "beta_1": 0.5, "beta_2": 0.75})
    after = fitted(getattr(flower, name)(**ANY_NODES, **options))
    # Of Adam, Flower corrects the bias as if there were a round before the first.
    corrected = 0.3 * np.sqrt(1 - 0.75**2) / (1 - 0.5**2)
    for key, (start, moved) in {k: (change[0][k], change[1][k]) for k in change[0]}.items():
        expected = {
            "FedAvgM": start + 0.5 * moved,
            "FedAdagrad": start + 0.3 * moved / (np.abs(moved) + 0.1),
            "FedYogi": start + 0.3 * 0.5 * moved / (0.5 * np.abs(moved) + 0.1),
        }.get(name, start + corrected * 0.5 * moved / (0.5 * np.abs(moved) + 0.1))
        if "running" in key:
            expected = start + moved
        np.testing.assert_allclose(after[key], expected, rtol=1e-6, atol=1e-9)
        assert not np.array_equal(after[key], start) or np.abs(moved).max() < 1e-9


def record(variance: float, batches: int) -> ArrayRecord:
    numbers = {"norm.weight": variance, "norm.running_var": variance}
    arrays = {key: Array(np.array([value])) for key, value in numbers.items()}
    return ArrayRecord({**arrays, "norm.num_batches_tracked": Array(np.array(batches))})


def replies_to(aggregator: LowerAggregator) -> list[Message]:
    """Return two clients' replies to the aggregator's messages of round 1."""
    requests = aggregator.configure(1, record(1.0, 0), ConfigRecord(), None, [1, 2])
    return [
        Message(
            RecordDict(
                {
                    "arrays": record(variance, batches),
                    "metrics": MetricRecord({"num-examples": examples}),
                }
            ),
            reply_to=message,
        )
        for message, variance, batches, examples in zip(
            requests, (0.1, 0.2), (4, 8), (30, 10), strict=True
        )
    ]


@pytest.mark.parametrize(("kind", "times"), [(flower.FedAvg, 0), (flower.FedAdam, 1)])
def test_a_wrapped_server_optimizer_that_steps_on_statistics_is_told_once(
    kind: Any, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    aggregator = LowerAggregator(noisy(kind(**ANY_NODES)))
    for _ in range(2):
        aggregator.aggregate(1, replies_to(aggregator))
    warning = f"{kind.__name__} within DifferentialPrivacyServerSideFixedClipping takes its step on"
    assert caplog.text.count(warning) == times


def test_a_wrapped_server_optimizer_of_a_model_without_statistics_is_not_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    aggregator = LowerAggregator(noisy(flower.FedAdam(**ANY_NODES)))
    before, after = (ArrayRecord({"weight": Array(np.full(2, n, np.float32))}) for n in (1, 2))
    content = RecordDict({"arrays": after, "metrics": MetricRecord({"num-examples": 1})})
    (request,) = aggregator.configure(1, before, ConfigRecord(), None, [1])
    aggregator.aggregate(1, [Message(content, reply_to=request)])
    assert "takes its step on" not in caplog.text


@pytest.mark.parametrize("name", ["FedAvgM", "FedAdam", "FedYogi", "FedAdagrad"])
def test_a_server_optimizer_makes_no_variance_negative(name: AggregatorName) -> None:
    """A step on BatchNorm's variances could make one negative, and then every output NaN."""
    options = {"server_learning_rate": 2.0} if name == "FedAvgM" else {"eta": 9.0}
    aggregator = LowerAggregator(getattr(flower, name)(**ANY_NODES, **options))
    arrays, _ = aggregator.aggregate(1, replies_to(aggregator))
    assert arrays is not None
    after = to_tensors(arrays)
    assert after["norm.weight"] < 0  # as asked
    assert after["norm.running_var"].tolist() == pytest.approx([0.125])
    assert after["norm.num_batches_tracked"] == 5


@pytest.mark.parametrize("name", ["FedAvgM", "FedAdam"])
def test_moments_count_in_fit_and_survive_its_interruption(
    name: AggregatorName, tmp_path: Path
) -> None:
    kind: Any = getattr(flower, name)
    options = {"server_momentum": 0.9} if name == "FedAvgM" else {"eta": 0.3}
    whole = fitted(kind(**ANY_NODES, **options), rounds=2)
    run = Run.create({}, name="test", home=tmp_path)
    fitted(kind(**ANY_NODES, **options), rounds=1, run=run)
    resumed = fitted(kind(**ANY_NODES, **options), rounds=2, run=run)
    for key, value in whole.items():
        np.testing.assert_array_equal(resumed[key], value)
    forgetful = {"server_momentum": 0.0} if name == "FedAvgM" else {"eta": 0.3, "beta_1": 0.0}
    without = fitted(kind(**ANY_NODES, **forgetful), rounds=2)
    assert any(not np.allclose(without[key], value) for key, value in whole.items())


def test_fedavgm_begins_a_run_with_the_runs_weights() -> None:
    """The way from the end of an earlier run to the new weights must not become momentum."""
    aggregator = LowerAggregator(flower.FedAvgM(**ANY_NODES, server_momentum=0.9))

    def arrays_of(weight: float) -> ArrayRecord:
        return ArrayRecord({"weight": Array(np.full(2, weight, np.float64))})

    momentum = 0.0
    for weight in (0.0, 5.0):
        aggregator.begin()
        for server_round in (1, 2):
            (request,) = aggregator.configure(
                server_round, arrays_of(weight), ConfigRecord(), None, [0]
            )
            metrics = MetricRecord({"num-examples": 1})
            content = RecordDict({"arrays": arrays_of(weight + 1), "metrics": metrics})
            arrays, _ = aggregator.aggregate(server_round, [Message(content, reply_to=request)])
            assert arrays is not None
            momentum = 0.9 * momentum + 1  # it goes on in the second run
            weight += momentum
            np.testing.assert_allclose(arrays["weight"].numpy(), weight)


def test_fedmedian_takes_the_median_of_the_lower_segments() -> None:
    toy = Toy(clients=3)
    strategy = SFL(
        toy.upper(),
        aggregator=flower.FedMedian(**ANY_NODES),
        optimizer=sgd(0.1),
        schedule=constant,
        device="cpu",
    )
    clients = toy.make_clients(sgd(0.1))
    result = strategy.fit(clients, 1)
    assert result.arrays is not None
    aggregated = to_tensors(result.arrays)
    for name in dict(clients[0].segment.named_parameters()):
        by_client = np.stack([client.segment.state_dict()[name].numpy() for client in clients])
        np.testing.assert_array_equal(aggregated[name].numpy(), np.median(by_client, axis=0))
        assert np.ptp(by_client, axis=0).any()


def test_krum_picks_one_of_the_lower_segments() -> None:
    toy = Toy(clients=4)
    strategy = SFL(
        toy.upper(),
        aggregator=flower.Krum(num_malicious_nodes=1, **ANY_NODES),
        optimizer=sgd(0.1),
        device="cpu",
    )
    clients = toy.make_clients(sgd(0.1))
    result = strategy.fit(clients, 1)
    assert result.arrays is not None
    picked = to_tensors(result.arrays)["embed.weight"]
    assert any(torch.equal(picked, c.segment.state_dict()["embed.weight"]) for c in clients)


def test_an_averaged_round_starts_from_one_segment_and_an_unaveraged_one_from_each_own() -> None:
    """With a learning rate of 0 in the second round, clients hold what they started from."""
    toy = Toy(clients=3)
    for kind, same in ((SFL, True), (PSL, False)):
        clients = toy.make_clients(sgd(0.5), schedule=lambda progress, rounds: float(progress < 1))
        kind(toy.upper(), optimizer=sgd(0.5), device="cpu").fit(clients, 2)
        positions = {bytes(c.segment.state_dict()["position"].numpy().data) for c in clients}
        assert len(positions) == (1 if same else 3)


def numbers(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"embed.weight": rng.random((3, 4)), "norm.count": np.array(seed)}


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_moments_of_fedadam_survive_a_checkpoint(wrapped: bool) -> None:
    """Also those of a strategy inside one that adds noise."""
    first, second = flower.FedAdam(), flower.FedAdam()
    outer: Any = noisy if wrapped else lambda strategy: strategy
    for strategy, start in ((first, 1), (second, 5)):
        strategy.m_t, strategy.v_t = numbers(start), numbers(start + 1)
        strategy.current_arrays = numbers(start + 2)
    tensors = LowerAggregator(outer(first)).state()
    assert all(name.startswith("aggregator.") for name in tensors)
    second.m_t = second.v_t = None
    LowerAggregator(outer(second)).restore({"upper.weight": torch.zeros(1), **tensors})
    for name in ("m_t", "v_t", "current_arrays"):
        expected, restored = getattr(first, name), getattr(second, name)
        assert expected.keys() == restored.keys()
        for key, array in expected.items():
            assert restored[key].dtype == array.dtype
            np.testing.assert_array_equal(restored[key], array)


def test_records_lists_and_numbers_survive_a_checkpoint() -> None:
    class Mine(flower.FedAvg):
        record: Any = None
        listed: Any = None
        scalar = 0.0

    first, second = Mine(), Mine()
    aggregator = LowerAggregator(first)
    first.record = ArrayRecord({k: Array(a) for k, a in numbers(1).items()})
    first.listed = [np.full(2, i) for i in range(12)]
    first.scalar = 0.25
    LowerAggregator(second).restore(aggregator.state())
    assert isinstance(second.record, ArrayRecord)
    np.testing.assert_array_equal(second.record["embed.weight"].numpy(), numbers(1)["embed.weight"])
    assert [int(a[0]) for a in second.listed] == list(range(12))
    assert second.scalar == 0.25


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (None, "Own made nothing of the weights of 5 clients"),
        ((None, None), "Own made nothing of the weights of 5 clients"),
        (ArrayRecord(), "aggregate_train of Own returns an ArrayRecord; expected a pair of an"),
        ((1, 2), "aggregate_train of Own returns an int in its pair where ArrayRecord is needed"),
        ((ArrayRecord(), {}), "returns a dict in its pair where MetricRecord is needed"),
    ],
    ids=["nothing", "a pair of nothing", "no pair", "a pair of numbers", "no metrics"],
)
def test_what_an_own_aggregator_returns_is_named(returned: object, sentence: str) -> None:
    """Python's error about unpacking would not name a method that ends without a return."""

    class Own(flower.FedAvg):
        def aggregate_train(self, *arguments: Any) -> Any:
            return returned

    toy = Toy()
    strategy = SFL(toy.upper(), device="cpu", aggregator=Own(**ANY_NODES))
    with pytest.raises(AggregatorError, match=sentence):
        strategy.fit(toy.make_clients(sgd(0.1)), 1)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda name: None if name == "position" else name, r"it lacks position \(6, 3\)"),
        (lambda name: f"net.{name}", r"it lacks .* and \d+ more; it also has net\.position"),
    ],
    ids=["dropped", "renamed"],
)
def test_an_own_aggregator_that_changes_names_is_named(
    change: Callable[[str], str | None], sentence: str
) -> None:
    """Otherwise central_evaluation's lower segment, or the clients, would get the blame."""

    class Own(flower.FedAvg):
        def aggregate_train(self, *arguments: Any) -> Any:
            arrays, metrics = super().aggregate_train(*arguments)
            assert arrays is not None
            changed = {new: a for name, a in arrays.items() if (new := change(name)) is not None}
            return ArrayRecord(changed), metrics

    toy = Toy()
    strategy = SFL(toy.upper(), device="cpu", aggregator=Own(**ANY_NODES))
    match = f"aggregate_train of Own returns other arrays than the clients' lower.*: {sentence}"
    with pytest.raises(AggregatorError, match=match):
        strategy.fit(toy.make_clients(sgd(0.1)), 1)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_an_aggregator_that_makes_nan_is_named(number: float) -> None:
    """In the last round a run would finish with such weights; earlier, clients would be blamed."""

    class Own(flower.FedAvg):
        def aggregate_train(self, *arguments: Any) -> Any:
            arrays, metrics = super().aggregate_train(*arguments)
            assert arrays is not None
            copies = {name: array.numpy().copy() for name, array in arrays.items()}
            next(iter(copies.values())).flat[0] = number
            return ArrayRecord({name: Array(array) for name, array in copies.items()}), metrics

    toy = Toy()
    strategy = SFL(toy.upper(), device="cpu", aggregator=Own(**ANY_NODES))
    with pytest.raises(AggregatorError, match="aggregate_train of Own returns NaN or infinite nu"):
        strategy.fit(toy.make_clients(sgd(0.1)), 1)


def test_nothing_is_averaged_without_an_aggregator() -> None:
    aggregator = LowerAggregator(None)
    assert not aggregator.averages
    assert aggregator.aggregate(1, []) == (None, None)
    assert aggregator.state() == {}
