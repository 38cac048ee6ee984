"""A paper's privacy table as cells of the matrix, with its numbers and its claims."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr_splitmix.experiments.cells import dataset_name
from flwr_splitmix.experiments.experiment import Ordering, Place
from flwr_splitmix.experiments.privacy import cells as matrix
from flwr_splitmix.experiments.privacy.cells import MatrixCell
from flwr_splitmix.experiments.privacy.columns import Column
from flwr_splitmix.experiments.privacy.rows import Row
from flwr_splitmix.experiments.tables import counted, grid
from flwr_splitmix.experiments.verdicts import BySeed, Verdict, judged


@dataclass(frozen=True)
class PrivacyEntry:
    """One place of a table.

    Parameters
    ----------
    row, column
        Names in the paper.
    victim, attack
        Row and column of the matrix; None if the paper's data are not available.
    metric
        Metric of the attack.
    paper
        The paper's number; None if a figure does not print it.
    """

    row: str
    column: str
    victim: Row | None
    attack: Column | None
    metric: str = "MSE"
    paper: float | None = None

    @property
    def place(self) -> Place:
        """Row and column of the entry."""
        return self.row, self.column


@dataclass(frozen=True)
class PrivacyExperiment:
    """A table or figure on privacy that can be run.

    Parameters
    ----------
    name, title, source
        Name on the command line; subject; paper and table.
    entries, orderings
        Entries, and the paper's claims about them.
    note
        Remarks needed for a comparison with the paper.
    """

    name: str
    title: str
    source: str
    entries: tuple[PrivacyEntry, ...]
    orderings: tuple[Ordering, ...] = ()
    note: str = ""

    @property
    def offered(self) -> int:
        """Number of the table's places that can be run."""
        return sum(entry.victim is not None for entry in self.entries)

    def cells(self, seeds: Sequence[int]) -> Iterator[tuple[PrivacyEntry, MatrixCell]]:
        """Yield (entry, cell) for every entry that can be run, all of one seed before the next."""
        for seed in seeds:
            for entry in self.entries:
                if entry.victim is not None and entry.attack is not None:
                    yield entry, MatrixCell(entry.victim, entry.attack, seed)


@dataclass(frozen=True)
class PlaceScore:
    """Result of an attack at a place of a table, with one seed.

    Parameters
    ----------
    cell, seed
        Name of the cell's result, which depends on all values that define the cell; seed.
    value, floor
        Values of the place's metric; None if the attack is not applicable.
    reason
        Reason why it is not; "" if it is.
    """

    cell: str
    seed: int
    value: float | None = None
    floor: float | None = None
    reason: str = ""


def score_of_entry(entry: PrivacyEntry, cell: MatrixCell, place: matrix.Place) -> PlaceScore | None:
    """Read a cell's result in an entry's metric.

    Returns
    -------
    None if the cell was not run, or only by a version that did not measure this.
    """
    result = cell.result(place)
    if result is None:
        return None
    name = cell.file(place).stem
    for metric in result.get("metrics", ()):
        if metric["metric"] == entry.metric:
            return PlaceScore(name, cell.seed, float(metric["value"]), float(metric["floor"]))
    reason = result.get("reason")
    return PlaceScore(name, cell.seed, reason=reason) if reason else None


@dataclass(frozen=True)
class PrivacyLine:
    """An entry with its values by seed, and their mean floor."""

    entry: PrivacyEntry
    by_seed: BySeed
    floor: float | None = None
    reason: str = ""

    @property
    def values(self) -> tuple[float, ...]:
        """The values, one per seed."""
        return tuple(self.by_seed.values())

    @property
    def mean(self) -> float | None:
        """Mean over seeds; None without values."""
        return statistics.fmean(self.values) if self.values else None


@dataclass(frozen=True)
class PrivacyTable:
    """An experiment with its results and verdicts on its claims: (claim, verdict, margin).

    Claims are judged by means over the same seeds, see `judged`.
    """

    experiment: PrivacyExperiment
    place: matrix.Place
    lines: tuple[PrivacyLine, ...]
    claims: tuple[tuple[Ordering, Verdict, float | None], ...]


def make_table(experiment: PrivacyExperiment, place: matrix.Place) -> PrivacyTable:
    """Make the table of an experiment from the cells that were run."""
    return table_of(experiment, place, all_reached(experiment, place))


