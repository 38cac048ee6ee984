"""Comparison of weights and of runs' results, with the location and the size of differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix.runs import Run
from flwr_splitmix.runs.checkpoints import ClientStore
from flwr_splitmix.words import counted, listed

COMPARED_COLUMNS = ("loss", "accuracy", "accuracy_spread", "eval_loss", "steps", "clients_alive")
"""Columns of a run's rows that must agree."""


@dataclass(frozen=True)
class Results:
    """Results of a run.

    Parameters
    ----------
    rows
        One dictionary per round, as made by `Metrics`.
    tensors
        Weights and optimizer states, by name.
    """

    rows: Sequence[Mapping[str, Any]]
    tensors: Mapping[str, Tensor]


def read_results(run: Run) -> Results:
    """Read a run's rows, its newest checkpoint, and the newest stored state of every client."""
    tensors = dict(run.checkpoints.load().tensors)
    store = ClientStore(run.clients_dir)
    folders = run.clients_dir.iterdir() if run.clients_dir.is_dir() else ()
    for index in sorted(int(folder.name) for folder in folders):
        stored_state = store.load(index)
        if stored_state is not None:
            _, state, meta = stored_state
            tensors |= {f"client {index}: {name}": t for name, t in state.items()}
            tensors[f"client {index}: batches drawn"] = torch.tensor(meta["drawn"])
    return Results(run.rows, tensors)


def check_same_results(a: Results, b: Results, tolerance: float = 0.0) -> None:
    """Compare losses, accuracies and weights of two runs.

    Parameters
    ----------
    tolerance
        Largest absolute difference allowed; 0 requires equality bit for bit.

    Raises
    ------
    AssertionError
        With the first round that differs and both values, or the tensor that differs most.
    """
    if len(a.rows) != len(b.rows):
        raise AssertionError(
            f"one run has {counted(len(a.rows), 'round')}, the other {len(b.rows)}"
        )
    for one, other in zip(a.rows, b.rows, strict=True):
        for column in COMPARED_COLUMNS:
            x, y = one.get(column), other.get(column)
            same = x == y if x is None or y is None else abs(x - y) <= tolerance
            if not same:
                raise AssertionError(
                    f"round {one['round']}: {column} is {x!r} in one run and {y!r} in the other"
                )
    check_same_tensors("the runs' results", a.tensors, b.tensors, tolerance)


def check_same_tensors(
    subject: str,
    expected: Mapping[str, Tensor],
    actual: Mapping[str, Tensor],
    tolerance: float = 0.0,
) -> None:
    """Compare named tensors.

    Raises
    ------
    AssertionError
        With a message that begins with `subject` and names the tensor that differs most.
    """
    if expected.keys() != actual.keys():
        odd = sorted(expected.keys() ^ actual.keys())
        raise AssertionError(f"{subject}: only one side has {listed(odd, most=5)}")
    worst, where = 0.0, ""
    for name, tensor in expected.items():
        other = actual[name]
        if tensor.shape != other.shape:
            raise AssertionError(
                f"{subject}: {name} is {tuple(other.shape)}, expected {tuple(tensor.shape)}"
            )
        if not tensor.numel():
            continue
        gap = float((tensor.detach().double().cpu() - other.detach().double().cpu()).abs().max())
        if not gap <= worst:  # NaN counts as different
            worst, where = gap, name
            if gap != gap:
                break
    if not worst <= tolerance:
        raise AssertionError(
            f"{subject}: {where} differs by {worst:.3g}; at most {tolerance:.3g} is allowed "
            f"(expected {_first_numbers(expected[where])}, found {_first_numbers(actual[where])})"
        )


def _first_numbers(tensor: Tensor) -> str:
    numbers = ", ".join(f"{x:.6g}" for x in tensor.detach().flatten()[:4].tolist())
    return f"[{numbers}{', ...' if tensor.numel() > 4 else ''}]"
