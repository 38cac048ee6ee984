"""`splitmix attack run`: an attack on a recorded run, scored against its truth."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from flwr_splitmix.cli.attack.budget import budgets
from flwr_splitmix.cli.attack.measures import measures_table, plain_measure
from flwr_splitmix.cli.terminal import RunDirectory, RunName, console
from flwr_splitmix.files.json_values import strict_json
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.attack_recording import results_dir, trace_dir
from flwr_splitmix.runs.selection import select_one

if TYPE_CHECKING:
    from flwr_splitmix.apps.configuration.project import Kind
    from flwr_splitmix.attacks.fitted import Budget
    from flwr_splitmix.attacks.results import AttackResult
    from flwr_splitmix.attacks.running.request import AttackRequest


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
    """Segments that an adversary may be given in addition."""

    lower_segment = "lower"
    upper_segment = "upper"


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
            help="At least so many training images or texts, and held-out ones; recorded steps are "
            "attacked whole. By default 128 images, 4 texts.",
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

    What each score means: docs/attacks.md, "Metrics".
    """
    if seconds is not None and math.isnan(seconds):  # which min=0 lets pass
        raise typer.BadParameter("nan is not a time", param_hint="--seconds")
    from flwr_splitmix.apps.configuration.project import kind_of_run
    from flwr_splitmix.attacks.running.request import DEFAULT_VICTIMS, TEXT_VICTIMS, AttackRequest

    opened = select_one(run, run_dir)
    recorded = trace_dir(opened).exists()
    kind = kind_of_run(opened.config)
    request = AttackRequest(
        attack=attack,
        adversary=view.value,
        victims=victims or (TEXT_VICTIMS if kind == "language" else DEFAULT_VICTIMS),
        assumed=tuple(segment.value for segment in assume or ()),
        repeats=repeats,
        public=public,
        seed=seed,
        client=client,
    )
    with budgets(scale.value, seconds, device) as budget:
        result = _attack_by_kind(opened, kind, request, budget)
    _print(opened, result, scale, as_json=format is ScoreFormat.json)
    _keep(opened, result, recorded=recorded)


def _attack_by_kind(
    opened: Run, kind: Kind, request: AttackRequest, budget: Callable[[], Budget]
) -> AttackResult:
    """Attack a run of a kind, and return the result.

    Raises
    ------
    RunError
        If there is no such attack or nothing to attack, the adversary lacks what it needs,
        an option belongs to another kind of run, or images, texts or the model are not on this
        machine.
    """
    from flwr_splitmix.attacks.fitted import NotApplicable
    from flwr_splitmix.attacks.pictures import PicturesError
    from flwr_splitmix.attacks.recording.vault import VaultError
    from flwr_splitmix.cli.attack.images import attack_images
    from flwr_splitmix.cli.attack.texts import attack_texts
    from flwr_splitmix.data import DataError

    if kind == "own":
        raise RunError(
            f"run {opened.id} is of an app of its own, whose model and data this command cannot "
            "make; docs/own-mixer.md#what-leaks attacks a method in Python"
        )
    try:
        if kind == "language":
            _check_of_texts(request)
            return attack_texts(opened, request, budget)
        if request.client is not None:
            raise RunError("--client is for runs on texts; images of all are attacked")
        return attack_images(opened, request, budget)
    except (NotApplicable, PicturesError, VaultError, DataError, ValueError) as error:
        raise RunError(str(error)) from error


def _print(opened: Run, result: AttackResult, scale: Scales, *, as_json: bool) -> None:
    """Print a result's measures, and notes on the limits of what it shows."""
    from flwr_splitmix.attacks.results import stopped_note, title

    measures = result.measures
    if note := stopped_note(result):
        typer.echo(f"note: {note}", err=True)
    if scale is Scales.smoke and not any(m.beats_floor for m in measures if m.main):
        typer.echo(
            f"note: that {result.attack} does not beat its floor is no evidence at --scale smoke, "
            "the least effort; use --scale cpu",
            err=True,
        )
    if as_json:
        typer.echo(strict_json([plain_measure(m, result) for m in measures], indent=2))
    else:
        console().print(measures_table(title(result, opened.id), measures))


def _keep(opened: Run, result: AttackResult, *, recorded: bool) -> None:
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
        keep(folder, result)
    except OSError as error:
        where = error.filename or folder
        raise RunError(
            f"the result could not be kept: {where}: {error.strerror or error}; make room or give "
            "yourself the right to write there, and run the attack again"
        ) from error


def _check_of_texts(request: AttackRequest) -> None:
    """Refuse options that attacks on texts do not have."""
    for option, is_given in (
        (f"--view '{request.adversary}'", request.adversary != Adversaries.server),
        ("--assume", bool(request.assumed)),
        ("--repeats", request.repeats != 1),
    ):
        if is_given:
            raise RunError(
                f"{option} is for images; texts are attacked as the server has them: leave it out"
            )
