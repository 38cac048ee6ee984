"""A client's privacy budget: what it allows to leave, whatever a server asks for."""

from __future__ import annotations

from dataclasses import dataclass

from flwr_splitmix.privacy import Relation
from flwr_splitmix.privacy.accountant import check_delta
from flwr_splitmix.privacy.policy import NodePolicy


@dataclass(frozen=True, kw_only=True)
class PrivacyBudget:
    """What a client allows, whatever noise and masks a server asks for.

    On a SuperNode the ledger that it is held against is a file of the node's: it holds over all
    runs, and every charge is on the disk before the upload leaves. In a simulation, and in `fit`,
    it is kept with the client's state, for one run.

    Parameters
    ----------
    delta
        Of the (epsilon, delta) that is accounted for; well below one over the number of examples.
    max_epsilon
        The client sends nothing that would bring its epsilon above; None only keeps the ledger.
    relation
        Neighbouring data sets: one example is another one ("replace"), or is there or not
        ("add-remove").
    public_evaluation
        Whether the client's own test split is public. If not, sending it unmixed and without noise
        ends every bound, and is refused where there is a `max_epsilon`.
    allow_averaging
        Whether the lower segment may be sent to be averaged, and replaced within a run; None: yes,
        unless there is a `max_epsilon` or nothing may be sent plain. No epsilon covers what it has
        learned of the client's data: through crafted gradients a server can read them from it.
    allow_plain
        Whether anything may be sent that has no epsilon. With a `max_epsilon` nothing may.

    Raises
    ------
    ValueError
        If delta is not strictly between 0 and 1, or the budget is not above 0.
    """

    delta: float = 1e-5
    max_epsilon: float | None = None
    relation: Relation = "replace"
    public_evaluation: bool = False
    allow_averaging: bool | None = None
    allow_plain: bool = True

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if self.max_epsilon is not None and not self.max_epsilon > 0:
            raise ValueError(f"max_epsilon is {self.max_epsilon}; a budget must be above 0")

    @property
    def averages(self) -> bool:
        """Whether the lower segment may be sent to be averaged, and replaced within a run."""
        if self.allow_averaging is None:
            return self.max_epsilon is None and self.allow_plain
        return self.allow_averaging

    @classmethod
    def on_node(cls, run: PrivacyBudget | None, policy: NodePolicy) -> PrivacyBudget:
        """Return what a run's budget and a node's policy both allow: the stricter of each.

        On a node a record is always taken to be replaced, which costs the most.
        """
        own = run or cls()
        limits = [x for x in (own.max_epsilon, policy.max_epsilon) if x is not None]
        return cls(
            delta=min(own.delta, policy.delta or 1.0),
            max_epsilon=min(limits, default=None),
            relation="replace",
            public_evaluation=policy.allow_evaluation is True,
            allow_averaging=_both(own, policy),
            allow_plain=own.allow_plain and policy.plain,
        )


def _both(run: PrivacyBudget, policy: NodePolicy) -> bool | None:
    """Return whether run and node let the lower segment be averaged; a run's yes is not enough."""
    if policy.allow_averaging is None:
        return False if run.allow_averaging is False else None
    if run.allow_averaging is None:
        return policy.allow_averaging and run.max_epsilon is None
    return policy.allow_averaging and run.allow_averaging
