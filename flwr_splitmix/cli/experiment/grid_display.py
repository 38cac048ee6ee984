"""The progress display of a grid of cells on the terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from flwr_splitmix.cli.terminal import console
from flwr_splitmix.runs.reports.words import duration, percent

if TYPE_CHECKING:
    from rich.progress import TaskID

    from flwr_splitmix.experiments import Cell
    from flwr_splitmix.experiments.grid import CellProgress


class GridDisplay:
    """A progress bar for all epochs, one per running cell, and a line per finished cell."""

    def __init__(self, cells: list[Cell]) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self.console = console()
        self.bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.cells = len(cells)
        self.ended = 0
        self.began: dict[str, float] = {}
        self.tasks: dict[str, TaskID] = {}
        self.rounds = dict.fromkeys((cell.id for cell in cells), 0)
        self.whole = self.bar.add_task("epochs", total=sum(cell.recipe.epochs for cell in cells))

    def __enter__(self) -> GridDisplay:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def show(self, progress: CellProgress) -> None:
        """Show a cell's progress or its end."""
        cell = progress.cell
        if progress.state == "begun":
            self.tasks[cell.id] = self.bar.add_task(str(cell), total=cell.recipe.epochs)
            self.began[cell.id] = time.monotonic()
        if progress.state in ("begun", "round"):
            self._advance(cell, progress.rounds)
            self.bar.update(self.tasks[cell.id], completed=progress.rounds)
            return
        self._advance(cell, cell.recipe.epochs)
        if cell.id in self.tasks:
            self.bar.remove_task(self.tasks.pop(cell.id))
        self.ended += 1
        self.console.print(f"[{self.ended}/{self.cells}] {cell}: {self._outcome(progress)}")

    def _advance(self, cell: Cell, rounds: int) -> None:
        self.bar.advance(self.whole, rounds - self.rounds[cell.id])
        self.rounds[cell.id] = rounds

    def _outcome(self, progress: CellProgress) -> str:
        if progress.state == "failed":
            return f"failed: {progress.reason}"
        began = self.began.get(progress.cell.id)
        took = "" if began is None else f" in {duration(time.monotonic() - began)}"
        return f"top-1 {percent(progress.top1)}{took}"
