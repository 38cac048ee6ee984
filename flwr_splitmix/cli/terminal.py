"""Numbers, tables and shared options of the commands, for the terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from flwr_splitmix.files.writing import write_atomic
from flwr_splitmix.runs import RunError
from flwr_splitmix.runs.reports.words import NOTHING
from flwr_splitmix.words import printable


def run_directory(folder: str) -> Path:
    """Return the value of --run-dir; an empty one, as of a variable that is not set, is refused.

    Raises
    ------
    RunError
        If the folder is empty: it would mean the current directory.
    """
    if not folder.strip():
        raise RunError("--run-dir is empty; name a folder, or leave the option out")
    return Path(folder)


RunName = Annotated[str, typer.Argument(metavar="RUN|latest", help="A run's id, or its label.")]
RUNS_HELP = 'Ids, "latest", or labels: all runs of that label.'
RunNames = Annotated[list[str], typer.Argument(metavar="RUN...", help=RUNS_HELP)]
RunDirectory = Annotated[
    Path | None,
    typer.Option(
        "--run-dir",
        metavar="DIR",
        parser=run_directory,
        help="Directory that holds runs/; by default $SPLITMIX_HOME, or else ~/.splitmix.",
        show_default=False,
    ),
]

_WIDTH = 200  # columns: a narrow terminal wraps lines, so that ids are not cut


def console() -> Console:
    """Return a console on standard output, the same in a terminal and in a pipe."""
    return Console(width=_WIDTH, highlight=False, markup=False, emoji=False)


class _PlainTable(Table):
    """A table whose cells cannot command the terminal."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(
            *(printable_lines(cell) if isinstance(cell, str) else cell for cell in cells), **options
        )


def table(*columns: str, title: str | None = None) -> Table:
    """Return an empty table; columns whose name starts with ">" are right-aligned."""
    listing = _PlainTable(
        box=None,
        padding=(0, 2, 0, 0),
        title=None if title is None else printable_lines(title),
        title_justify="left",
        title_style="italic",
    )
    for column in columns:
        right = column.startswith(">")
        named = printable_lines(column.removeprefix(">"))
        listing.add_column(named, justify="right" if right else "left")
    return listing


def printable_lines(several: str) -> str:
    """Return lines of text with control characters escaped, except line breaks and tabs."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in several.split("\n"))


def text(value: Any) -> str:
    """Return a value as printable text, "-" for None, and the "name" of a mapping with one."""
    if isinstance(value, dict) and "name" in value:
        value = value["name"]
    return NOTHING if value is None else printable(str(value))


def not_blank(remedy: str) -> Callable[[typer.CallbackParam, str | None], str | None]:
    """Return the callback of an option that refuses an empty value, as of a variable not set.

    An empty value would mean the default: all cells, say, which take hours. The callback raises
    RunError, whose message names the option and the remedy.
    """

    def check(option: typer.CallbackParam, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise RunError(f"{option.opts[0]} is empty; {remedy}")
        return value

    return check


NAME_CELLS = not_blank("name cells, or leave the option out for all of them")
NAME_DATA = not_blank("name a data set, or leave the option out")


def numbers(seeds: str) -> list[int]:
    """Read seeds separated by commas.

    Raises
    ------
    RunError
        If the seeds are not integers from 0 to 2**63 - 1.
    """
    try:
        numbers = [int(part) for part in seeds.split(",")]
    except ValueError:
        numbers = [-1]
    if min(numbers) < 0 or max(numbers) >= 2**63:
        raise RunError(
            f"seeds is {seeds!r:.80}; they must be numbers from 0 to 2**63 - 1, as in 0,1,2"
        )
    return list(dict.fromkeys(numbers))


def print_sentence(sentence: str, color: str | None = None, *, err: bool = False) -> None:
    """Print a sentence whose names, of files or of a server, cannot command the terminal."""
    typer.secho(printable_lines(sentence), fg=color, err=err)


def note(remark: str, *, err: bool = True) -> None:
    """Print a remark, usually to standard error, unless it is empty."""
    if remark:
        print_sentence(f"note: {remark}", typer.colors.YELLOW, err=err)


def problem(sentence: str) -> None:
    """Print a problem on standard error."""
    print_sentence(sentence, typer.colors.RED, err=True)


def fail(sentence: str, status: int = 1) -> NoReturn:
    """Print a problem on standard error, and exit with the status."""
    problem(sentence)
    raise typer.Exit(status)


def write_output(file: Path, data: bytes) -> None:
    """Write a file that the user named, whole or not at all; of a link, the file it leads to.

    Raises
    ------
    RunError
        If the file cannot be written; an older file is intact then.
    """
    try:
        write_atomic(file.resolve(), data, parents=False)
    except OSError as error:
        raise RunError(f"cannot write {file}: {error.strerror}") from error


def drop_output() -> None:
    """Discard what is still to be written to standard output, since it accepts no more."""
    with contextlib.suppress(OSError, AttributeError), open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())


def output_fails() -> bool:
    """Whether standard output accepts no more, as on a full disk; if it does, it gets a line break.

    A stream may have lost what it could not write, without reporting it.
    """
    try:
        print(flush=True)
    except OSError:
        return True
    return False


@contextlib.contextmanager
def terminated_as_interrupted(*others: signal.Signals) -> Iterator[None]:
    """Let SIGTERM stop the block as Ctrl-C does, so that running work keeps its state.

    Parameters
    ----------
    others
        Further signals that do once, unless they are ignored, as nohup has it with SIGHUP. A shell
        whose terminal is closed repeats that signal to its jobs.
    """

    def once(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    signals = [s for s in (signal.SIGTERM, *others) if signal.getsignal(s) != signal.SIG_IGN]
    before = {
        number: signal.signal(number, once if number in others else signal.default_int_handler)
        for number in signals
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