def all_reached(
    experiment: PrivacyExperiment, place: matrix.Place
) -> dict[Place, tuple[PlaceScore, ...]]:
    """Read the results of all cells that were run, at each place of a table that has any."""
    at: dict[Place, tuple[PlaceScore, ...]] = {entry.place: () for entry in experiment.entries}
    for entry, cell in experiment.cells(place.seeds):
        if one := score_of_entry(entry, cell, place):
            at[entry.place] += (one,)
    return {place: every for place, every in at.items() if every}


def table_of(
    experiment: PrivacyExperiment,
    place: matrix.Place,
    reached_at: Mapping[Place, Sequence[PlaceScore]],
) -> PrivacyTable:
    """Make a table from the results at each of its places, one per seed."""
    lines = tuple(_line(entry, reached_at.get(entry.place, ())) for entry in experiment.entries)
    by_place = {line.entry.place: line for line in lines}
    claims: list[tuple[Ordering, Verdict, float | None]] = []
    for ordering in experiment.orderings:
        below, above = (by_place[at] for at in (ordering.low, ordering.high))
        if below.entry.victim is None or above.entry.victim is None:
            claims.append((ordering, "not offered", None))
        else:
            verdict = judged(below.by_seed, above.by_seed, ordering.slack)
            claims.append((ordering, *verdict))
    return PrivacyTable(experiment, place, lines, tuple(claims))


def _line(entry: PrivacyEntry, every: Sequence[PlaceScore]) -> PrivacyLine:
    values = {one.seed: one.value for one in every if one.value is not None}
    floors = [one.floor for one in every if one.floor is not None]
    floor = statistics.fmean(floors) if floors else None
    return PrivacyLine(entry, values, floor, next((one.reason for one in every if one.reason), ""))


HEADINGS = ("method", "at", "here", "floor", "seeds", "paper")


def rows(table: PrivacyTable) -> list[list[str]]:
    """Return the table's lines as text."""
    return [
        [
            line.entry.row,
            line.entry.column,
            _state(line) if line.mean is None else _spread(line.values),
            "-" if line.floor is None else f"{line.floor:.4f}",
            str(len(line.values)),
            "-" if line.entry.paper is None else f"{line.entry.paper:g}",
        ]
        for line in table.lines
    ]


def claim_rows(table: PrivacyTable) -> list[list[str]]:
    """Return the claims as text: ordering, verdict, margin."""
    return [
        [str(ordering), verdict, "-" if margin is None else f"{margin:+.4f}"]
        for ordering, verdict, margin in table.claims
    ]


def title(table: PrivacyTable) -> str:
    """Return a table's title: experiment, source, scale and data set."""
    experiment, place = table.experiment, table.place
    return (
        f"{experiment.name}: {experiment.title} ({experiment.source}); scale {place.size.name}, "
        f"{dataset_name(place.source)}"
    )


def tally(table: PrivacyTable) -> str:
    """Return the counts of the claims' verdicts: "12 agree, 3 disagree"."""
    return counted(verdict for _, verdict, _ in table.claims)


def to_json(table: PrivacyTable) -> dict[str, Any]:
    """Return the table as plain values."""
    experiment = table.experiment
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "source": experiment.source,
        "note": experiment.note,
        "scale": table.place.size.name,
        "dataset": dataset_name(table.place.source),
        "lines": [
            {
                "row": line.entry.row,
                "column": line.entry.column,
                "metric": line.entry.metric,
                "paper": line.entry.paper,
                "values": list(line.values),
                "mean": line.mean,
                "floor": line.floor,
                "reason": line.reason,
            }
            for line in table.lines
        ],
        "orderings": [
            {
                "low": list(ordering.low),
                "high": list(ordering.high),
                "verdict": verdict,
                "margin": margin,
            }
            for ordering, verdict, margin in table.claims
        ],
    }


def to_markdown(table: PrivacyTable) -> str:
    """Return the table in Markdown."""
    return "\n".join([f"### {title(table)}", "", *markdown_lines(table)]).rstrip() + "\n"


def markdown_lines(table: PrivacyTable) -> list[str]:
    """Return the lines of the table, its note and the paper's orderings, in Markdown."""
    lines = list(grid(HEADINGS, rows(table)))
    if table.experiment.note:
        lines += [table.experiment.note, ""]
    if table.claims:
        lines += [f"The paper's orderings: {tally(table)}.", ""]
        lines += grid(("ordering", "here", "margin"), claim_rows(table))
    return lines


def _state(line: PrivacyLine) -> str:
    if line.entry.victim is None:
        return "not offered"
    return "n/a" if line.reason else "not run"


def _spread(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4f}{spread}"
