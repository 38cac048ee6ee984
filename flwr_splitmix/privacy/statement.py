"""A ledger's statement: epsilon, with the explanations without which it would mislead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flwr_splitmix.privacy.events import Relation
from flwr_splitmix.words import epsilon_text


@dataclass(frozen=True, kw_only=True)
class Statement:
    """The guarantee for a client's records: numbers and explanations together.

    Parameters
    ----------
    epsilon
        Epsilon of the record that spent most; infinite if there is no bound.
    delta, relation
        Failure probability, and how neighbouring inputs differ.
    order
        The Rényi order that gave epsilon; None if there is no bound, or nothing was released.
    smashed, labels
        Epsilon against an adversary that sees only the smashed data, or only the labels.
    unbounded_because
        Why epsilon is infinite; empty if it is not.
    outside
        What epsilon does not cover.
    """

    epsilon: float
    delta: float
    relation: Relation
    order: float | None
    smashed: float
    labels: float
    unbounded_because: tuple[str, ...]
    outside: tuple[str, ...]

    def without_bound(self, because: str) -> Statement:
        """Return the statement with one more reason why there is no bound."""
        return replace(
            self,
            epsilon=math.inf,
            order=None,
            smashed=math.inf,
            labels=math.inf,
            unbounded_because=(*self.unbounded_because, because),
        )

    def __str__(self) -> str:
        return in_words(
            self.epsilon, self.delta, self.relation, self.unbounded_because, self.outside
        )


def in_words(
    epsilon: float,
    delta: float,
    relation: Relation,
    unbounded_because: Sequence[str],
    outside: Sequence[str],
    *,
    most: float | None = None,
) -> str:
    """Return epsilon with its explanations as text; parameters as in `Statement`.

    Parameters
    ----------
    most
        A bound, if epsilon is only the expected value.
    """
    change = "is replaced" if relation == "replace" else "is replaced by an empty one"
    if unbounded_because:
        sentence = f"no epsilon: {'; '.join(unbounded_because)}"
    else:
        number = (
            epsilon_text(epsilon)
            if most is None
            else f"about {epsilon:.4g}, at most {epsilon_text(most)},"
        )
        sentence = f"epsilon {number} at delta {delta:g} when a record {change}"
    return f"{sentence}. Not covered: {'; '.join(outside)}" if outside else sentence
