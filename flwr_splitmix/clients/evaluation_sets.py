"""A client's test sets, by the kind of evaluation that they are for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.data.examples import Example, ExampleSet, check_map_style, fetch
from flwr_splitmix.seeding import generator

Tests = dict[str, ExampleSet | None]
"""By kind ("federated", "benchmark"), the test set; None if the client has none."""


def tests_of(test_data: ExampleSet | None, benchmark_data: ExampleSet | None) -> Tests:
    """Return a client's test sets by kind.

    Raises
    ------
    TypeError
        If one is not a map-style data set.
    """
    for name, data in {"test_data": test_data, "benchmark_data": benchmark_data}.items():
        if data is not None:
            check_map_style(name, data)
    return {"federated": test_data, "benchmark": benchmark_data}


def evaluation_set(tests: Mapping[str, ExampleSet | None], kind: str) -> ExampleSet:
    """Return the test set of a kind.

    Raises
    ------
    ClientError
        If the client has none.
    """
    data = tests.get(kind)
    if data is None:
        raise ClientError(f"this client has no {kind} test data")
    return data


def sizes_of(tests: Mapping[str, ExampleSet | None]) -> dict[str, int]:
    """Return the number of examples of each existing test set, by kind."""
    return {
        kind: len(data)  # type: ignore[arg-type]
        for kind, data in tests.items()
        if data is not None
    }


def part_of(data: ExampleSet, start: int, stop: int, *, shuffled: bool) -> Example:
    """Return test examples `start` to `stop` as one batch.

    Parameters
    ----------
    shuffled
        Whether they are numbered in a random order, which is always the same.
    """
    size = len(data)  # type: ignore[arg-type]
    order = generator(0, "tests").permutation(size) if shuffled else np.arange(size)
    return fetch(data, order[start:stop])


def batches_in(size: int, batch: int, least: int = 1) -> int:
    """Return in how many batches test examples are sent; see `stop_of`."""
    return max((size - least) // batch, 0) + 1


def stop_of(start: int, size: int, batch: int, least: int = 1) -> int:
    """Return the end (excluded) of the batch of test examples that begins at `start`.

    Parameters
    ----------
    size
        Number of all examples.
    batch
        Number in a batch.
    least
        Fewest in a batch, at most as many: a rest of fewer is joined with the batch before.
    """
    stop = min(start + batch, size)
    return size if size - stop < least else stop
