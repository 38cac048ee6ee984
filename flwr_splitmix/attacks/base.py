"""Views and attacks: what an adversary has, and what it infers from that."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from flwr_splitmix.attacks.fitted import AnyView, Budget, FittedAttack, NotApplicable
from flwr_splitmix.attacks.guess import Guess as Guess
from flwr_splitmix.attacks.guess import checked_guess
from flwr_splitmix.attacks.knowledge import Knowledge
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.release import Adversary, Release, Simulated
from flwr_splitmix.attacks.tails import Tails

Goal = Literal["images", "order", "owners", "labels", "membership"]

NEEDS: dict[str, str] = {
    "smashed data": "no smashed data",
    "lower": "no trained lower segment",
    "averaged segments": "no averaged lower segment",
    "upper": "no upper segment",
    "masks": "no masks",
    "owners": "no word of whose patch is whose",
    "clients": "no word of whose release is whose",
    "gradients": "no gradients",
    "labels": "no labels",
    "own labels": "no examples of its own in a mixture",
    "losses": "no losses",
    "tails": (
        "no recorded steps of tails whose labels stay with the client (the U shape, "
        "record-attacks=true)"
    ),
    "public data": "no public images",
}
"""The possible needs of attacks, and the wording for a view that lacks one."""


@dataclass(frozen=True)
class View(AnyView):
    """Everything a named adversary has; it gives no access to the truth.

    Parameters
    ----------
    adversary
        Which adversary it is.
    releases
        The releases that the adversary received, oldest first.
    knowledge
        The adversary's knowledge of method and model.
    tails
        The recording of clients' tails in the U shape; None if there is none.
    """

    wording_of_missing: ClassVar[Mapping[str, str]] = NEEDS

    adversary: Adversary
    releases: Sequence[Release]
    knowledge: Knowledge
    tails: Tails | None = None

    @property
    def available(self) -> frozenset[str]:
        """The entries of `NEEDS` that this view has."""
        knowledge, releases = self.knowledge, self.releases
        entries = {
            "smashed data": any(bool(r.smashed.any()) for r in releases[:8]),
            "lower": knowledge.lowers is not None,
            "averaged segments": knowledge.averaged and knowledge.lowers is not None,
            "upper": knowledge.upper is not None,
            "masks": bool(releases) and all(r.mask is not None for r in releases),
            "owners": bool(releases) and all(r.owners is not None for r in releases),
            "clients": bool(releases) and all(r.client is not None for r in releases),
            "gradients": any(r.gradient is not None for r in releases),
            "labels": any(r.labels is not None for r in releases),
            "own labels": any(r.own_labels is not None for r in releases),
            "losses": any(r.loss is not None for r in releases),
            "tails": self.tails is not None,
        }
        return frozenset(name for name, present in entries.items() if present)


class Attack(FittedAttack[View, Pictures]):
    """An attack: fitted on public images, run on a view.

    Parameters
    ----------
    **setting
        One of `settings`; the attack chooses what it leaves out.

    Attributes
    ----------
    name
        Its name in tables.
    goal
        The kind of values that it guesses; see `Guess`.
    needs
        The entries of `NEEDS` that a view must have.
    settings
        The settings among which `tune` chooses on public images: the same for every method. An
        attack with a single setting is not tuned.
    hinted
        Whether it is given some known labels, as the setting `hints`.
    source
        The publication it comes from.
    """

    goal: ClassVar[Goal]
    settings: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)
    hinted: ClassVar[bool] = False
    public_data = "images"

    def __init__(self, **setting: Any) -> None:
        super().__init__()
        self.setting = setting

    def check(self, view: View) -> None:
        """Raise NotApplicable unless the view has what the attack needs."""
        super().check(view)
        if view.knowledge.multi_label and self.goal in ("labels", "membership"):
            raise NotApplicable(
                f"the attack {self.name!r} is on images of one class each, and these have several "
                "labels"
            )

    @abstractmethod
    def run(self, view: View) -> Guess:
        """Guess what is behind the releases of a view, using what `fit` learned."""

    def quality(self, guess: Guess, view: View, public: Pictures) -> float:
        """Return how good a guess about releases of the attacker's own images is: higher is better.

        For images this is the negative mean squared error. An attack with another goal and several
        settings must override it.

        Parameters
        ----------
        view
            A view whose releases are `Simulated`: each knows the images of its rows in `public`.
        """
        if self.goal != "images":
            raise NotImplementedError(f"{type(self).__name__} has several settings, and no quality")
        errors = []
        for value, (release, row) in zip(guess.values, guess.where, strict=True):
            simulated = view.releases[release]
            assert isinstance(simulated, Simulated)
            assert simulated.origin is not None
            sources = simulated.origin.sources[row]
            truth = public.images[sources[sources >= 0]]
            errors.append(float((truth - value.cpu()).square().flatten(1).mean(1).min()))
        return -float(np.mean(errors))

    @classmethod
    def tune(
        cls,
        view: View,
        public: Pictures | None,
        budget: Budget | None = None,
        *,
        trial_steps: int | None = None,
        seed: int = 0,
    ) -> Self:
        """Return the attack with the setting best on held-out public images, fitted on all of them.

        A fifth of the public images, at most 256, is held out and released by
        `Knowledge.simulate`. Choosing takes at most half of a time limit, and the final fit has
        what is left. Guesses at these are checked as the final one is.

        Parameters
        ----------
        trial_steps
            Most steps of a loop while settings are compared; None uses the budget's number.

        Raises
        ------
        NotApplicable
            As in `fit`.
        TypeError, ValueError
            If `run` returns anything but a guess; see `checked_guess`.
        """
        budget = budget or Budget()
        cls(**cls.settings[0]).check(view)  # before anything is simulated for this view
        if len(cls.settings) == 1 or public is None:
            attack = cls(**cls.settings[0])
            attack.fit(view, public, budget, seed=seed)
            return attack
        held_out, others = public.divided(min(max(1, len(public) // 5), 256), seed)
        rng = np.random.default_rng(seed)
        trial = replace(
            view,
            releases=view.knowledge.simulate(
                held_out.images,
                held_out.labels,
                rng,
                adversary=view.adversary,
                gradients="gradients" in cls.needs,
            ),
        )
        share = None if budget.seconds is None else budget.seconds / 2 / len(cls.settings)
        short = budget if trial_steps is None else replace(budget, iterations=trial_steps)
        best, chosen = -np.inf, cls.settings[0]
        for setting in cls.settings:
            attack = cls(**setting)
            attack.fit(view, others, short.again(share), seed=seed)
            try:
                guess = checked_guess(attack, attack.run(trial), trial)
            except (TypeError, ValueError) as error:
                raise type(error)(
                    f"with the setting {setting}, on public images, {error}"
                ) from error
            reached = attack.quality(guess, trial, held_out)
            if reached > best:
                best, chosen = reached, setting
            if budget.stop.is_set():
                budget.cut.set()
                break
        attack = cls(**chosen)
        attack.fit(view, public, budget.again(budget.left), seed=seed)
        return attack
