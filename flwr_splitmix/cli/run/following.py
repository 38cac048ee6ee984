"""Following a run: writes its log to a file and shows its progress on the terminal."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from flwr_splitmix.cli.terminal import drop_output
from flwr_splitmix.files.reading import read_json
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.flower_run import LOG, find_flower_run

CHECK_EVERY_SECONDS = 0.25
"""Seconds between two checks of log and progress."""

FIND_DIRECTORY_EVERY_SECONDS = 1.0

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ROUND = re.compile(r"\bround (\d+)/(\d+) \| (.*)")
_WARNING = re.compile(r"\bWARNING\s*:\s*(.*)")
_WITHOUT_MEANING = re.compile(
    "default simulated SuperNodes changed|Manually terminating ClientAppActor"
)
"""Warnings of Flower's about its default number of nodes, and at each simulation's end."""
_RAISED = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|Interrupt)): (.+)")


class Display(Protocol):
    """Shows the progress of a run.

    Attributes
    ----------
    closed
        The error of standard output that takes no more, because it was closed, as by `| head`, or
        is on a full disk: what is shown since then is lost. None while all is well.
    """

    closed: OSError | None

    def progress(self, round: int, rounds: int, step: int, steps: int) -> None:
        """Show the current round and step."""

    def result(self, line: str) -> None:
        """Show the results of a finished round, a line of the log."""

    def show_line(self, line: str) -> None:
        """Show a permanent line."""


class PlainDisplay:
    """One line per round, for pipes and files."""

    closed: OSError | None = None

    def progress(self, round: int, rounds: int, step: int, steps: int) -> None:
        """Print nothing: a step is not a line."""

    def result(self, line: str) -> None:
        """Print the line."""
        self.show_line(line)

    def show_line(self, line: str) -> None:
        """Print the line."""
        try:
            print(line, flush=True)
        except OSError as error:
            self.closed = error
            drop_output()


class BarDisplay:
    """A bar on a terminal, with the results of the last round."""

    closed: OSError | None = None

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[words]}"),
        )
        self._task = self.bars.add_task("starting", total=None, words="")

    def progress(self, round: int, rounds: int, step: int, steps: int) -> None:
        """Move the bar; the current round counts by its steps."""
        part = min(step / steps, 1.0) if steps else 0.0
        at = f", step {step}" + (f"/{steps}" if steps else "") if step else ""
        self.bars.update(
            self._task,
            total=rounds or None,
            completed=max(round - 1, 0) + part,
            description=f"round {round}/{rounds}{at}",
        )

    def result(self, line: str) -> None:
        """Put the results behind the bar, where they replace those of the round before."""
        self.bars.update(self._task, words=line.partition(" | ")[2])

    def show_line(self, line: str) -> None:
        """Print the line above the bar."""
        try:
            self.bars.console.print(line, markup=False, highlight=False)
        except OSError as error:
            self.closed = error
            drop_output()


@contextmanager
def display() -> Iterator[Display]:
    """Show progress within the block, as a bar or as lines depending on standard output."""
    if sys.stdout is None or not sys.stdout.isatty():  # None: closed from the beginning, as by >&-
        yield PlainDisplay()
        return
    bar = BarDisplay()
    bar.bars.start()
    try:
        yield bar
    finally:
        with suppress(OSError):  # of a terminal that is gone
            bar.bars.stop()


class ClosedError(Exception):
    """Standard output accepts no more, so that the progress is not read any more.

    Parameters
    ----------
    error
        The error of writing to it: `BrokenPipeError` if its reader has ended.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output cannot be written: {error.strerror}")
        self.error = error


class RemovedError(Exception):
    """The folder of the run has been removed."""


