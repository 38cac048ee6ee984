"""Views and attacks: what an adversary has, and what it makes of that."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from torch import Tensor

from flwr_splitmix.attacks.fitted import AnyView, Budget, FittedAttack, NotApplicable, Scale
from flwr_splitmix.attacks.knowledge import Knowledge
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.release import Adversary, Origin, Release, Simulated

__all__ = [
    "Adversary",
    "Attack",
    "Budget",
    "Goal",
    "Guess",
    "Knowledge",
    "NotApplicable",
    "Origin",
    "Pictures",
    "Release",
    "Scale",
    "Simulated",
    "View",
]

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
    "losses": "no losses",
    "public data": "no public images",
}
"""What attacks may need, and what is said of a view that lacks it."""


@dataclass(frozen=True)
class View(AnyView):
    """All that a named adversary has: nothing of the truth can be reached from it.

    Parameters
    ----------
    adversary
        Who it is.
    releases
        What it received, oldest first.
    knowledge
        What it knows of method and model.
    """

    lacks: ClassVar[Mapping[str, str]] = NEEDS

    adversary: Adversary
    releases: Sequence[Release]
    knowledge: Knowledge

    @property
    def has(self) -> frozenset[str]:
        """What attacks may need, of `NEEDS`, as far as a view can have it."""
        known, got = self.knowledge, self.releases
        held = {
            "smashed data": any(bool(r.smashed.any()) for r in got[:8]),
            "lower": known.lowers is not None,
            "averaged segments": known.averaged and known.lowers is not None,
            "upper": known.upper is not None,
            "masks": bool(got) and all(r.mask is not None for r in got),
            "owners": bool(got) and all(r.owners is not None for r in got),
            "clients": bool(got) and all(r.client is not None for r in got),
            "gradients": any(r.gradient is not None for r in got),
            "labels": any(r.labels is not None for r in got),
            "losses": any(r.loss is not None for r in got),
        }
        return frozenset(name for name, here in held.items() if here)


@dataclass(frozen=True)
class Guess:
    """What an attack made of a view.

    Parameters
    ----------
    values
        One entry a guess. Goal "images": float (m, C, H, W), 0 to 1. "order": int64 (m, N), the
        position of the patch at each slot. "owners": int64 (m, N), the owner of each patch, by any
        numbering. "labels": int64 (m,), or scores (m,) or (m, L). "membership": float (m,), the
        higher, the likelier was the example trained on.
    confidence
        float (m,): the attack's own, in any unit, the higher the surer.
    where
        For each guess its release, by position in the view, and its row. A row may have several
        guesses: each of the images that are mixed there, in any order.
    """

    values: Tensor
    confidence: Tensor
    where: Sequence[tuple[int, int]]


class Attack(FittedAttack[View, Pictures]):
    """An attack: fitted on public images, run on a view.

    Parameters
    ----------
    **setting
        One of `settings`; what it leaves out is the attack's own choice.

    Attributes
    ----------
    name
        What the tables call it.
    goal
        What it guesses; see `Guess`.
    needs
        What a view must have, of `NEEDS`.
    settings
        The settings among which `tune` chooses on public images: the same for every method. One
        that has a single setting is not tuned.
    source
        Where it is from.
    """

    goal: ClassVar[Goal]
    settings: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)
    public_data = "images"

    def __init__(self, **setting: Any) -> None:
        super().__init__()
        self.setting = setting

    @abstractmethod
    def run(self, view: View) -> Guess:
        """Guess what is behind the releases of a view, with what `fit` has kept."""

    def quality(self, guess: Guess, view: View, public: Pictures) -> float:
        """Say how good a guess about releases of the attacker's own images is: higher is better.

        For images it is the mean squared error's negative. An attack of another goal with several
        settings overrides it.

        Parameters
        ----------
        view
            Its releases are `Simulated`: each knows its rows' images in `public`.
        """
        if self.goal != "images":
            raise NotImplementedError(f"{type(self).__name__} has several settings, and no quality")
        errors = []
        for value, (release, row) in zip(guess.values, guess.where, strict=True):
            simulated = view.releases[release]
            assert isinstance(simulated, Simulated)
            assert simulated.origin is not None
            own = simulated.origin.sources[row]
            truth = public.images[own[own >= 0]]
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
        """Return the attack in the setting that is best on held-out public images, fitted on all.

        A fifth of the public images, at most 256, is held out and released by
        `Knowledge.simulate`. With time limits, choosing and the last fit have half each.

        Parameters
        ----------
        trial_steps
            Most steps of a loop while settings are compared; None is the budget's number.

        Raises
        ------
        NotApplicable
            As `fit`.
        """
        budget = budget or Budget()
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
            reached = attack.quality(attack.run(trial), trial, held_out)
            if reached > best:
                best, chosen = reached, setting
            if budget.stop.is_set():
                break
        attack = cls(**chosen)
        half = None if budget.seconds is None else budget.seconds / 2
        attack.fit(view, public, budget.again(half), seed=seed)
        return attack
