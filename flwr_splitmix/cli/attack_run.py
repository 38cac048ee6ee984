"""`splitmix attack list` and `run`: an attack on a recorded run, scored against its truth."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flwr_splitmix.cli.terminal import RunDirectory, RunName, console, table
from flwr_splitmix.files import strict_json
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.recording import results_dir, trace_dir
from flwr_splitmix.runs.reports.words import NOTHING
from flwr_splitmix.runs.selection import select_one

if TYPE_CHECKING:
    from flwr_splitmix.attacks.fitted import Budget
    from flwr_splitmix.attacks.intervals import Measure
    from flwr_splitmix.attacks.results import Kept


class Adversaries(StrEnum):
    """The adversary whose view is attacked."""

    server = "server"
    upper_only = "upper only"
    sum_only = "sum only"
    member = "member of the group"
    eavesdropper = "eavesdropper"


class Scales(StrEnum):
    """The effort of an attack; "smoke" shows that it runs, and proves nothing."""

    smoke = "smoke"
    cpu = "cpu"
    paper = "paper"


class ScoreFormat(StrEnum):
    """The output format."""

    table = "table"
    json = "json"


class Assumptions(StrEnum):
    """What an adversary may be given in addition."""

    lower_segment = "lower"
    upper_segment = "upper"


def list_attacks() -> None:
    """List all attacks: what each guesses, and what its adversary must have.

    Attacks on images work on recorded runs and on all runs of the vision app in the U shape,
    attacks on texts on all runs of the language app.
    """
    from flwr_splitmix.attacks.catalogue import image_attacks, text_attacks
    from flwr_splitmix.extras import MissingExtraError, needed_for

    listing = table("attack", "of", "guesses", "needs", "settings")

    def add(name: str, of: str, goal: str, needs: Iterable[str], settings: int) -> None:
        listing.add_row(name, of, goal, ", ".join(sorted(needs)) or NOTHING, str(settings))

    for name, kind in image_attacks().items():
        add(name, "images", kind.goal, kind.needs, len(kind.settings))
    without = ""
    try:
        with needed_for("a list of the attacks on texts"):
            for name, reader in text_attacks().items():
                add(name, "texts", "words", reader.needs, 1)
    except MissingExtraError as missing:
        without = str(missing)
    console().print(listing)
    if without:
        typer.echo(without, err=True)


def run_attack(
    run: RunName,
    attack: Annotated[str, typer.Option("--attack", help="See `splitmix attack list`.")],
    view: Annotated[
        Adversaries, typer.Option("--view", help="The adversary, which has only what it received.")
    ] = Adversaries.server,
    public: Annotated[
        str | None,
        typer.Option(
            "--public",
            metavar="DATA",
            help="The attacker's own data. Images: a folder, a shipped or a hub name; by default "
            "half of the run's test images. Texts: a file or folder of plain text; by default the "
            "run's public texts.",
            show_default=False,
        ),
    ] = None,
    assume: Annotated[
        list[Assumptions] | None,
        typer.Option("--assume", help="Segments given to the adversary in addition."),
    ] = None,
    victims: Annotated[
        int | None,
        typer.Option(
            "--victims",
            min=1,
            help="Number of training images or texts, and of held-out ones; by default 128 images, "
            "4 texts.",
            show_default=False,
        ),
    ] = None,
    client: Annotated[
        int | None,
        typer.Option(
            "--client",
            min=0,
            help="Whose texts are attacked; by default those of the first client.",
            show_default=False,
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, max=1000, help="Releases per held-out image.")
    ] = 1,
    scale: Annotated[
        Scales, typer.Option("--scale", help="The attack's effort; smoke proves nothing.")
    ] = (Scales.smoke),
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", min=0, help="Time limit in seconds.", show_default=False),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, ...")] = "auto",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the attack's draws.")] = 0,
    format: Annotated[  # noqa: A002 - the option's name
        ScoreFormat, typer.Option("--format", help="A table, or one JSON list.")
    ] = ScoreFormat.table,
    run_dir: RunDirectory = None,
) -> None:
    """Attack a run and score what the attack reads; Ctrl-C stops and scores.

    What is attacked are the images, or the texts of a client, of a recorded run
    (record-attacks=true). In the U shape those of any other run are released again by its trained
    parts, as in a training step. Attacks on texts compute on the CPU.
    """
    if seconds is not None and math.isnan(seconds):  # which min=0 lets pass
        raise typer.BadParameter("nan is no time", param_hint="--seconds")
    opened = select_one(run, run_dir)
    recorded = trace_dir(opened).exists()
    with _budgets(scale, seconds, device) as budget:
        result, rows = _attacked(
            opened, attack, view, public, assume or (), victims, client, repeats, budget, seed
        )
    _print(opened, result, attack, scale, as_json=format is ScoreFormat.json)
    _keep(opened, result, rows, recorded=recorded)


def _attacked(
    opened: Run,
    attack: str,
    view: Adversaries,
    public: str | None,
    assume: Sequence[Assumptions],
    victims: int | None,
    client: int | None,
    repeats: int,
    budget: Callable[[], Budget],
    seed: int,
) -> tuple[Kept, list[dict[str, Any]]]:
    """Attack a run; return the result, and what was measured of each sample.

    Raises
    ------
    RunError
        If there is no such attack or nothing to attack, the adversary lacks what it needs, an
        option is of another kind of run, or images, texts or the model are not on this machine.
    """
    from flwr_splitmix.apps.project import kind_of_run
    from flwr_splitmix.attacks.fitted import NotApplicable
    from flwr_splitmix.attacks.pictures import PicturesError
    from flwr_splitmix.attacks.vault import VaultError
    from flwr_splitmix.cli.attack_images import attack_images
    from flwr_splitmix.cli.attack_texts import attack_texts
    from flwr_splitmix.data import DataError

    assumed = [segment.value for segment in assume]
    kind = kind_of_run(opened.config)
    if kind == "own":
        raise RunError(
            f"run {opened.id} is of an app of its own, whose model and data this command cannot "
            "make; docs/own-mixer.md#what-leaks attacks a method in Python"
        )
    try:
        if kind == "language":
            _check_of_texts(view, assumed, repeats)
            return attack_texts(opened, attack, public, victims, client, budget, seed)
        if client is not None:
            raise RunError("--client is for runs on texts; images of all are attacked")
        return attack_images(
            opened, attack, view.value, public, assumed, victims, repeats, budget, seed
        )
    except (NotApplicable, PicturesError, VaultError, DataError, ValueError) as error:
        raise RunError(str(error)) from error


def _print(opened: Run, result: Kept, attack: str, scale: Scales, *, as_json: bool) -> None:
    """Print a result's measures, and notes on what it says less than it seems to."""
    from flwr_splitmix.attacks.results import stopped_note, title

    measures = result.measures
    if note := stopped_note(result):
        typer.echo(f"note: {note}", err=True)
    if scale is Scales.smoke and not any(m.beats_floor for m in measures if m.main):
        typer.echo(
            f"note: that {attack} does not beat its floor says nothing at --scale smoke, the least "
            "effort; use --scale cpu",
            err=True,
        )
    if as_json:
        typer.echo(strict_json([_plain(m, result) for m in measures], indent=2))
    else:
        console().print(measures_table(title(result, opened.id), measures))


