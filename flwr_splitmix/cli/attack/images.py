"""An attack on the recorded images of a run, by `splitmix attack run`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from flwr_splitmix.cli.attack.request import AttackRequest
from flwr_splitmix.cli.attack.victims import tell_of_fewer
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.attack_recording import recording_of
from flwr_splitmix.words import counted

if TYPE_CHECKING:
    from flwr_splitmix.attacks.attacked import Attacked
    from flwr_splitmix.attacks.case import Case
    from flwr_splitmix.attacks.fitted import Budget
    from flwr_splitmix.attacks.pictures import Pictures
    from flwr_splitmix.attacks.results import Kept

VICTIMS = 128
"""Training images, and held-out ones, that are attacked if no number is given."""


def attack_images(
    opened: Run, request: AttackRequest, budget: Callable[[], Budget]
) -> tuple[Kept, list[dict[str, Any]]]:
    """Attack recorded images of a run, and return the result and what was measured of each sample.

    Raises
    ------
    RunError, ValueError
        If there is no such attack or nothing to attack, or the adversary lacks what it needs.
    VaultError, DataError, ConfigError
        If the recording is of other images, or images or model are not on this machine.
    """
    from flwr_splitmix.apps.vision.attacked import attacked_run
    from flwr_splitmix.attacks.attempt import PUBLIC, UNTRAINED, attempt
    from flwr_splitmix.attacks.catalogue import attack_named
    from flwr_splitmix.attacks.fitted import NotApplicable
    from flwr_splitmix.attacks.own_shares import taken_as_sent
    from flwr_splitmix.attacks.results import score

    kind = attack_named(request.attack)
    attacked = attacked_run(opened)
    for remark in filter(None, (*attacked.remarks, taken_as_sent(attacked.kinds))):
        typer.echo(f"note: {remark}", err=True)
    number = VICTIMS if request.victims is None else request.victims
    case = attacked.case(
        request.adversary,
        trained=number,
        held_out=number,
        repeats=request.repeats,
        assume=request.assumed,
        gradients="gradients" in kind.needs and request.adversary != "eavesdropper",
        again=kind.goal == "membership",
        seed=request.seed,
    )
    if case.view.knowledge.untrained:
        typer.echo(f"note: {UNTRAINED}--assume lower", err=True)
    _check_victims(opened, case, number, recorded=kind.goal != "membership")
    spent = budget()
    images = _public(request.public, attacked, case, PUBLIC[spent.scale], request.seed)
    try:
        fitted, guess = attempt(kind, case, images, spent, seed=request.seed)
    except NotApplicable as error:
        raise RunError(f"{error}{_remedy(error.assumable)}") from error
    scored, kept = score(
        fitted,
        guess,
        case,
        images,
        attacked.classify,
        scale=spent.scale,
        assumed=request.assumed,
        seed=request.seed,
        stopped_after=spent.stopped_after,
    )
    own = replace(kept, victims=number, repeats=request.repeats, public=request.public)
    return own, scored.rows


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
    tell_of_fewer(victims, trained, held_out, "image")


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
        return attacked.public_up_to(most, seed)
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
