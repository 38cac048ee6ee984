"""A named experiment: the cells of a paper's table or figure, its numbers and its claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from flwr_splitmix.experiments.cells import Cell, Variant
from flwr_splitmix.experiments.scales import COMPOSED, Scale
from flwr_splitmix.experiments.texts.recipes import Track

CIFAR = "CIFAR-10"
FASHION = "Fashion-MNIST"
CELEBA = "CelebA"


@dataclass(frozen=True)
class TableScore:
    """A value of a run's summary that a table shows.

    Parameters
    ----------
    name
        Heading of the column.
    key
        Key in the summary, or in its costs of a client, see `ClientCosts`.
    factor, digits
        Factor for the shown value, and its number of decimals.
    """

    name: str
    key: str
    factor: float = 100.0
    digits: int = 2

    def value(self, summary: Mapping[str, Any]) -> float | None:
        """Return the score in the summary's units; None if the run has none."""
        value = {**summary.get("client-costs", {}), **summary}.get(self.key)
        return None if value is None else float(value)

    def of(self, summary: Mapping[str, Any]) -> float | None:
        """Return the score as shown; None if the run has none."""
        value = self.value(summary)
        return None if value is None else self.in_table_units(value)

    def in_table_units(self, value: float) -> float:
        """Convert a score from the summary's units to the table's."""
        return self.factor * value


TOP1 = TableScore("top-1 (%)", "top1")

Measure = Literal["accuracy", "uplink"]
Place = tuple[str, str]
"""Row and column of a table."""


@dataclass(frozen=True)
class Entry:
    """One place of a table.

    Parameters
    ----------
    row, column
        Names in the paper.
    variant
        The variant to run; None for a method of others that the paper compares with and that is
        not offered here.
    paper
        The paper's value of the first score, mostly top-1 accuracy in percent, by data set; empty
        if a figure does not print it.
    epsilon
        The paper's epsilon; None if there is no noise, or the paper has none.
    """

    row: str
    column: str
    variant: Variant | None
    paper: Mapping[str, float] = field(default_factory=dict)
    epsilon: float | None = None

    @property
    def place(self) -> Place:
        """Row and column of the entry."""
        return self.row, self.column


@dataclass(frozen=True)
class Ordering:
    """A claim: the mean at place `low` is below the mean at place `high`.

    Parameters
    ----------
    measure
        The compared quantity.
    datasets
        The paper's data sets to which the claim applies; empty for all.
    slack
        If not 0, the claim is only that `low` is less than this above `high`, in the table's units.
    """

    low: Place
    high: Place
    measure: Measure = "accuracy"
    datasets: tuple[str, ...] = ()
    slack: float = 0.0

    def __str__(self) -> str:
        (low, low_column), (high, high_column) = self.low, self.high
        prefix = "uplink of " if self.measure == "uplink" else ""
        more = f" + {self.slack:g}" if self.slack else ""
        if low_column == high_column:
            return f"{prefix}{low} < {high}{more} ({low_column})"
        if low == high:
            return f"{prefix}{low}: {low_column} < {high_column}{more}"
        return f"{prefix}{low} ({low_column}) < {high} ({high_column}){more}"


@dataclass(frozen=True)
class Experiment:
    """A table or figure that can be run.

    Parameters
    ----------
    name
        Name on the command line.
    title, source
        Subject; paper and table or figure.
    entries
        Entries, row by row.
    orderings
        The paper's claims.
    note
        Remarks needed for a comparison with the paper; "" if none.
    track
        Track of the training recipe.
    scores
        Scores in the table; claims are about the first.
    epochs
        Numbers of epochs, by scale, that differ from the recipe's.
    """

    name: str
    title: str
    source: str
    entries: tuple[Entry, ...]
    orderings: tuple[Ordering, ...] = ()
    note: str = ""
    track: Track = "mixing"
    scores: tuple[TableScore, ...] = (TOP1,)
    epochs: Mapping[str, int] = field(default_factory=dict)

    @property
    def offered(self) -> int:
        """Number of the table's places that can be run."""
        return sum(entry.variant is not None for entry in self.entries)

    def epochs_at(self, scale: Scale) -> int:
        """Return the number of epochs of the experiment's cells at a scale."""
        return self.epochs.get(scale.name, scale.recipes[self.track].epochs)

    def may_be_on(self, dataset: str) -> bool:
        """Return whether a data set can be the experiment's by its labels, as far as it is known.

        A cell does not show whether its examples have one label or several, so tables of both
        kinds can have equal cells.
        """
        one, several = (CIFAR, FASHION), (CELEBA, COMPOSED)
        other = one if self.track == "multi-label" else several
        return paper_dataset(dataset) not in other

    def cells(
        self,
        scale: Scale,
        *,
        seeds: Sequence[int] = (0,),
        source: str | None = None,
        epochs: int | None = None,
    ) -> Iterator[tuple[Entry, Cell]]:
        """Yield (entry, cell) for every entry that can be run, all of one seed before the next.

        Parameters
        ----------
        seeds, source
            Seeds; name or folder of the data set, None for the scale's.
        epochs
            Number of epochs; None for the experiment's.

        Raises
        ------
        ExperimentError
            Raised by `Scale.cell`.
        """
        length = self.epochs.get(scale.name) if epochs is None else epochs
        for seed in seeds:
            for entry in self.entries:
                if entry.variant is not None:
                    yield (
                        entry,
                        scale.cell(
                            entry.variant, track=self.track, source=source, seed=seed, epochs=length
                        ),
                    )


def ordered(
    rows: Sequence[str],
    columns: Sequence[str],
    measure: Measure = "accuracy",
    datasets: tuple[str, ...] = (),
) -> tuple[Ordering, ...]:
    """Return the claims that, in every column, each of `rows` is below the next."""
    return tuple(
        Ordering((low, column), (high, column), measure, datasets)
        for low, high in pairwise(rows)
        for column in columns
    )


def below(
    rows: Sequence[str], best: str, columns: Sequence[str], datasets: tuple[str, ...] = ()
) -> tuple[Ordering, ...]:
    """Return the claims that, in every column, each of `rows` is below `best`."""
    return tuple(
        Ordering((row, column), (best, column), datasets=datasets)
        for column in columns
        for row in rows
    )


def paper_dataset(name: str) -> str:
    """Return the papers' name of a data set, or `name` if they do not use it."""
    if name == COMPOSED:
        return name
    plain = name.lower().replace("-", "").replace("_", "")
    if "fashionmnist" in plain:
        return FASHION
    if plain.endswith("cifar10"):
        return CIFAR
    return CELEBA if "celeba" in plain else name
