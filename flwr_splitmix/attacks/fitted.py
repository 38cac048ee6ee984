"""The budget of an attack, and its fitting to a view: common to images and texts."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch

from flwr_splitmix.attacks.release import Adversary

__all__ = ["AnyView", "Budget", "FittedAttack", "NotApplicable", "Scale"]

Scale = Literal["smoke", "cpu", "paper"]


class NotApplicable(ValueError):  # noqa: N818  # the word of the tables
    """An attack needs what the adversary lacks; tables then show that, and never "safe".

    Parameters
    ----------
    missing
        Which of an attack's `needs` the view lacks, if that is the reason.
    """

    def __init__(self, message: str, missing: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)

    @property
    def assumable(self) -> tuple[Literal["lower", "upper"], ...]:
        """The segments that, given to the adversary, make the attack possible; () if none do."""
        segments = tuple(name for name in ("lower", "upper") if name in self.missing)
        return segments if len(segments) == len(self.missing) else ()


def _silent(loop: str, steps: int, total: int) -> None:
    """Show nothing."""


@dataclass(frozen=True)
class Budget:
    """The time and the steps that an attack may spend: the same for all methods.

    Parameters
    ----------
    scale
        "smoke", "cpu" or "paper": determines an attack's own sizes.
    seconds
        Limit on this thread's processor time from now on, so that other programs on the machine do
        not weaken an attack; None for no limit.
    iterations
        Most steps of any one loop; None uses the attack's own number.
    device
        Where the attack computes.
    progress
        Called with the name of a loop, the steps done, and their total.
    stop
        When set, every loop ends after the current step, and the attack returns what it has.
    cut
        Set once `must_end` has returned True; shared with budgets made from this one.
    """

    scale: Scale = "cpu"
    seconds: float | None = None
    iterations: int | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    progress: Callable[[str, int, int], None] = _silent
    stop: threading.Event = field(default_factory=threading.Event, compare=False)
    cut: threading.Event = field(default_factory=threading.Event, compare=False)
    _began: float = field(default_factory=time.thread_time, init=False, repr=False, compare=False)

    def steps(self, number: int, loop: str = "") -> Iterator[int]:
        """Count steps from 0 up to `number`, ending early on a spent budget or `stop`.

        At least one step is made, so that there is a result.
        """
        number = number if self.iterations is None else min(number, self.iterations)
        for step in range(number):
            if step and self.must_end():
                return
            yield step
            self.progress(loop, step + 1, number)

    def must_end(self) -> bool:
        """Return whether the attack must end now; if so, set `cut`.

        An attack calls this before each further part of its work.
        """
        is_late = self.seconds is not None and self.spent > self.seconds
        ends = is_late or self.stop.is_set()
        if ends:
            self.cut.set()
        return ends

    @property
    def spent(self) -> float:
        """Seconds of this thread's processor time since the budget began."""
        return time.thread_time() - self._began

    @property
    def stopped_after(self) -> float | None:
        """Seconds spent if the attack was cut short; None if it made its full effort."""
        return self.spent if self.cut.is_set() else None

    @property
    def left(self) -> float | None:
        """Seconds that are left, at least 0; None for no limit."""
        if self.seconds is None:
            return None
        return max(0.0, self.seconds - self.spent)

    def again(self, seconds: float | None = None) -> Budget:
        """Return the same budget with its time restarted."""
        return replace(self, seconds=self.seconds if seconds is None else seconds)

    def share(self, parts: int) -> Budget:
        """Return a budget of one of so many equal parts of the time that is left."""
        return self.again(None if self.left is None else self.left / parts)


class AnyView(ABC):
    """The possessions of a named adversary; `available` lists the attacks' needs that they meet.

    Attributes
    ----------
    wording_of_missing
        The possible needs of attacks, and the wording for a view that lacks one.
    """

    wording_of_missing: ClassVar[Mapping[str, str]]
    adversary: Adversary
    knowledge: Any

    @property
    @abstractmethod
    def available(self) -> frozenset[str]:
        """The keys of `wording_of_missing` that this view has."""

    def require(self, *needs: str) -> None:
        """Raise NotApplicable, naming what is missing, if the view lacks any of `needs`."""
        missing = sorted({*needs} - {*self.available, "public data"})
        if missing:
            wording = " and ".join(
                self.wording_of_missing.get(need, f"no {need}") for need in missing
            )
            raise NotApplicable(
                f"the view of the adversary {self.adversary!r} on {self.knowledge.method} has "
                f"{wording}, without which there is no such attack",
                missing,
            )


ViewT = TypeVar("ViewT", bound=AnyView)
PublicT = TypeVar("PublicT", bound=Sized)


class FittedAttack(ABC, Generic[ViewT, PublicT]):
    """An attack that is fitted on public data, and run on a view.

    Attributes
    ----------
    name
        Its name in tables.
    needs
        The entries that a view must have.
    source
        The publication it comes from.
    public_data
        Name of an attacker's own data in error messages.
    budget, seed
        The values passed to `fit`.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()
    source: ClassVar[str] = ""
    public_data: ClassVar[str]

    def __init__(self) -> None:
        self.budget = Budget()
        self.seed = 0

    def fit(
        self, view: ViewT, public: PublicT | None, budget: Budget | None = None, *, seed: int = 0
    ) -> None:
        """Check that the view has what the attack needs, and learn from public data.

        A subclass defines in `learn` what it learns.

        Parameters
        ----------
        public
            Data of no victim; None if there are none.

        Raises
        ------
        NotApplicable
            If the view lacks what the attack needs.
        """
        self.check(view)
        if "public data" in self.needs and not public:
            raise NotApplicable(
                f"the attack {self.name!r} needs public {self.public_data}, and there are none"
            )
        self.budget = budget or Budget()
        self.seed = seed
        self.learn(view, public)

    def check(self, view: ViewT) -> None:
        """Raise NotApplicable unless the view has what the attack needs."""
        view.require(*self.needs)

    def learn(self, view: ViewT, public: PublicT | None) -> None:  # not all learn
        """Learn what `run` needs; `budget` and `seed` are set, and the view has all of `needs`."""

    @abstractmethod
    def run(self, view: ViewT) -> Any:
        """Guess what is behind the releases of a view."""
