"""One attack on images: its case, its fit on public images, its run, its scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr_splitmix.attacks.attacked import Attacked
from flwr_splitmix.attacks.base import Attack, Guess
from flwr_splitmix.attacks.case import Case
from flwr_splitmix.attacks.fitted import Budget, NotApplicable
from flwr_splitmix.attacks.gallery import Reconstructions
from flwr_splitmix.attacks.guess import checked_guess
from flwr_splitmix.attacks.hints import hints, without_hinted
from flwr_splitmix.attacks.own_shares import taken_as_sent
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.results import AttackResult
from flwr_splitmix.attacks.running.request import AttackRequest
from flwr_splitmix.attacks.scoring.floors import Floors
from flwr_splitmix.attacks.scoring.image_scores import Classifier
from flwr_splitmix.attacks.scoring.scores import score_guess

MAX_PUBLIC = {"smoke": 200, "cpu": 4000, "paper": 60_000}
"""Most public images that an attacker gets, by scale."""

UNTRAINED = (
    "lower segments with the run's first weights, which the server sent, are the adversary's; to "
    "give it the trained ones: "
)
"""The note on an adversary without trained lower segments; the remedy follows."""

Assume = Callable[[Sequence[str]], str]
"""Says how a user gives an adversary segments in addition, which are named "lower", "upper"."""


def image_case(
    system: Attacked,
    kind: type[Attack],
    request: AttackRequest,
    *,
    trained: bool = True,
    held_out: bool = True,
) -> Case:
    """Return the case that an attack is run on: what its adversary has, with the truth.

    Releases have gradients if the attack needs some. An attack on membership gets releases of the
    trained system alone, of training images as of held-out ones.

    Parameters
    ----------
    trained, held_out
        Whether training images, and held-out ones, are victims.

    Raises
    ------
    ValueError
        If the system has no such adversary, or cannot give it what is assumed.
    VaultError
        If the recording is not of the clients' images.
    """
    return system.case(
        request.adversary,
        trained=request.victims if trained else 0,
        held_out=request.victims if held_out else 0,
        repeats=request.repeats,
        assume=request.assumed,
        gradients="gradients" in kind.needs and request.adversary != "eavesdropper",
        again=kind.goal == "membership",
        seed=request.seed,
    )


def remarks_on(system: Attacked, case: Case, assume: Assume) -> list[str]:
    """Return notes for readers of scores on the truth, and on what the adversary has."""
    remarks = [*system.remarks, taken_as_sent(system.kinds)]
    if case.view.knowledge.untrained:
        remarks.append(UNTRAINED + assume(["lower"]))
    return [remark for remark in remarks if remark]


def run_on_images(
    kind: type[Attack],
    case: Case,
    public: Pictures,
    budget: Budget,
    request: AttackRequest,
    *,
    setting: Mapping[str, Any] | None = None,
    trial_steps: int | None = None,
    classifier: Classifier | None = None,
    assume: Assume | None = None,
) -> AttackResult:
    """Fit an attack on public images, run it on a case, and score its guess.

    Parameters
    ----------
    case
        The case of the request; see `image_case`.
    public
        Images of no victim.
    setting, trial_steps
        As in `attempt`.
    classifier
        The trained system's own logits, for a measure of what a reconstruction shows; None leaves
        that measure out.
    assume
        For the remedy in an error; None gives none.

    Raises
    ------
    NotApplicable
        If the adversary lacks what the attack needs.
    TypeError, ValueError
        As `attempt`, or if there is nothing to score.
    """
    try:
        attack, guess = attempt(
            kind,
            case,
            public,
            budget,
            setting=setting,
            trial_steps=trial_steps,
            seed=request.seed,
        )
    except NotApplicable as error:
        if assume is None or not error.assumable:
            raise
        remedy = f"{error}; to give it to the adversary in addition: {assume(error.assumable)}"
        raise NotApplicable(remedy, error.missing) from error
    stopped_after = budget.stopped_after  # before the scores, which are none of the attack's time
    floors = Floors.of(attack, case.view, public)
    scored = score_guess(
        attack.goal, guess, case.truth, floors, classifier=classifier, seed=request.seed
    )
    pictures = None
    if attack.goal == "images":
        pictures = Reconstructions.of(attack.name, case.view, guess, case.truth)
    return AttackResult.of(
        request,
        case.view,
        scale=budget.scale,
        stopped_after=stopped_after,
        measures=scored.measures,
        rows=scored.rows,
        pictures=pictures,
    )


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
    label_hints = hints(kind, case)
    chosen = {**(setting or {}), **({"hints": label_hints} if label_hints else {})}
    if chosen:
        attack = kind(**chosen)
        attack.fit(case.view, public, budget, seed=seed)
    else:
        steps = {} if trial_steps is None else {"trial_steps": trial_steps}
        attack = kind.tune(case.view, public, budget, seed=seed, **steps)
    guess = checked_guess(attack, attack.run(case.view), case.view)
    return attack, without_hinted(guess, label_hints, case.truth)
