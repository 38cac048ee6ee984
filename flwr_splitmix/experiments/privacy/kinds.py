"""What the matrices of images and of texts have in common: rows, columns, sizes, and what they are.

Importing it loads neither torch nor a strategy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from flwr_splitmix.experiments.cells import ExperimentError

if TYPE_CHECKING:
    from flwr_splitmix.attacks.release import Adversary


@dataclass(frozen=True)
class AnyRow:
    """A method with its options.

    Parameters
    ----------
    name
        On the command line and in results.
    """

    name: str

    @property
    def equal_utility(self) -> bool:
        """Whether its noise must be searched for before it is run."""
        return self.brought_to is not None

    @property
    def brought_to(self) -> AnyRow | None:
        """The row to whose utility its noise brings it, if it must be searched for."""
        return None

    @property
    def utility(self) -> str:
        """What is compared with that row."""
        return "utility"


@dataclass(frozen=True)
class AnyColumn:
    """An attack as one adversary makes it.

    Parameters
    ----------
    attack, adversary
        What is done, by whom.
    """

    attack: str
    adversary: Adversary

    @property
    def variant(self) -> str:
        """Which setting of the attack it is, where that has several columns."""
        return ""

    @property
    def shown(self) -> str:
        """The attack, with its variant: "labels-gradient (norm)"."""
        return f"{self.attack} ({self.variant})" if self.variant else self.attack

    @property
    def name(self) -> str:
        """What a table calls it: "decoder, server"."""
        return f"{self.shown}, {self.adversary}"


@dataclass(frozen=True, kw_only=True)
class AnySize:
    """How victims are trained, and how much attacks and scores have.

    Parameters
    ----------
    name, title
        As on the command line; what it is, in a few words.
    source
        The data set, unless another is asked for.

    Attributes
    ----------
    matrix
        Name of the matrix that it is a size of.
    """

    matrix: ClassVar[str]

    name: Literal["smoke", "cpu", "paper"]
    title: str
    source: str


Unit = Literal["percent", "megabytes", "seconds", "number"]


@dataclass(frozen=True)
class Fact:
    """What a table says of a row beside its attacks.

    Parameters
    ----------
    key
        In what is kept of a cell; a row that lacks it has no such fact.
    metric, heading
        In results, and above a table's column.
    unit
        How a table writes it.
    """

    key: str
    metric: str
    heading: str
    unit: Unit = "number"

    @property
    def is_score(self) -> bool:
        """Whether it says how good a method is, and not what it costs."""
        return self.unit in ("percent", "number")

    def said(self, value: float) -> str:
        """Return the value as a table has it."""
        if self.unit == "percent":
            return f"{100 * value:.1f} %"
        if self.unit == "megabytes":
            return f"{value / 1e6:.1f} MB"
        return f"{value:.0f} s" if self.unit == "seconds" else f"{value:.3f}"


@dataclass(frozen=True)
class Matrix:
    """Rows against columns.

    Parameters
    ----------
    name
        "images" or "texts": on the command line, and the directory that it is kept in.
    rows, columns, sizes
        All that there are, in the order in which they are shown.
    main
        Rows that `--cells main` stands for.
    unprotected
        The row on which an attack must beat its floor: the gate.
    facts
        What is said of rows beside attacks.
    metrics
        What a table shows of each attack: the first of these that it has.
    legend
        Under its tables.
    work
        Module with `do`, which does its tasks.
    loads
        Modules that tasks load, besides, which takes as long as a short one does.
    """

    name: str
    rows: Mapping[str, AnyRow]
    columns: tuple[AnyColumn, ...]
    sizes: Mapping[str, AnySize]
    main: tuple[str, ...]
    unprotected: str
    facts: tuple[Fact, ...]
    metrics: tuple[str, ...]
    legend: str
    work: str
    loads: tuple[str, ...] = ()

    def row(self, name: str) -> AnyRow:
        """Find a row.

        Raises
        ------
        ExperimentError
            If there is none of that name.
        """
        if name not in self.rows:
            raise ExperimentError(f"the matrix has no row {name!r}; it has {', '.join(self.rows)}")
        return self.rows[name]

    def columns_of(self, attack: str) -> tuple[AnyColumn, ...]:
        """Return the columns of an attack, or of all for "".

        Raises
        ------
        ExperimentError
            If there is none.
        """
        chosen = tuple(column for column in self.columns if attack in ("", column.attack))
        if not chosen:
            names = ", ".join(dict.fromkeys(column.attack for column in self.columns))
            raise ExperimentError(f"the matrix has no attack {attack!r}; it has {names}")
        return chosen

    def size(self, name: str) -> AnySize:
        """Find a size.

        Raises
        ------
        ExperimentError
            If there is none of that name.
        """
        if name not in self.sizes:
            raise ExperimentError(
                f"there is no scale {name!r}; allowed are {', '.join(self.sizes)}"
            )
        return self.sizes[name]
