"""One attack on one case: fitted on public images, run on the view, scored against the truth."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from flwr_splitmix.attacks.attacked import Assumption, Attacked
from flwr_splitmix.attacks.base import Attack, Guess
from flwr_splitmix.attacks.case import Case
from flwr_splitmix.attacks.catalogue import attack_named, own_attack
from flwr_splitmix.attacks.fitted import Budget, NotApplicable
from flwr_splitmix.attacks.guess import checked_guess
from flwr_splitmix.attacks.hints import hints, without
from flwr_splitmix.attacks.own_shares import taken_as_sent
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.release import Adversary
from flwr_splitmix.attacks.scoring.floors import Floors
from flwr_splitmix.attacks.scoring.intervals import Measure
from flwr_splitmix.attacks.scoring.scores import score_guess

log = logging.getLogger("flwr.splitmix")

PUBLIC = {"smoke": 200, "cpu": 4000, "paper": 60_000}
"""Most public images that an attacker gets, by scale."""

UNTRAINED = (
    "lower segments with the run's first weights, which the server sent, are the adversary's; to "
    "give it the trained ones: "
)
"""What is said if the adversary has no trained lower segments; the remedy follows."""


def attempt(
    kind: type[Attack],
    case: Case,
    public: Pictures,
    budget: Budget,
    *,
    setting: Mapping[str, Any] | None = None,
    trial_steps: int | None = None,
    seed: int = 0,
) -> tuple[Attack, Guess]:
    """Fit an attack on public images and run it on a view.

    Parameters
    ----------
    setting
        Arguments of the attack; None tries its settings on public images, unless it is given the
        labels of some victims, which are not scored then.
    trial_steps
        Steps of each trial, if settings are tried.

    Raises
    ------
    NotApplicable
        If the adversary lacks what the attack needs.
    TypeError, ValueError
        If its `run` returns anything but a guess about the view; see `checked_guess`.
    """
    known = hints(kind, case)
    chosen = {**(setting or {}), **({"hints": known} if known else {})}
    if chosen:
        attack = kind(**chosen)
        attack.fit(case.view, public, budget, seed=seed)
    else:
        steps = {} if trial_steps is None else {"trial_steps": trial_steps}
        attack = kind.tune(case.view, public, budget, seed=seed, **steps)
    guess = checked_guess(attack, attack.run(case.view), case.view)
    return attack, without(guess, known, case.truth)


def measure_leak(
    system: Attacked,
    attack: str | type[Attack] = "linear",
    adversary: Adversary = "server",
    *,
    assume: Sequence[Assumption] = (),
    victims: int = 128,
    budget: Budget | None = None,
    seed: int = 0,
) -> list[Measure]:
    """Attack a trained system, and return what the attack reads; the first measure is the main one.

    A warning says if the attack takes an own share's uploads as they were sent, or if the adversary
    has no trained lower segments.

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
    if remark := taken_as_sent(system.kinds):
        log.warning("%s", remark)
    spent = budget or Budget("cpu")
    case = system.case(
        adversary,
        trained=victims,
        held_out=victims,
        assume=assume,
        gradients="gradients" in kind.needs and adversary != "eavesdropper",
        again=kind.goal == "membership",
        seed=seed,
    )
    if case.view.knowledge.untrained:
        log.warning('%sassume=["lower"]', UNTRAINED)
    public = system.public_up_to(PUBLIC[spent.scale], seed)
    try:
        made, guess = attempt(kind, case, public, spent, seed=seed)
    except NotApplicable as error:
        if not (given := list(error.assumable)):
            raise
        remedy = f"{error}; to give it to the adversary in addition: assume={given}"
        raise NotApplicable(remedy, error.missing) from error
    floors = Floors.of(made, case.view, public)
    scored = score_guess(
        made.goal, guess, case.truth, floors, classifier=system.classify, seed=seed
    )
    return scored.measures
