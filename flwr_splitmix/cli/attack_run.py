"""`splitmix attack list` and `run`: an attack on a recorded run, scored against its truth."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flwr_splitmix.cli.terminal import NOTHING, RunDirectory, console, number, table
from flwr_splitmix.files import strict_json
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.recording import recording_of
from flwr_splitmix.words import counted

if TYPE_CHECKING:
    from flwr_splitmix.attacks.attacked import Attacked, Case
    from flwr_splitmix.attacks.base import Pictures
    from flwr_splitmix.attacks.intervals import Measure


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

    Image attacks work on recorded runs; text attacks are columns of `splitmix attack matrix
    texts`.
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


def run(
    run: Annotated[str, typer.Argument(metavar="RUN|latest", help="A recorded run's id.")],
    attack: Annotated[str, typer.Option("--attack", help="See `splitmix attack list`.")],
    view: Annotated[
        Adversaries, typer.Option("--view", help="The adversary, which has only what it received.")
    ] = Adversaries.server,
    public: Annotated[
        str | None,
        typer.Option(
            "--public",
            metavar="DATA",
            help="The attacker's own images: a folder, a shipped or a hub name; by default half of "
            "the run's test images.",
            show_default=False,
        ),
    ] = None,
    assume: Annotated[
        list[Assumptions] | None,
        typer.Option("--assume", help="Segments given to the adversary in addition."),
    ] = None,
    victims: Annotated[
        int,
        typer.Option("--victims", min=1, help="Number of training images, and of held-out ones."),
    ] = 128,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Releases per held-out image.")
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
    """Attack a recorded run (record-attacks=true) and score it; Ctrl-C stops and scores."""
    from flwr_splitmix.attacks.base import NotApplicable
    from flwr_splitmix.attacks.pictures import PicturesError
    from flwr_splitmix.attacks.vault import VaultError
    from flwr_splitmix.data import DataError

    if seconds is not None and math.isnan(seconds):  # which min=0 lets pass
        raise typer.BadParameter("nan is no time", param_hint="--seconds")
    opened = Run.open(run, home=run_dir)
    try:
        measures = _attack(
            opened, attack, view.value, public, [a.value for a in assume or ()], victims,
            repeats, scale.value, seconds, device, seed,
        )  # fmt: skip
    except (NotApplicable, PicturesError, VaultError, DataError, ValueError) as error:
        raise RunError(str(error)) from error
    method = str(opened.config.get("strategy"))
    if scale is Scales.smoke and not any(m.beats_floor for m in measures if m.main):
        typer.echo(
            f"note: that {attack} does not beat its floor says nothing at --scale smoke, the least "
            "effort; use --scale cpu",
            err=True,
        )
    if format is ScoreFormat.json:
        typer.echo(strict_json([_plain(m, method, attack, view.value) for m in measures], indent=2))
        return
    console().print(measures_table(f"{attack} by {view.value} on {method} ({opened.id})", measures))


def _attack(
    opened: Run,
    name: str,
    adversary: Any,
    public_name: str | None,
    assume: list[Any],
    victims: int,
    repeats: int,
    scale: Any,
    seconds: float | None,
    device: str,
    seed: int,
) -> list[Measure]:
    from flwr_splitmix.apps.vision.attacked import attacked_run
    from flwr_splitmix.attacks.attempt import PUBLIC, attempt
    from flwr_splitmix.attacks.base import Budget, NotApplicable
    from flwr_splitmix.attacks.catalogue import attack_named
    from flwr_splitmix.attacks.own_shares import taken_as_sent
    from flwr_splitmix.attacks.results import score_and_keep
    from flwr_splitmix.device import pick_device
    from flwr_splitmix.runs.recording import attacks_dir

    kind = attack_named(name)
    attacked = attacked_run(opened)
    if remark := taken_as_sent(attacked.kinds):
        typer.echo(f"note: {remark}", err=True)
    case = attacked.case(
        adversary,
        trained=victims,
        held_out=victims,
        repeats=repeats,
        assume=assume,
        gradients="gradients" in kind.needs and adversary != "eavesdropper",
        again=kind.goal == "membership",
        seed=seed,
    )
    _check_victims(opened, case, victims, recorded=kind.goal != "membership")
    images = _public(public_name, attacked, case, PUBLIC[scale], seed)
    with _stoppable() as stop, _progress() as progress:
        budget = Budget(
            scale, seconds=seconds, device=pick_device(device), progress=progress, stop=stop
        )
        try:
            fitted, guess = attempt(kind, case, images, budget, seed=seed)
        except NotApplicable as error:
            raise RunError(f"{error}{_remedy(error.assumable)}") from error
    folder = attacks_dir(opened) / "results"
    return score_and_keep(
        folder,
        fitted,
        guess,
        case,
        images,
        attacked.classify,
        scale=scale,
        assumed=assume,
        seed=seed,
    ).measures


def _check_victims(opened: Run, case: Case, victims: int, *, recorded: bool) -> None:
    """Tell of how many victims there are if they are fewer than asked for.

    Parameters
    ----------
    recorded
        Whether training images are taken from the recording.

    Raises
    ------
    RunError
        If they are, and no recorded step can be read.
    """
    trained = int(case.truth.trained.sum())
    held_out = len(case.truth.trained) - trained
    if recorded and not trained:
        there = recording_of(opened)
        steps = 0 if there is None else there.steps
        raise RunError(
            f"none of the {counted(steps, 'recorded step')} of run {opened.id} can be read, so "
            'there is nothing to attack: record a run anew with --run-config "record-attacks=true"'
        )
    counts = {"training": trained, "held-out": held_out}
    if few := [f"{count} {kind}" for kind, count in counts.items() if count < victims]:
        typer.echo(
            f"note: --victims asks for {counted(victims, 'image')} of each kind; there are only "
            f"{' and '.join(few)} ones",
            err=True,
        )


def _remedy(assumable: Sequence[str]) -> str:
    """Return how to give an adversary what it lacks; "" if that cannot be given."""
    if not assumable:
        return ""
    options = " ".join(f"--assume {name}" for name in assumable)
    return f"; to give it to the adversary in addition: {options}"


def _public(name: str | None, attacked: Attacked, case: Case, most: int, seed: int) -> Pictures:
    """Return the attacker's own images, drawn by the seed: no victims, and none of the clients'.

    Raises
    ------
    RunError
        If all images of that name are the run's own.
    """
    from flwr_splitmix.attacks.pictures import Pictures
    from flwr_splitmix.data import load_images

    shape = attacked.knowledge.image_shape
    if name is None:
        return attacked.public(min(most, len(attacked.vault.held_out) // 2), seed)
    data = load_images(name, image_size=shape[1]).train
    pictures = Pictures.of(data).fitted(shape).without(case.truth.pictures)
    for trained_on in attacked.vault.data.values():
        pictures = pictures.without(Pictures.of(trained_on))
    if not len(pictures):
        raise RunError(
            f"--public: all {len(data)} images of {name!r} are the run's own, so the attacker has "
            "none; choose other images, or leave the option out"
        )
    drawn, _ = pictures.divided(most, seed)
    return drawn


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


def measures_table(title: str, measures: list[Measure]) -> Any:
    """Return a table of measures."""
    listing = table(
        "metric", ">mean", ">95 % interval", ">median", ">5 % worst", ">floor", "beats it",
        title=title,
    )  # fmt: skip
    for own in measures:
        listing.add_row(
            own.metric,
            number(own.value, 4),
            f"{own.low:.4f} .. {own.high:.4f}",
            number(own.median, 4),
            number(own.worst, 4),
            number(own.floor, 4),
            "yes" if own.beats_floor else "no",
        )
    return listing


def _plain(measure: Measure, method: str, attack: str, adversary: str) -> dict[str, Any]:
    named = {"method": method, "attack": attack, "adversary": adversary}
    return {**named, **measure.to_json()}
