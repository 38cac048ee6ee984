"""An attack on the recorded images of a run, by `splitmix attack run`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import typer

from flwr_splitmix.cli.attack.victims import note_fewer_victims
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.attack_recording import recording_of
from flwr_splitmix.words import counted

if TYPE_CHECKING:
    from flwr_splitmix.attacks.attacked import Attacked
    from flwr_splitmix.attacks.case import Case
    from flwr_splitmix.attacks.fitted import Budget
    from flwr_splitmix.attacks.pictures import Pictures
    from flwr_splitmix.attacks.results import AttackResult
    from flwr_splitmix.attacks.running.request import AttackRequest


def attack_images(
    opened: Run, request: AttackRequest, budget: Callable[[], Budget]
) -> AttackResult:
    """Attack recorded images of a run, and return the result.

    Raises
    ------
    RunError, ValueError
        If there is no such attack or nothing to attack, or the adversary lacks what it needs.
    VaultError, DataError, ConfigError
        If the recording has other images, or images or model are not on this machine.
    """
    from flwr_splitmix.apps.vision.attacked import attacked_run
    from flwr_splitmix.attacks.catalogue import attack_named
    from flwr_splitmix.attacks.running.images import (
        MAX_PUBLIC,
        image_case,
        remarks_on,
        run_on_images,
    )

    kind = attack_named(request.attack)
    attacked = attacked_run(opened)
    case = image_case(attacked, kind, request)
    for remark in remarks_on(attacked, case, _assume_options):
        typer.echo(f"note: {remark}", err=True)
    _check_victims(opened, case, request.victims, recorded=kind.goal != "membership")
    spent = budget()
    images = _public_images(request, attacked, case, MAX_PUBLIC[spent.scale])
    return run_on_images(
        kind, case, images, spent, request, classifier=attacked.classify, assume=_assume_options
    )


def _assume_options(segments: Sequence[str]) -> str:
    return " ".join(f"--assume {name}" for name in segments)


def _check_victims(opened: Run, case: Case, victims: int, *, recorded: bool) -> None:
    """Print how many victims there are if they are fewer than requested.

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
        recording = recording_of(opened)
        steps = 0 if recording is None else recording.steps
        raise RunError(
            f"none of the {counted(steps, 'recorded step')} of run {opened.id} can be read, so "
            'there is nothing to attack: record a run anew with --run-config "record-attacks=true"'
        )
    note_fewer_victims(victims, trained, held_out, "image")


def _public_images(request: AttackRequest, attacked: Attacked, case: Case, most: int) -> Pictures:
    """Return the attacker's own images, drawn by the seed: no victims, and none of the clients'.

    Raises
    ------
    RunError
        If all images of that name are the run's own.
    """
    from flwr_splitmix.attacks.pictures import Pictures
    from flwr_splitmix.data import load_images

    name, shape = request.public, attacked.knowledge.image_shape
    if name is None:
        return attacked.public_up_to(most, request.seed)
    data = load_images(name, image_size=shape[1]).train
    pictures = Pictures.of(data).fitted(shape).without(case.truth.pictures)
    for trained_on in attacked.vault.data.values():
        pictures = pictures.without(Pictures.of(trained_on))
    if not len(pictures):
        raise RunError(
            f"--public: all {len(data)} images of {name!r} are the run's own, so the attacker has "
            "none; choose other images, or leave the option out"
        )
    drawn, _ = pictures.divided(most, request.seed)
    return drawn
