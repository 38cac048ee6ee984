"""Cells of the matrix: a row, a column and a seed, and the location of their results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from flwr_splitmix.experiments.cells import ExperimentError, dataset_name
from flwr_splitmix.experiments.privacy.kinds import AnyColumn, AnyRow, AnySize, Matrix
from flwr_splitmix.experiments.privacy.matrices import IMAGES, MATRICES
from flwr_splitmix.files.home import home_folder
from flwr_splitmix.files.json_values import NOT_FINITE
from flwr_splitmix.runs.damage import damage_of, read_object

_REMEDY = "remove it, and the cell is run again"
_CELLS = "cells"
_SEED = re.compile(r".*-s(\d+)-[0-9a-f]+")


@dataclass(frozen=True)
class Place:
    """Location of a matrix, with its size, data set and device.

    Parameters
    ----------
    home
        Parent directory of attacks/; None for the environment's SPLITMIX_HOME, else ~/.splitmix.
    size
        Size of the matrix.
    source
        Name or folder of the data set.
    device
        "auto", "cpu", "cuda", ...
    """

    home: Path | None
    size: AnySize
    source: str
    device: str = "cpu"

    @classmethod
    def of(cls, home: Path | None, size: AnySize, source: str | None, device: str = "cpu") -> Place:
        """Return the place of these parameters, with the size's data set if `source` is None."""
        return cls(home, size, size.source if source is None else source, device)

    @property
    def matrix(self) -> Matrix:
        """The matrix to which the size belongs."""
        return MATRICES[self.size.matrix]

    @property
    def folder(self) -> Path:
        """Directory of the matrix, one for each size and data set."""
        home = home_folder(self.home).expanduser()
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", dataset_name(self.source))
        return home / "attacks" / self.matrix.name / f"{self.size.name}-{plain}"

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of all cells that were run here, sorted."""
        names = (file.stem for file in (self.folder / _CELLS).glob("*.json"))
        return tuple(sorted({int(match[1]) for name in names if (match := _SEED.fullmatch(name))}))

    def victim(self, row: AnyRow, seed: int) -> Path:
        """Return the directory of a victim, with its recording and its ground truth."""
        return self.folder / "victims" / f"{_plain(row.name)}-s{seed}-{_digest(row, self.size)}"

    def noise(self, row: AnyRow) -> Path:
        """Return the file with the noise of a row."""
        return self.folder / "noise" / f"{_plain(row.name)}-{_digest(row, self.size)}.json"


@dataclass(frozen=True)
class MatrixCell:
    """One attack of one adversary on one row, with a seed."""

    row: AnyRow
    column: AnyColumn
    seed: int

    def file(self, place: Place) -> Path:
        """Return the file of the result; its name depends on all values that define the cell."""
        name = f"{self.row.name}-{self.column.attack}-{self.column.adversary}-s{self.seed}"
        digest = _digest(self.row, self.column, place.size)
        return place.folder / _CELLS / f"{_plain(name)}-{digest}.json"

    def folder(self, place: Place) -> Path:
        """Return the directory of the scores by sample, and of images."""
        return self.file(place).with_suffix("")

    def result(self, place: Place) -> dict[str, Any] | None:
        """Return the result, or None if there is none.

        Raises
        ------
        RunError
            If its file cannot be read; the message names it and the remedy.
        """
        file = self.file(place)
        if not file.exists():
            return None
        read = read_object(file, _REMEDY)
        with damage_of(file, _REMEDY):
            for metric in read.get("metrics", ()):
                metric |= {name: float(word) for name, word in metric.items() if word in NOT_FINITE}
            _check(read)
            for fact in place.matrix.facts:
                float(read.get(fact.key, 0))
        return read

    def __str__(self) -> str:
        return f"{self.row.name}: {self.column.name}, seed {self.seed}"


def choose(cells: str, seeds: Sequence[int], matrix: Matrix = IMAGES) -> list[MatrixCell]:
    """Return the cells that match a filter, all of one row and seed together.

    Parameters
    ----------
    cells
        Parts separated by commas, each "ROW", "ROW:ATTACK" or ":ATTACK" (for all rows); the row
        "main" stands for the matrix's main rows, "all" for all rows; "" selects all cells.

    Raises
    ------
    ExperimentError
        If there is no such row or attack.
    """
    chosen: dict[AnyRow, dict[AnyColumn, None]] = {}
    for part in filter(None, (part.strip() for part in cells.split(","))) if cells else [":"]:
        name, _, attack = part.partition(":")
        if part == ":" and cells:
            raise ExperimentError(
                "':' names no cell; leave the cells out for all of them, or name a ROW or :ATTACK"
            )
        rows: Iterable[AnyRow]
        if name in ("", "all"):
            rows = matrix.rows.values()
        elif name == "main":
            rows = (matrix.rows[each] for each in matrix.main)
        else:
            rows = (matrix.row(name),)
        for row in rows:
            for column in matrix.columns_of(attack.strip()):
                chosen.setdefault(row, {})[column] = None
    if not chosen:
        first = f"{matrix.unprotected}:{matrix.columns[0].attack}"
        raise ExperimentError(f"no cell is named; a cell is ROW or ROW:ATTACK, as in {first}")
    return [
        MatrixCell(row, column, seed)
        for seed in seeds
        for row, columns in chosen.items()
        for column in matrix.columns
        if column in columns
    ]


def _check(result: Mapping[str, Any]) -> None:
    """Raise LookupError, TypeError or ValueError if a result lacks a value that readers need."""
    state = result["state"]
    if state == "not applicable":
        _check_text("reason", result["reason"])
    elif state != "done":
        raise ValueError(f"state is {state!r:.80}")
    for metric in result["metrics"] if state == "done" else ():
        _check_text("metric", metric["metric"])
        for name in ("value", "low", "high", "floor", "main", "lower_is_stronger"):
            if not isinstance(metric[name], int | float):
                raise ValueError(f"{name} is {metric[name]!r:.80}, which is not a number")


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r:.80}, which is not text")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _digest(*parts: AnyRow | AnyColumn | AnySize) -> str:
    values = [part.identity() if isinstance(part, AnyColumn) else asdict(part) for part in parts]
    for each in values:  # descriptions do not define a cell
        each.pop("note", None)
        each.pop("title", None)
    packed = json.dumps(values, sort_keys=True, default=str)
    return blake2b(packed.encode(), digest_size=5).hexdigest()
