"""Tasks of a matrix and their order: noise levels, victims, then attacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from flwr_splitmix.experiments.privacy.cells import MatrixCell, Place
from flwr_splitmix.experiments.privacy.kinds import AnyRow, Matrix
from flwr_splitmix.experiments.privacy.matrices import IMAGES

Kind = Literal["noise", "victim", "attack"]
Outcome = Literal["done", "not applicable"]


@dataclass(frozen=True)
class Task:
    """A unit of work for one process.

    Parameters
    ----------
    kind
        "noise": find the noise at which a row's utility matches its reference row's
        (`AnyRow.brought_to`); "victim": train and record a row's system; "attack": run a cell.
    row, seed, cell
        Row, seed and, only for attacks, cell of the task.
    """

    kind: Kind
    row: AnyRow
    seed: int
    cell: MatrixCell | None = None

    @property
    def needs(self) -> tuple[Task, ...]:
        """Tasks that must be done before this one."""
        if self.kind == "noise":
            return (Task("victim", self._equal, 0),)
        noise = (Task("noise", self.row, 0),) if self.row.equal_utility else ()
        if self.kind == "victim":
            return noise
        return (*noise, Task("victim", self.row, self.seed))

    @property
    def _equal(self) -> AnyRow:
        assert self.row.brought_to is not None
        return self.row.brought_to

    def done(self, place: Place) -> bool:
        """Return whether the task's result exists."""
        if self.kind == "noise":
            return place.noise(self.row).exists()
        if self.kind == "victim":
            return (place.victim(self.row, self.seed) / "done.json").exists()
        assert self.cell is not None
        return self.cell.file(place).exists()

    def __str__(self) -> str:
        if self.kind == "noise":
            return f"{self.row.name}: noise at which {self.row.utility} is {self._equal.name}'s"
        if self.kind == "victim":
            return f"{self.row.name}: training, seed {self.seed}"
        return str(self.cell)


def with_gates(cells: Sequence[MatrixCell], matrix: Matrix = IMAGES) -> list[MatrixCell]:
    """Return the cells after those of the unprotected method, which attacks are judged by."""
    unprotected = matrix.row(matrix.unprotected)
    gates = [MatrixCell(unprotected, cell.column, cell.seed) for cell in cells]
    return list(dict.fromkeys([*gates, *cells]))


def tasks_of(cells: Iterable[MatrixCell], place: Place) -> list[Task]:
    """Return all tasks of cells that are not done, each after those that it needs."""
    ordered: dict[Task, None] = {}

    def add(task: Task) -> None:
        if task in ordered or task.done(place):
            return
        for before in task.needs:
            add(before)
        ordered[task] = None

    for cell in cells:
        add(Task("attack", cell.row, cell.seed, cell))
    return list(ordered)