def _keep(opened: Run, result: Kept, rows: Sequence[dict[str, Any]], *, recorded: bool) -> None:
    """Keep a result, unless it was cut short and a complete one is kept.

    Parameters
    ----------
    recorded
        Whether the run was recorded when the attack began; that may have been removed meanwhile.

    Raises
    ------
    RunError
        If the recording is no longer there, or the result cannot be written.
    """
    from flwr_splitmix.attacks.results import complete_result, keep

    folder = results_dir(opened)
    if recorded and not trace_dir(opened).exists():
        raise RunError(
            f"the recording of run {opened.id} was removed during the attack, so its result is not "
            "kept"
        )
    if result.stopped_after is not None and complete_result(folder, result):
        typer.echo(
            f"note: this result is not kept: run {opened.id} has a complete one of the same "
            "options, see `splitmix attack show`",
            err=True,
        )
        return
    try:
        keep(folder, result, rows)
    except OSError as error:
        where = error.filename or folder
        raise RunError(
            f"the result could not be kept: {where}: {error.strerror or error}; make room or give "
            "yourself the right to write there, and run the attack again"
        ) from error


def _check_of_texts(view: Adversaries, assume: Sequence[str], repeats: int) -> None:
    """Refuse options that attacks on texts do not have."""
    for option, given in (
        (f"--view '{view.value}'", view is not Adversaries.server),
        ("--assume", bool(assume)),
        ("--repeats", repeats != 1),
    ):
        if given:
            raise RunError(
                f"{option} is for images; texts are attacked as the server has them: leave it out"
            )


@contextmanager
def _budgets(scale: Scales, seconds: float | None, device: str) -> Iterator[Callable[[], Budget]]:
    """Yield what makes an attack's budget: it shows the progress, and Ctrl-C stops the attack."""
    from flwr_splitmix.attacks.fitted import Budget
    from flwr_splitmix.device import pick_device

    with ExitStack() as shown:

        def budget() -> Budget:  # its time begins now
            return Budget(
                scale.value,
                seconds=seconds,
                device=pick_device(device),
                progress=shown.enter_context(_progress()),
                stop=shown.enter_context(_stoppable()),
            )

        yield budget


@contextmanager
def _stoppable() -> Iterator[threading.Event]:
    """Let the first Ctrl-C stop the attack, and the second end the command."""
    stop = threading.Event()

    def ask(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _progress() -> Iterator[Any]:
    """Show a progress bar on standard error, and yield the function that updates it."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, of: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what or "attack", total=of)
            bar.update(tasks[what], completed=done, total=of)

        yield show


def measures_table(titled: str, measures: list[Measure]) -> Any:
    """Return a table of measures."""
    listing = table(
        "metric", ">mean", ">95 % interval", ">median", ">5 % worst", ">floor", "beats it",
        title=titled,
    )  # fmt: skip
    for own in measures:
        listing.add_row(
            own.metric,
            _digits(own.value),
            f"{_digits(own.low)} .. {_digits(own.high)}",
            _digits(own.median),
            _digits(own.worst),
            _digits(own.floor),
            "yes" if own.beats_floor else "no",
        )
    return listing


def _digits(value: float | None) -> str:
    """Return a number with four significant digits: errors are of any size."""
    return NOTHING if value is None else f"{value:.4g}"


def _plain(measure: Measure, result: Kept) -> dict[str, Any]:
    named = {
        "method": result.method,
        "attack": result.attack,
        "adversary": result.adversary,
        "client": result.client,
        "scale": result.scale,
        "seed": result.seed,
        "victims": result.victims,
    }
    return {**named, "stopped_after": result.stopped_after, **measure.to_json()}