@dataclass
class RunFollower:
    """The state of a run while it is followed, and afterwards.

    Parameters
    ----------
    flower_run
        Flower's id of the run.
    home
        Where runs are kept, according to the run's configuration.
    log
        The log file; it moves into the run's directory once that exists on this machine, or, if
        that is on another disk, once the run is over.
    run
        The run's directory, if it is on this machine.
    words, raised
        The log line of the last finished round, and the last exception in the log.
    position, looked
        Position up to which the log was read, and when the run's directory was last looked for.
    removed
        Whether the run's folder has been removed while the run was followed.
    """

    flower_run: int
    home: Path
    log: Path
    run: Run | None = None
    words: str = ""
    raised: str = ""
    position: int = 0
    looked: float = 0.0
    removed: bool = False

    @property
    def finished(self) -> bool:
        """Whether the run has trained all its rounds, and not only before it was resumed."""
        return bool(self.words) and self.run is not None and self.run.status == "finished"

    def new_lines(self) -> list[str]:
        """Return the complete lines added to the log since the last call.

        Raises
        ------
        RemovedError
            If the run's folder is gone, once; after that there are no lines, as without a log.
        """
        if self.removed:
            return []
        try:
            with self.log.open("rb") as file:
                file.seek(self.position)
                whole, end, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            if self.run is None or not self.run.config_file.removed:
                return []
            self.removed = True
            raise RemovedError(f"{self.run.path} has been removed") from None
        self.position += len(whole) + len(end)
        return _COLOURS.sub("", whole.decode("utf-8", errors="replace")).splitlines()

    def find_directory(self, last_time: bool) -> None:
        """Find the run's directory, and move the log there."""
        if self.removed:
            return
        is_due = time.monotonic() >= self.looked + FIND_DIRECTORY_EVERY_SECONDS
        if self.run is None and (is_due or last_time):
            self.looked = time.monotonic()
            self.run = find_flower_run(self.flower_run, self.home)
        if self.run is not None and self.log != self.run.path / LOG:
            self._move_log(self.run.path / LOG, last_time)

    def _move_log(self, target: Path, last_time: bool) -> None:
        if target.exists():  # of an earlier part of a resumed run
            with suppress(FileNotFoundError):
                target.rename(target.with_suffix(f".{time.time_ns()}.log"))
        before, self.log = self.log, target
        try:
            os.replace(before, target)  # its writer keeps writing to it
        except FileNotFoundError:
            return  # a folder is gone, which `new_lines` reports
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            if last_time:
                shutil.move(before, target)
            else:  # on another disk, what is written to it meanwhile would be lost
                self.log = before


def follow(followed: RunFollower, writer: subprocess.Popen[bytes], shown: Display) -> None:
    """Show a run's progress until the process that writes its log ends.

    Raises
    ------
    RemovedError, ClosedError
        If the run's folder has been removed, or standard output takes no more, once: the run can
        be followed on without.
    """
    while True:
        over = writer.poll() is not None
        for line in followed.new_lines():
            _take_in(line, followed, shown)
        followed.find_directory(over)
        _show(followed, shown)
        if over:
            return
        if shown.closed is not None:
            error, shown.closed = shown.closed, None
            raise ClosedError(error)
        time.sleep(CHECK_EVERY_SECONDS)


def _take_in(line: str, followed: RunFollower, shown: Display) -> None:
    if match := _ROUND.search(line):
        followed.words = match[0]
        shown.result(match[0])
    elif (match := _WARNING.search(line)) and not _WITHOUT_MEANING.search(line):
        shown.show_line(f"warning: {match[1]}")
    elif match := _RAISED.match(line.strip()):
        followed.raised = f"{match[1]}: {match[2]}"


def _show(followed: RunFollower, shown: Display) -> None:
    match = _ROUND.search(followed.words)
    last, rounds = (int(match[1]), int(match[2])) if match else (0, 0)
    facts = _facts(followed.run)
    round_, step = facts.get("round", 0), facts.get("steps_done", 0)
    if round_ > last:
        shown.progress(round_, facts.get("rounds", rounds), step, facts.get("steps", 0))
    elif match:
        shown.progress(last, rounds, 1, 1)


def _facts(run: Run | None) -> dict[str, int]:
    if run is None:
        return {}
    try:
        facts = read_json(run.path / "progress.json")
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}
