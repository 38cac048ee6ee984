"""The privacy ledgers of a mixer's runs: what the servers have seen, which is the mixtures."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any

from flwr_splitmix.events import Exchange
from flwr_splitmix.links.mixer.service import RefusedError
from flwr_splitmix.mixers import Mixed, Plan
from flwr_splitmix.observers import PrivacyLedger
from flwr_splitmix.privacy import Relation, RunAccount

MOST_RUNS = 64
"""How many runs' ledgers a mixer keeps; who has not been seen for longest goes first."""


class RunLedger:
    """The ledger of one run, in memory, from the first round that this mixer had of it.

    Parameters
    ----------
    relation
        Neighbouring data sets.
    """

    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self.lock = threading.Lock()
        self.ledger = PrivacyLedger(trusted_mixer=True, relation=relation)
        self.rounds: set[int] = set()
        self.newest: RoundLedger | None = None


class RoundLedger:
    """One round of a run's ledger; the run's next one ends it.

    Two streams of one run at the same time would charge one record twice as if it were once, so
    the older one is refused from then on.

    Parameters
    ----------
    run
        The run's.
    server_round
        The round's number.
    delta
        Of the epsilon that is reported.
    attempts
        By client index, how often the ServerApp says that it may have sent this round before.
    rounded
        Whether uploads are rounded on the wire.
    """

    def __init__(
        self,
        run: RunLedger,
        server_round: int,
        delta: float,
        attempts: Mapping[int, int],
        *,
        rounded: bool = False,
    ) -> None:
        self._run = run
        self._round = server_round
        self._delta = delta
        self._attempts = attempts
        self._rounded = rounded

    def begin(self, descriptions: Mapping[int, Mapping[str, Any]]) -> tuple[int, ...]:
        """Begin the round; returns the clients to which nothing can be charged.

        Parameters
        ----------
        descriptions
            What each client says of itself, by client index.
        """
        run = self._run
        with run.lock:
            run.newest = self
            run.rounds.add(self._round)
            # The ledger knows of rounds that a server which was started again has forgotten.
            attempts = {
                client: max(self._attempts.get(client, 0), run.ledger.unfinished(client))
                for client in descriptions
            }
            return run.ledger.begin(self._round, descriptions, attempts)

    def observe(self, event: Exchange) -> None:
        """Count the batches that clients are asked for; what they send the server does not see."""
        if event.direction == "down" and event.payload.get("plan") is not None:
            with self._run.lock:
                self._check()
                self._run.ledger.draw(event.client)

    def charge(self, plan: Plan, mixed: Mixed) -> None:
        """Charge mixtures, before they are handed to the server.

        Raises
        ------
        RefusedError
            If the run has begun another round since.
        """
        with self._run.lock:
            self._check()
            self._run.ledger.charge_sums(plan, mixed, rounded=self._rounded)

    def finish(self, failures: Collection[int]) -> RunAccount:
        """Note that the round is over; returns all that the server is told.

        Parameters
        ----------
        failures
            Clients that have not finished.

        Raises
        ------
        RefusedError
            As `charge`.
        """
        run = self._run
        with run.lock:
            self._check()
            run.ledger.finish(self._round, failures)
            run.ledger.delta = self._delta
            return run.ledger.account(run.rounds)

    def _check(self) -> None:
        if self._run.newest is not self:
            raise RefusedError("this run has begun another round at this mixer since")


class RunLedgers:
    """The ledgers by the id of the run; the one that was used longest ago goes when there are more.

    Parameters
    ----------
    most
        How many runs' are kept.
    """

    def __init__(self, most: int = MOST_RUNS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._runs: dict[str, RunLedger] = {}

    def of(self, run: str, relation: Relation) -> RunLedger:
        """Return a run's ledger, a new one if there is none.

        Raises
        ------
        RefusedError
            If the run has a ledger for other neighbours.
        """
        with self._lock:
            ledger = self._runs.pop(run, None) or RunLedger(relation)
            self._runs[run] = ledger  # the newest stands last
            while len(self._runs) > self._most:
                del self._runs[next(iter(self._runs))]
        if ledger.relation != relation:
            raise RefusedError(
                f"the ledger of this run is kept for relation {ledger.relation!r}, which cannot "
                f"become {relation!r} in the midst of a run"
            )
        return ledger
