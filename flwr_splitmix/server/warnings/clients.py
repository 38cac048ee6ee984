"""Warnings about the data and the states of a round's clients, in both shapes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from flwr_splitmix.description import SplitDescription, UShapeDescription
from flwr_splitmix.links import Clients
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.server.intake.checks import cap_at_median
from flwr_splitmix.server.naming import name_clients
from flwr_splitmix.server.steps.round_length import Agreement
from flwr_splitmix.words import verb

log = logging.getLogger("flwr.splitmix")

WHERE_STATES_ARE = (
    " (virtual clients on several machines must share one run directory; a SuperNode needs a "
    "state-dir that can be written)"
)


class OncePerClient(SeenKeys):
    """Logs each warning about each client once."""

    def warn(self, clients: Iterable[int], plural: str, predicate: str) -> None:
        """Warn about clients not yet warned of so; `plural` is the verb, as in "have"."""
        if new := [client for client in clients if self.add((predicate, client))]:
            log.warning("%s %s %s", name_clients(new), verb(len(new), plural), predicate)


class ClientWarnings:
    """Logs each warning about each client once per run.

    Parameters
    ----------
    state
        The contents of a client's state, in words.
    averages
        Whether clients get averaged segments, so that a lost state costs less.
    """

    def __init__(self, state: str, *, averages: bool) -> None:
        self._fresh = "optimizer" if averages else state
        self._once = OncePerClient()

    def on_round(
        self, clients: Clients, agreement: Agreement, last_trained_round: Mapping[int, int]
    ) -> None:
        """Warn about small and large data sets, and about lost states.

        Parameters
        ----------
        agreement
            The lengths that the strategy has fixed for the round.
        last_trained_round
            By client index, the last round that the client finished.
        """
        descriptions = {
            client: description
            for client in clients.alive
            if isinstance(
                description := clients.descriptions[client], (SplitDescription, UShapeDescription)
            )
        }
        sizes = {client: description.num_examples for client, description in descriptions.items()}
        batch_sizes = {
            client: description.batch_size for client, description in descriptions.items()
        }
        self._on_sizes(sizes, batch_sizes, agreement.batches, agreement.length.epoch)
        self._on_lost_states(
            {c: description.state_round for c, description in descriptions.items()},
            last_trained_round,
        )

    def _on_sizes(
        self,
        sizes: Mapping[int, int],
        batch_sizes: Mapping[int, int],
        batches: int,
        epoch: int,
    ) -> None:
        """Warn about few and many examples."""
        full = {client: sizes[client] // batch for client, batch in batch_sizes.items()}
        for batch in sorted(set(batch_sizes.values())):
            self._once.warn(
                [c for c, n in full.items() if n == 0 and batch_sizes[c] == batch],
                "have",
                f"less than one batch of {batch}: examples are drawn with replacement",
            )
        self._once.warn(
            [c for c, n in full.items() if 0 < n < batches],
            "have",
            "fewer batches than the mean: the data start over within an epoch",
        )
        if max(full.values(), default=0) >= epoch:  # if all start over, it was requested
            self._once.warn(
                [c for c, n in full.items() if batches <= n < epoch],
                "have",
                f"fewer batches than the {epoch} steps of an epoch: the data start over within it",
            )
        capped = dict(zip(sizes, cap_at_median(list(sizes.values())), strict=True))
        self._once.warn(
            [c for c, n in sizes.items() if capped[c] < n],
            "have",
            f"far more examples than most: {max(capped.values(), default=0)} of each client's "
            "count for the length of a round (steps_per_round sets it)",
        )

    def _on_lost_states(
        self, states: Mapping[int, int], last_trained_round: Mapping[int, int]
    ) -> None:
        """Warn about states that are older than the last round that their clients finished."""
        behind = {
            c: state_round
            for c, state_round in states.items()
            if state_round < last_trained_round.get(c, 0)
        }
        self._once.warn(
            [c for c, state_round in behind.items() if not state_round],
            "have",
            "lost all saved state, so training starts again there with a fresh "
            f"{self._fresh}{WHERE_STATES_ARE}",
        )
        self._once.warn(
            [c for c, state_round in behind.items() if state_round],
            "have",
            "lost the newest saved state, so training continues there from an older one: the "
            f"newest is damaged, or was not written{WHERE_STATES_ARE}",
        )
