"""A node's statements about its lower segment, by which a mixer compares its nodes.

A server that chooses a node's lower segment, or trains it, knows what that node uploads, so that a
mixture with one other node is the other's upload. A mixer sees no weights. It mixes only nodes that
name the same digests of the server's weights and instructions for the round, and allow the same
(`flwr_splitmix.mixer_process.alike`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from flwr_splitmix.links.host import StateStore
from flwr_splitmix.links.ticket import Ticket
from flwr_splitmix.storage import OtherFormError, digest
from flwr_splitmix.words import are, counted

log = logging.getLogger("flwr.splitmix")

WEIGHTS, TRAINING = "given-weights", "allow-training"
"""Keys of a kept state's values: the server's lower segment from which it began, and whether
gradients may have changed that."""

_OF_ONE_NODE = ("client", "attempt", "earlier", "token")
"""Values of a ticket that differ from node to node with an honest server."""


class OriginStore:
    """A store of client states that remembers the weights of the server from which each began.

    Parameters
    ----------
    store
        Where the states are kept.
    arrays
        The lower segment in the round's message, if any.
    ticket
        The round's ticket.
    trains
        Whether the node allows gradients to change the lower segment.

    Attributes
    ----------
    origin
        Digest of the server's weights from which the client's own began: those of this message, or
        of an earlier one if the client continues from a kept state.
    trains
        Whether gradients may change them, or may have since: an operator can change the policy.
    """

    def __init__(
        self,
        store: StateStore,
        arrays: Mapping[str, Tensor] | None,
        ticket: Ticket,
        *,
        trains: bool,
    ) -> None:
        self._store = store
        self._run = ticket.run or "of Flower"
        self._replaced = bool(arrays) and ticket.arrays == "always"
        self.origin = digest(arrays or {}, {})
        self.trains = trains

    def save(
        self, index: int, round: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]
    ) -> None:
        """Save a state with its origin; raise OSError if it cannot be saved."""
        about = {WEIGHTS: self.origin, TRAINING: self.trains}
        self._store.save(index, round, tensors, {**meta, **about})

    def load(
        self, index: int, at_most: int | None = None
    ) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
        """Load a state as the store does, and take over its origin unless weights replace it.

        Raises
        ------
        OtherFormError
            If the state does not say from which weights it began.
        """
        if (state := self._store.load(index, at_most)) is None:
            return None
        state_round, tensors, meta = state
        if not {WEIGHTS, TRAINING} <= meta.keys():
            raise OtherFormError(
                f"the state of client {index} after round {state_round}",
                f"does not say {WEIGHTS} and {TRAINING}",
            )
        origin, trained = meta.pop(WEIGHTS), meta.pop(TRAINING)
        if not self._replaced:
            self.origin = str(origin)
            self.trains |= bool(trained)
        return state_round, tensors, meta

    def drop_after(self, index: int, round: int) -> int:
        """Delete the states of rounds after `round`, and log it; return how many."""
        if count := self._store.drop_after(index, round):
            log.info(
                "client %d: run %s goes on after round %d; %s after it %s deleted",
                index,
                self._run,
                round,
                counted(count, "state"),
                are(count),
            )
        return count

    def prune(self, index: int, kept_rounds: Sequence[int]) -> None:
        """Delete the states that no checkpoint in `kept_rounds` would load."""
        self._store.prune(index, kept_rounds)


def digest_of_instructions(ticket: Mapping[str, Any], run_config: Mapping[str, Any]) -> str:
    """Return a digest of the instructions that a server gives all nodes of a round alike.

    Parameters
    ----------
    ticket
        The ticket's record as the server has sent it, without this version's defaults: nodes of
        other versions may have other ones.
    run_config
        The run's configuration as the client sees it: learning rates, for example.
    """
    common = {name: value for name, value in sorted(ticket.items()) if name not in _OF_ONE_NODE}
    return digest({}, {"ticket": common, "run-config": dict(sorted(run_config.items()))})
