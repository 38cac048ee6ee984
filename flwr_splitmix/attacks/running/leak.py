"""The leak of a trained system to one attack: for users' own programs."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from flwr_splitmix.attacks.attacked import Assumption, Attacked
from flwr_splitmix.attacks.base import Attack
from flwr_splitmix.attacks.catalogue import attack_named, own_attack
from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.release import Adversary
from flwr_splitmix.attacks.running.images import (
    MAX_PUBLIC,
    image_case,
    remarks_on,
    run_on_images,
)
from flwr_splitmix.attacks.running.request import DEFAULT_VICTIMS, AttackRequest
from flwr_splitmix.attacks.scoring.intervals import Measure

log = logging.getLogger("flwr.splitmix")


def measure_leak(
    system: Attacked,
    attack: str | type[Attack] = "linear",
    adversary: Adversary = "server",
    *,
    assume: Sequence[Assumption] = (),
    victims: int = DEFAULT_VICTIMS,
    budget: Budget | None = None,
    seed: int = 0,
) -> list[Measure]:
    """Attack a trained system, and return what the attack reads; the first measure is the main one.

    A warning reports if the attack takes an own share's uploads as they were sent, or if the
    adversary has no trained lower segments.

    Parameters
    ----------
    attack
        Name of an attack on images, of which `splitmix attack list` shows all; or an own class.
    assume
        Segments given to the adversary in addition to those it would have: "lower", "upper".
    victims
        The number of training images, and of held-out ones; fewer if there are not as many.
    budget
        Effort, time limit and device; None is scale "cpu" on the CPU.

    Raises
    ------
    NotApplicable
        If the adversary lacks what the attack needs.
    TypeError
        If `attack` is neither a name nor a subclass of `Attack`, lacks its name, its goal or `run`,
        or returns no guess.
    ValueError
        If there is no attack of that name, or a guess does not fit; see `checked_guess`.
    VaultError
        If the recording is not of the clients' images.
    """
    kind = attack_named(attack) if isinstance(attack, str) else own_attack(attack)
    spent = budget or Budget("cpu")
    request = AttackRequest(
        attack=kind.name, adversary=adversary, victims=victims, assumed=tuple(assume), seed=seed
    )
    case = image_case(system, kind, request)
    for remark in remarks_on(system, case, _assume_argument):
        log.warning("%s", remark)
    public = system.public_up_to(MAX_PUBLIC[spent.scale], seed)
    result = run_on_images(
        kind, case, public, spent, request, classifier=system.classify, assume=_assume_argument
    )
    return result.measures


def _assume_argument(segments: Sequence[str]) -> str:
    return f"assume={list(segments)}"
