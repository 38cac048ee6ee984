"""A client's own ledger of what it sends: it charges first, and refuses what would be too much."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from flwr_splitmix.clients.client import ClientError, Order
from flwr_splitmix.mixers import Share
from flwr_splitmix.mixers.accounting import earlier_releases, release_of
from flwr_splitmix.privacy import Event, Exposure, Ledger, Relation
from flwr_splitmix.privacy.accountant import check_delta
from flwr_splitmix.seeding import secrets_are_seeded
from flwr_splitmix.segments.batch_norm import has_batch_norm

log = logging.getLogger("flwr.splitmix")


@dataclass(frozen=True, kw_only=True)
class PrivacyBudget:
    """What a client allows in one run, whatever noise and masks a server asks for.

    The ledger that it is held against is kept with the client's state, once a round: another run
    begins a new one, and a client that is built anew from an older state has what that state says.

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

    Raises
    ------
    ValueError
        If delta is not strictly between 0 and 1, or the budget is not above 0.
    """

    delta: float = 1e-5
    max_epsilon: float | None = None
    relation: Relation = "replace"
    public_evaluation: bool = False

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if self.max_epsilon is not None and not self.max_epsilon > 0:
            raise ValueError(f"max_epsilon is {self.max_epsilon}; a budget must be above 0")


class PrivacyGuard:
    """Charges one client's releases, example by example, before they leave.

    Parameters
    ----------
    budget
        What is allowed.
    records
        Number of training examples.
    segment
        The lower segment.
    """

    def __init__(self, budget: PrivacyBudget, records: int, segment: nn.Module) -> None:
        self.budget = budget
        self.ledger = Ledger(budget.relation, records)
        self.spent = False
        """Whether a release was refused."""
        self._trainable = any(p.requires_grad for p in segment.parameters())
        self._batch_norm = has_batch_norm(segment)

    def admit(
        self,
        shares: Sequence[Share | None],
        shape: tuple[int, int, int],
        records: np.ndarray,
        order: Order,
    ) -> bool:
        """Charge the uploads of one batch, unless they would exceed the budget.

        Parameters
        ----------
        shares
            The batch's share of each pass.
        shape
            Of the smashed data (b, prefix + N, d).
        records
            int64 (b,): the examples of the batch.

        Returns
        -------
        Whether they may be sent. If not, nothing was charged, nor ever will be: `spent` is set.

        Raises
        ------
        ClientError
            If there is a budget, and the uploads have no epsilon at all.
        """
        events = self._events(shares, shape, order)
        limit = self.budget.max_epsilon
        if limit is not None:
            self._check_bounded(events)
            if not self.spent and self.ledger.would_exceed(
                *events, max_epsilon=limit, delta=self.budget.delta, records=records
            ):
                self.spent = True
                log.warning(
                    "client %d sends nothing more: another upload would bring its epsilon above "
                    "max_epsilon = %g",
                    order.client,
                    limit,
                )
            if self.spent:
                return False
        self.ledger.charge(*events, records=records)
        return True

    def _check_bounded(self, events: Sequence[Event]) -> None:
        alone = Ledger(self.budget.relation)
        alone.charge(*events)
        because = alone.statement(self.budget.delta).unbounded_because
        if because:
            raise ClientError(
                f"this client has max_epsilon = {self.budget.max_epsilon:g}, and what is asked of "
                f"it has no epsilon: {'; '.join(because)}"
            )

    def admit_evaluation(self) -> None:
        """Charge unmixed test data without noise, or refuse to send them.

        Raises
        ------
        ClientError
            If they are not public and there is a budget.
        """
        if self.budget.public_evaluation:
            return
        if self.budget.max_epsilon is not None:
            raise ClientError(
                "evaluation would send this client's own test data without noise, which no "
                "epsilon covers; measure on public data (benchmark or central evaluation)"
            )
        self.ledger.charge(Exposure("evaluation"))

    def close_round(self, order: Order) -> None:
        """Note what the round let out besides uploads, and say where the ledger stands."""
        if order.averaged:
            self.ledger.charge(Exposure("lower-segments"))
        # A node with a budget is told where it stands; a simulation has a line for every client.
        level = logging.DEBUG if self.budget.max_epsilon is None else logging.INFO
        if log.isEnabledFor(level):
            statement = self.ledger.statement(self.budget.delta)
            log.log(level, "client %d: %s", order.client, statement)

    def _events(
        self, shares: Sequence[Share | None], shape: tuple[int, int, int], order: Order
    ) -> list[Event]:
        asked = [share for share in shares if share is not None]
        events: list[Event] = [release_of(share, shape[1], shape[2]) for share in asked]
        if not secrets_are_seeded():
            # A repeated round sends the same batches again, with fresh noise.
            events += earlier_releases(shares, shape[1], shape[2], order.attempt)
        if any(share.learns for share in asked):
            events.append(Exposure("gradients"))
        if self._trainable:
            events.append(Exposure("training"))
        if self._batch_norm:
            events.append(Exposure("batch-norm"))
        return events

    def state(self) -> dict[str, Any]:
        """Return the ledger and whether it has ended as plain values."""
        return {"ledger": self.ledger.state_dict(), "spent": self.spent}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self.ledger.load_state_dict(state["ledger"])
        self.spent = bool(state["spent"])
