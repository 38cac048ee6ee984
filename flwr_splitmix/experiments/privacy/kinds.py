"""Common classes of the matrices of images and of texts: rows, columns, sizes, matrices.

Importing this module loads neither torch nor a strategy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from flwr_splitmix.experiments.cells import ExperimentError
from flwr_splitmix.suggestions import close_to, either

if TYPE_CHECKING:
    from flwr_splitmix.attacks.release import Adversary


@dataclass(frozen=True)
class AnyRow:
    """A method with its options.

    Parameters
    ----------
    name
        Name on the command line and in results.
    """

    name: str

    @property
    def equal_utility(self) -> bool:
        """Whether the row's noise must be searched for before the row is run."""
        return self.brought_to is not None

    @property
    def brought_to(self) -> AnyRow | None:
        """The row whose utility the noise must match; None if the noise is given."""
        return None

    @property
    def utility(self) -> str:
        """Name of the compared utility."""
        return "utility"


@dataclass(frozen=True)
class AnyColumn:
    """An attack by one adversary.

    Parameters
    ----------
    attack, adversary
        Names of attack and adversary.
    """

    attack: str
    adversary: Adversary

    def identity(self) -> dict[str, Any]:
        """Return all values that define the column's cells; cells' names have a digest of them."""
        return asdict(self)

    @property
    def variant(self) -> str:
        """Name of the attack's setting, if the attack has several columns."""
        return ""

    @property
    def label(self) -> str:
        """The attack, with its variant: "labels-gradient (norm)"."""
        return f"{self.attack} ({self.variant})" if self.variant else self.attack

    @property
    def name(self) -> str:
        """Name in tables: "decoder, server"."""
        return f"{self.label}, {self.adversary}"


@dataclass(frozen=True, kw_only=True)
class AnySize:
    """Size of the victims' training, and of the data for attacks and scores.

    Parameters
    ----------
    name, title
        Name on the command line; short description.
    source
        Default data set.

    Attributes
    ----------
    matrix
        Name of the matrix to which the size belongs.
    """

    matrix: ClassVar[str]

    name: Literal["smoke", "cpu", "paper"]
    title: str
    source: str


Unit = Literal["percent", "megabytes", "seconds", "number"]


@dataclass(frozen=True)
class MatrixFact:
    """A property of rows that tables show besides attacks.

    Parameters
    ----------
    key
        Key in a cell's stored result; a row without it has no such fact.
    metric, heading
        Name in results, and heading of the table's column.
    unit
        Unit in tables.
    """

    key: str
    metric: str
    heading: str
    unit: Unit = "number"

    @property
    def is_score(self) -> bool:
        """Whether it measures how good a method is, and not what it costs."""
        return self.unit in ("percent", "number")

    def as_text(self, value: float) -> str:
        """Return the value as text for a table."""
        if self.unit == "percent":
            return f"{100 * value:.1f} %"
        if self.unit == "megabytes":
            return f"{value / 1e6:.1f} MB"
        return f"{value:.0f} s" if self.unit == "seconds" else f"{value:.3f}"


@dataclass(frozen=True)
class Matrix:
    """A matrix of rows and columns.

    Parameters
    ----------
    name
        "images" or "texts": name on the command line, and of the matrix's directory.
    rows, columns, sizes
        All rows, columns and sizes, in the order in which they are shown.
    main
        Rows selected by `--cells main`.
    unprotected
        The row on which an attack must beat its floor: the gate.
    facts
        Properties of rows shown besides attacks.
    metrics
        Metrics of attacks; a table shows the first that an attack has.
    legend
        Text below the tables of the terminal.
    guide
        Link to the section of docs/attacks.md that has the legend: what stands below the tables of
        pages.
    work
        Module with the function `do`, which runs tasks.
    loads
        Further modules to import before tasks start, as imports can take as long as short tasks.
    """

    name: str
    rows: Mapping[str, AnyRow]
    columns: tuple[AnyColumn, ...]
    sizes: Mapping[str, AnySize]
    main: tuple[str, ...]
    unprotected: str
    facts: tuple[MatrixFact, ...]
    metrics: tuple[str, ...]
    legend: str
    guide: str
    work: str
    loads: tuple[str, ...] = ()

    def row(self, name: str) -> AnyRow:
        """Return the row with a name.

        Raises
        ------
        ExperimentError
            If there is none.
        """
        if name not in self.rows:
            raise ExperimentError(
                f"the matrix has no row {name!r}; {_known_names(name, self.rows)}"
            )
        return self.rows[name]

    def columns_of(self, attack: str) -> tuple[AnyColumn, ...]:
        """Return the columns of an attack, or all columns for "".

        Raises
        ------
        ExperimentError
            If there is none.
        """
        chosen = tuple(column for column in self.columns if attack in ("", column.attack))
        if not chosen:
            attacks = dict.fromkeys(column.attack for column in self.columns)
            raise ExperimentError(
                f"the matrix has no attack {attack!r}; {_known_names(attack, attacks)}"
            )
        return chosen

    def size(self, name: str) -> AnySize:
        """Return the size with a name.

        Raises
        ------
        ExperimentError
            If there is none.
        """
        if name not in self.sizes:
            raise ExperimentError(f"unknown scale {name!r}; available: {', '.join(self.sizes)}")
        return self.sizes[name]


def _known_names(name: str, names: Iterable[str]) -> str:
    """Return a phrase with the known names, those that are close to `name` first."""
    close = close_to(name, names)
    suggestion = f"did you mean {either(close)}? It" if close else "it"
    return f"{suggestion} has {', '.join(names)}"
