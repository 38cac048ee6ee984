"""Tables of a comparison: as text, CSV, Markdown, and LaTeX with booktabs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flwr_splitmix.runs.reports.comparison import Comparison, Group, mean_and_deviation
from flwr_splitmix.words import epsilon_text, printable


@dataclass(frozen=True)
class Measure:
    """A column of numbers.

    Parameters
    ----------
    fact
        Its name among a run's facts.
    title
        Heading, with the unit.
    scale
        Factor that converts the fact to that unit.
    digits
        Decimals shown; None for an epsilon, see `epsilon_text`.
    """

    fact: str
    title: str
    scale: float = 1.0
    digits: int | None = 2


_MEASURES = (
    Measure("loss", "loss", digits=4),
    Measure("epsilon", "epsilon", digits=None),
    Measure("uplink_bytes", "uplink (MB)", 1e-6, 1),
    Measure("downlink_bytes", "downlink (MB)", 1e-6, 1),
    Measure("wall_s", "time (s)", digits=1),
)


@dataclass(frozen=True)
class Line:
    """A group's line: its distinguishing values, number of runs, means and deviations."""

    name: str
    keys: tuple[str, ...]
    runs: int
    kind: str
    figures: tuple[tuple[float, float | None] | None, ...]


@dataclass(frozen=True)
class ComparisonTable:
    """Lines and columns of a comparison; a column for which no run has a number is left out."""

    keys: tuple[str, ...]
    measures: tuple[Measure, ...]
    lines: tuple[Line, ...]
    several_kinds: bool

    def headings(self) -> list[str]:
        """Return the titles of the columns of `rows`."""
        named = [] if self.keys else ["run"]
        kind = ["accuracy"] if self.several_kinds else []
        return [*named, *self.keys, "runs", *kind, *(measure.title for measure in self.measures)]

    def rows(self, plus_minus: str = " ± ") -> list[list[str]]:
        """Return the lines as text, with "77.6 ± 0.9" where there are several runs."""
        return [
            [
                *([] if self.keys else [line.name]),
                *line.keys,
                str(line.runs),
                *([line.kind] if self.several_kinds else []),
                *(
                    _figure(figure, measure, plus_minus)
                    for figure, measure in zip(line.figures, self.measures, strict=True)
                ),
            ]
            for line in self.lines
        ]


def tabulate(comparison: Comparison) -> ComparisonTable:
    """Make the table of a comparison: one line per group, and only the keys that differ."""
    kinds = len({kind for group in comparison.groups for kind in group.kinds}) > 1
    of_kind = "" if kinds or not comparison.kind else f", {comparison.kind}"
    scores = sorted(
        {
            name
            for group in comparison.groups
            for facts in group.facts
            for name, value in facts.items()
            if name.startswith("eval_") and name != "eval_loss" and _is_number(value)
        }
    )
    candidates = (
        Measure("top1", f"top-1 (%{of_kind})", 100, 1),
        *(Measure(name, printable(name.removeprefix("eval_")), digits=4) for name in scores),
        *_MEASURES,
    )
    measures = tuple(
        m for m in candidates if any(group.numbers(m.fact) for group in comparison.groups)
    )
    return ComparisonTable(
        comparison.keys,
        measures,
        tuple(_line(group, comparison.keys, measures) for group in comparison.groups),
        kinds,
    )


def _line(group: Group, keys: Sequence[str], measures: Sequence[Measure]) -> Line:
    figures = (group.numbers(measure.fact) for measure in measures)
    return Line(
        group.name,
        tuple(group.values.get(key, "") for key in keys),
        len(group.runs),
        ", ".join(group.kinds),
        tuple(mean_and_deviation(values) if values else None for values in figures),
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _figure(figure: tuple[float, float | None] | None, measure: Measure, plus_minus: str) -> str:
    if figure is None:
        return "-"
    mean, deviation = (None if part is None else part * measure.scale for part in figure)
    assert mean is not None
    if not math.isfinite(mean):
        return "inf" if mean > 0 else "nan"
    if measure.digits is None:
        mean_text = epsilon_text(mean)
        return mean_text if deviation is None else f"{mean_text}{plus_minus}{deviation:.2g}"
    shown = f"{mean:.{measure.digits}f}"
    return shown if deviation is None else f"{shown}{plus_minus}{deviation:.{measure.digits}f}"


def as_csv(table: ComparisonTable) -> str:
    """Return the table as CSV: means and deviations unrounded, in separate columns.

    Units are those of a run's summary: fractions, bytes, seconds. A text that a spreadsheet would
    take for a formula begins with an apostrophe.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [
        name for measure in table.measures for name in (measure.fact, f"{measure.fact}_deviation")
    ]
    reserved = {"name", "runs", "accuracy_kind", *columns}
    keys = [f"{key} (key)" if key in reserved else key for key in table.keys]
    writer.writerow(["name", *map(_inert, keys), "runs", "accuracy_kind", *columns])
    for line in table.lines:
        figures: list[Any] = []
        for figure in line.figures:
            figures += ["", ""] if figure is None else ["" if p is None else p for p in figure]
        name, kind, *keys = map(_inert, (line.name, line.kind, *line.keys))
        writer.writerow([name, *keys, line.runs, kind, *figures])
    return text.getvalue()


def _inert(text: str) -> str:
    """Return a text, possibly another's, as a cell that no spreadsheet executes."""
    if not text.startswith(("=", "+", "-", "@", "\t", "\r")):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def as_markdown(table: ComparisonTable) -> str:
    """Return the table in Markdown."""
    lines = [table.headings(), ["---"] * len(table.headings()), *table.rows()]
    return "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines
    )


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
}  # fmt: skip


def as_latex(table: ComparisonTable) -> str:
    r"""Return the table in LaTeX, for `\usepackage{booktabs}`; numbers are right-aligned."""
    named = len(table.keys) or 1
    columns = "l" * named + "r" * (len(table.headings()) - named)
    plus_minus = "\0"
    rows = [" & ".join(map(_latex, line)) for line in table.rows(plus_minus)]
    body = [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(map(_latex, table.headings())) + r" \\",
        r"\midrule",
        *(row.replace(plus_minus, r" $\pm$ ") + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(body) + "\n"


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


WRITERS: dict[str, Callable[[ComparisonTable], str]] = {
    "csv": as_csv,
    "markdown": as_markdown,
    "latex": as_latex,
}
"""Functions that write a table, by format."""
