"""Averaged lower segments have the dtypes that clients sent, whatever an aggregator returns."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp import strategy as flower
from numpy.typing import NDArray

from flwr_splitmix import SplitClient
from flwr_splitmix.links.arrays import to_numpy
from flwr_splitmix.server.aggregation import AggregatorError, make_aggregator
from flwr_splitmix.strategies import SFL
from flwr_splitmix.testing.toy import Examples, Toy, sgd
from tests.server.aggregation.aggregators import ANY_NODES

TOY = Toy(clients=2)

Change = Callable[[NDArray[Any]], NDArray[Any]]


def returning(kind: type[Any], change: Change) -> type[Any]:
    """Return a subclass, of an aggregator or of a strategy, whose averages are changed."""

    class Own(kind):  # type: ignore[misc]
        def aggregate_train(self, *arguments: Any) -> Any:
            arrays, metrics = super().aggregate_train(*arguments)
            return ArrayRecord({n: Array(change(a.numpy())) for n, a in arrays.items()}), metrics

    return Own


def fitted(
    aggregator: flower.Strategy | None = None, kind: type[SFL] = SFL, initial: Any = None
) -> dict[str, NDArray[Any]]:
    """Return the lower segment after two rounds with clients of float32."""
    options: dict[str, Any] = {} if aggregator is None else {"aggregator": aggregator}
    strategy = kind(TOY.upper().float(), device="cpu", optimizer=sgd(0.1), **options)
    clients = []
    for client in range(TOY.clients):
        data = Examples(TOY.data(client).inputs.float(), TOY.data(client).labels)
        lower = TOY.lower().float()
        clients.append(SplitClient(lower, data, batch_size=4, optimizer=sgd(0.1), device="cpu"))
    return to_numpy(strategy.fit(clients, 2, initial_arrays=initial).arrays)


def test_what_a_server_optimizer_widens_is_as_the_clients_sent_it() -> None:
    """Otherwise buffers of float32 would become float64."""
    arrays = fitted(make_aggregator("FedAdam"))
    dtypes = {name: str(array.dtype) for name, array in arrays.items()}
    assert dtypes.pop("norm.num_batches_tracked") == "int64"
    assert set(dtypes.values()) == {"float32"}


@pytest.mark.parametrize(("dtype", "times"), [("float16", 1), ("float64", 0), ("longdouble", 0)])
@pytest.mark.parametrize("overridden", [False, True], ids=["aggregator", "strategy"])
def test_another_width_is_cast_back_and_a_narrower_one_told_once(
    dtype: str, times: int, overridden: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def change(array: NDArray[Any]) -> NDArray[Any]:
        return array.astype(dtype) if array.dtype.kind == "f" else array

    with caplog.at_level(logging.WARNING, "flwr.splitmix"):
        aggregator = None if overridden else returning(flower.FedAvg, change)(**ANY_NODES)
        arrays = fitted(aggregator, returning(SFL, change) if overridden else SFL)
    assert {str(a.dtype) for a in arrays.values()} == {"float32", "int64"}
    warnings = [r.getMessage() for r in caplog.records if "float16" in r.getMessage()]
    assert len(warnings) == times
    assert all(
        "Own returns 'position' as float16, narrower than the cl" in warning for warning in warnings
    )


@pytest.mark.parametrize("dtype", ["int8", "bool", "complex64", "S4"])
@pytest.mark.parametrize("overridden", [False, True], ids=["aggregator", "strategy"])
def test_weights_of_another_kind_are_refused(dtype: str, overridden: bool) -> None:
    """As int8, every weight would become 0, and the run go on."""

    def change(array: NDArray[Any]) -> NDArray[Any]:
        return array.astype(dtype)

    sentence = f"of Own returns 'position' as .*{dtype[:3]}.*; expected float32, as the clients s"
    aggregator = None if overridden else returning(flower.FedAvg, change)(**ANY_NODES)
    with pytest.raises(AggregatorError, match=sentence):
        fitted(aggregator, returning(SFL, change) if overridden else SFL)


def test_whole_numbers_that_a_strategy_averages_itself_are_whole_again() -> None:
    """Clients cut their fractions off."""
    arrays = fitted(kind=returning(SFL, lambda array: np.asarray(array - np.float32(1e-5))))
    assert arrays["norm.num_batches_tracked"].dtype == np.int64
    assert int(arrays["norm.num_batches_tracked"]) == 6


@pytest.mark.parametrize(
    ("dimensions", "number", "message"),
    [
        (2, 1e300, "'position' has numbers that float32"),
        (0, np.nan, "tracked' has numbers that int64"),
    ],
)
def test_numbers_that_the_clients_dtype_has_not_are_refused(
    dimensions: int, number: float, message: str
) -> None:
    """Weights would become infinite, and a count -9223372036854775808."""

    def change(array: NDArray[Any]) -> NDArray[Any]:
        return np.full(array.shape, number) if array.ndim == dimensions else array

    with pytest.raises(AggregatorError, match=message):
        fitted(returning(flower.FedAvg, change)(**ANY_NODES))


def test_narrow_averages_of_whole_numbers_are_no_narrow_weights(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def change(array: NDArray[Any]) -> NDArray[Any]:
        return array if array.dtype == np.float32 else array.astype(np.float16)

    with caplog.at_level(logging.WARNING, "flwr.splitmix"):
        fitted(returning(flower.FedAvg, change)(**ANY_NODES))
    assert not [message for message in caplog.messages if "narrower" in message]


def test_narrow_initial_arrays_do_not_narrow_averages() -> None:
    """The average of every round would be rounded to float16."""
    state = TOY.lower().float().state_dict()
    initial = ArrayRecord(
        {
            name: Array(t.half().numpy() if t.is_floating_point() else t.numpy())
            for name, t in state.items()
        }
    )
    arrays = fitted(initial=initial)
    floats = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
    assert {str(array.dtype) for array in floats.values()} == {"float32"}
    assert any((a != a.astype(np.float16)).any() for a in floats.values())
