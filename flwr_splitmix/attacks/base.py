"""Views and attacks: what an adversary has, and what it makes of that."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

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
Scale = Literal["smoke", "cpu", "paper"]

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


class NotApplicable(ValueError):  # noqa: N818  # the word of the tables
    """An attack needs what the adversary does not have; the cell says so, and never "safe"."""


@dataclass(frozen=True)
class View:
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

    def require(self, *needs: str) -> None:
        """Raise NotApplicable, which says what is missing, if the view lacks any of `needs`."""
        missing = sorted({*needs} - {*self.has, "public data"})
        if missing:
            lacks = " and ".join(NEEDS.get(need, f"no {need}") for need in missing)
            raise NotApplicable(
                f"the view of the adversary {self.adversary!r} on {self.knowledge.method} has "
                f"{lacks}, without which there is no such attack"
            )


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


def _silent(what: str, done: int, of: int) -> None:
    """Show nothing."""


@dataclass(frozen=True)
class Budget:
    """What an attack may spend: the same for all methods.

    Parameters
    ----------
    scale
        "smoke", "cpu" or "paper": an attack's own sizes follow it.
    seconds
        Processor time of this thread, from now on, for all that is done with this budget, so that
        other programs on the machine do not weaken an attack; None is no limit.
    iterations
        Most steps of any one loop; None is the attack's own number.
    device
        Where the attack computes.
    progress
        Is told what is done, how far, and of how much.
    stop
        Set, it ends every loop after the step in progress; the attack gives what it has.
    """

    scale: Scale = "cpu"
    seconds: float | None = None
    iterations: int | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    progress: Callable[[str, int, int], None] = _silent
    stop: threading.Event = field(default_factory=threading.Event, compare=False)
    _began: float = field(default_factory=time.thread_time, init=False, repr=False, compare=False)

    def steps(self, number: int, what: str = "") -> Iterator[int]:
        """Count from 0 to `number`, or less: ends early where budget or stop say so.

        At least one step is made, so that there is something to give.
        """
        number = number if self.iterations is None else min(number, self.iterations)
        for done in range(number):
            if done and self.over:
                return
            yield done
            self.progress(what, done + 1, number)

    @property
    def over(self) -> bool:
        """Whether the attack must come to an end."""
        late = self.seconds is not None and time.thread_time() - self._began > self.seconds
        return late or self.stop.is_set()

    def again(self, seconds: float | None = None) -> Budget:
        """Return the same budget with its time beginning anew."""
        return replace(self, seconds=self.seconds if seconds is None else seconds)


class Attack(ABC):
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

    name: ClassVar[str]
    goal: ClassVar[Goal]
    needs: ClassVar[frozenset[str]] = frozenset()
    settings: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)
    source: ClassVar[str] = ""

    def __init__(self, **setting: Any) -> None:
        self.setting = setting
        self.budget = Budget()
        self.seed = 0

    def fit(
        self, view: View, public: Pictures | None, budget: Budget | None = None, *, seed: int = 0
    ) -> None:
        """Learn from public images what the attack needs.

        A subclass calls this first: it keeps budget and seed, and checks what the view has.

        Parameters
        ----------
        public
            Images that are no victim's, shaped as the model takes them; None where there are none.

        Raises
        ------
        NotApplicable
            If the view lacks what the attack needs.
        """
        view.require(*self.needs)
        if "public data" in self.needs and public is None:
            raise NotApplicable(f"the attack {self.name!r} needs public images, and there are none")
        self.budget = budget or Budget()
        self.seed = seed

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
