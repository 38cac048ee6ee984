"""Division of a text set's rows among clients."""

from __future__ import annotations

import contextlib
import functools
import io
from typing import Literal

import numpy as np

from flwr_splitmix.data.errors import DataError, import_extra
from flwr_splitmix.data.partition import Division, Scheme, check_index, check_samples
from flwr_splitmix.data.texts.rows import TextRows, TextSets
from flwr_splitmix.words import allowed_range, counted

TextScheme = Literal["iid", "dirichlet", "column"]
SCHEMES = ("iid", "dirichlet", "column")


def text_split(
    sets: TextSets,
    index: int,
    num_clients: int,
    *,
    scheme: TextScheme = "iid",
    alpha: float = 0.1,
    seed: int = 0,
    samples: int = 0,
    test_samples: int = 0,
) -> tuple[TextRows, TextRows]:
    """Return the training and the test rows of one client.

    "iid" and "dirichlet" (over labels) are those of `client_split`. "column" is the natural
    partition by the set's group column: the groups, in sorted order, are dealt to the clients in
    turn, so that no group is divided; a client's test rows are those of its groups.

    Parameters
    ----------
    index, num_clients
        Index of the client, 0..num_clients-1, and number of clients.
    alpha, seed
        As for `partition_indices`.
    samples, test_samples
        Numbers of rows to take from the start of the client's parts; 0: all.

    Returns
    -------
    tuple of TextRows
        Training part, test part. The latter may be empty; with "dirichlet" both may.

    Raises
    ------
    DataError
        If an argument is outside its range, rows have no labels for "dirichlet" or no groups for
        "column", there are fewer groups or training rows than clients, or with "iid" a client has
        fewer than `samples` training rows.
    """
    check_index(index, num_clients)
    if scheme not in SCHEMES:
        raise DataError(
            f"the partition scheme is {scheme!r}; it must be one of {', '.join(SCHEMES)}"
        )
    check_samples(samples, test_samples)
    if scheme == "column":
        train, test = _by_group(sets, index, num_clients)
    else:
        division = Division(
            source=sets.name,
            kind="row",
            num_clients=num_clients,
            scheme=scheme,
            alpha=alpha,
            seed=seed,
        )
        train, test = division.part(
            index,
            _labels_to_divide_by(sets, sets.train, scheme),
            _labels_to_divide_by(sets, sets.test, scheme),
            samples=samples,
        )
    return sets.train.subset(train).first(samples), sets.test.subset(test).first(test_samples)


def _labels_to_divide_by(sets: TextSets, rows: TextRows, scheme: Scheme) -> np.ndarray:
    """Return the labels for `partition_indices`, which with "iid" only counts them."""
    if sets.task == "classification":
        return rows.labels
    if scheme == "dirichlet":
        raise DataError(
            "the partition 'dirichlet' is over labels, and prompts and answers have none; allowed "
            "with them are 'iid' and 'column'"
        )
    return np.zeros(len(rows), np.int64)


def _by_group(sets: TextSets, index: int, num_clients: int) -> tuple[np.ndarray, np.ndarray]:
    if not sets.train.groups:
        raise DataError(
            f"the partition 'column' needs a column that says where each row of {sets.name!r} "
            "belongs; name it"
        )
    parts = _natural(sets.train.groups)
    if num_clients > len(parts):
        raise DataError(
            f"{sets.name!r} has {counted(len(parts), 'group')}, which cannot be divided among "
            f"{num_clients} clients; {allowed_range(1, len(parts))} (--nodes, or num-partitions of "
            "deployed nodes)"
        )
    groups = list(parts)[index::num_clients]
    tests = _natural(sets.test.groups)
    nothing = np.zeros(0, np.int64)
    train, test = (
        np.sort(
            np.concatenate([nothing, *(rows_of_group[g] for g in groups if g in rows_of_group)])
        )
        for rows_of_group in (parts, tests)
    )
    return train, test


@functools.lru_cache(maxsize=8)
def _natural(groups: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return the indices of each group's rows, by the group's name in sorted order."""
    datasets = import_extra("datasets", "dividing rows among clients", "language")
    partitioners = import_extra(
        "flwr_datasets.partitioner", "dividing rows among clients", "language"
    )
    partitioner = partitioners.NaturalIdPartitioner(partition_by="group")
    rows = {"index": np.arange(len(groups)), "group": list(groups)}
    partitioner.dataset = datasets.Dataset.from_dict(rows)
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bar
        parts = [
            np.array(partitioner.load_partition(part)[:]["index"], np.int64)
            for part in range(partitioner.num_partitions)
        ]
    names = partitioner.partition_id_to_natural_id
    return {str(names[part]): rows for part, rows in enumerate(parts)}
