"""A client's privacy budget, which holds whatever a server asks for."""

from __future__ import annotations

from dataclasses import dataclass

from flwr_splitmix.privacy import Relation
from flwr_splitmix.privacy.accountant import check_delta
from flwr_splitmix.privacy.events import check_relation
from flwr_splitmix.privacy.policy import NodePolicy
from flwr_splitmix.values import check_truth, real_number


@dataclass(frozen=True, kw_only=True)
class PrivacyBudget:
    """The limits that a client keeps, whatever noise and masks a server asks for.

    On a SuperNode the ledger is a file on the node: it covers all runs, and every charge is
    written to disk before the upload leaves. In a simulation the ledger is part of the client's
    state and covers one run; in `fit` it covers all runs of the client object.

    Parameters
    ----------
    delta
        Of the (epsilon, delta) guarantee; choose it well below one over the number of examples.
    max_epsilon
        The client sends nothing that would raise its epsilon above this; None only keeps a ledger.
    relation
        How neighbouring data sets differ: see `privacy.events.Relation`.
    public_evaluation
        Whether the client's own test split is public. If not, sending it unmixed and without noise
        voids every bound, and is refused if there is a `max_epsilon`.
    allow_averaging
        Whether the lower segment may be sent to be averaged, and replaced within a run; None: yes,
        unless there is a `max_epsilon` or nothing may be sent plain. No epsilon covers what the
        segment has learned: a server that crafts gradients can read the client's data from it.
    allow_plain
        Whether uploads without an epsilon may be sent. With a `max_epsilon` they may not. False
        alone sets no limit: the server names the noise, and an epsilon may be of any size.

    Raises
    ------
    ValueError
        If delta is not strictly between 0 and 1, the budget is not above 0, the relation is
        unknown, or a switch is neither true nor false.
    """

    delta: float = 1e-5
    max_epsilon: float | None = None
    relation: Relation = "replace"
    public_evaluation: bool = False
    allow_averaging: bool | None = None
    allow_plain: bool = True

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if self.max_epsilon is not None and not real_number("max_epsilon", self.max_epsilon) > 0:
            raise ValueError(f"max_epsilon is {self.max_epsilon}; a budget must be above 0")
        check_relation(self.relation)
        check_truth("public_evaluation", self.public_evaluation)
        if self.allow_averaging is not None:
            check_truth("allow_averaging", self.allow_averaging)
        check_truth("allow_plain", self.allow_plain)

    @property
    def averages(self) -> bool:
        """Whether the lower segment may be sent to be averaged, and replaced within a run."""
        if self.allow_averaging is None:
            return self.max_epsilon is None and self.allow_plain
        return self.allow_averaging

    @property
    def requires_epsilon(self) -> bool:
        """Whether nothing may leave without an epsilon."""
        return self.max_epsilon is not None or not self.allow_plain

    @property
    def refusing_option(self) -> str:
        """The option that refuses something, with its value."""
        if self.max_epsilon is not None:
            return f"max_epsilon = {self.max_epsilon:g}"
        return f"allow_{'averaging' if self.allow_plain else 'plain'} = false"

    @classmethod
    def on_node(cls, run: PrivacyBudget | None, policy: NodePolicy) -> PrivacyBudget:
        """Return what a run's budget and a node's policy both allow: the stricter of each option.

        On a node the relation is always "replace", which costs the most. Under a `max_epsilon`
        without a `delta`, delta is at most this class's default: the run must not choose it, since
        near 1 every epsilon is small.
        """
        budget = run or cls()
        limits = [x for x in (budget.max_epsilon, policy.max_epsilon) if x is not None]
        return cls(
            delta=min(budget.delta, policy.delta or (cls.delta if policy.max_epsilon else 1.0)),
            max_epsilon=min(limits, default=None),
            relation="replace",
            public_evaluation=policy.allow_evaluation is True,
            allow_averaging=_both(budget, policy),
            allow_plain=budget.allow_plain and policy.plain,
        )


def _both(run: PrivacyBudget, policy: NodePolicy) -> bool | None:
    """Return whether both run and node allow averaging; a run's yes alone is not enough."""
    if policy.allow_averaging is None:
        return False if run.allow_averaging is False else None
    if run.allow_averaging is None:
        return policy.allow_averaging and run.max_epsilon is None
    return policy.allow_averaging and run.allow_averaging
