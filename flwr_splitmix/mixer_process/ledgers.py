"""The privacy ledgers of a mixer's runs, which charge the mixtures that the servers see."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence

from flwr_splitmix.accounting.client_ledgers import ClientLedgers
from flwr_splitmix.description import SplitDescription
from flwr_splitmix.events import Exchange
from flwr_splitmix.links.mixer.service import RefusedError
from flwr_splitmix.mixers import Mixed, Plan
from flwr_splitmix.privacy import Relation, RunAccount

MAX_RUNS = 64
"""Most runs whose ledgers a mixer keeps; the least recently used is dropped first."""


class RunLedger:
    """The ledger of one run, in memory, from the run's first round at this mixer on.

    Parameters
    ----------
    relation
        How neighbouring data sets differ.
    """

    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self.lock = threading.Lock()
        self.ledger = ClientLedgers(relation=relation)
        self.rounds: set[int] = set()
        self.newest: RoundLedger | None = None


class RoundLedger:
    """One round of a run's ledger, valid until the run begins another round.

    Two simultaneous streams of one run would charge two releases of a record as one, so the older
    stream is refused from then on.

    Parameters
    ----------
    run
        The run's ledger.
    server_round
        The round's number.
    delta
        Delta of the reported epsilon.
    attempts
        By client index, for each earlier attempt at this round the batches that it may have sent,
        according to the ServerApp; None if that is not known.
    """

    def __init__(
        self,
        run: RunLedger,
        server_round: int,
        delta: float,
        attempts: Mapping[int, Sequence[int | None]],
    ) -> None:
        self._run = run
        self._round = server_round
        self._delta = delta
        self._attempts = attempts

    def begin(self, descriptions: Mapping[int, SplitDescription]) -> None:
        """Begin the round with these clients.

        Parameters
        ----------
        descriptions
            Each client's description of itself, by client index.
        """
        run = self._run
        with run.lock:
            run.newest = self
            run.rounds.add(self._round)
            run.ledger.begin(self._round, descriptions, self._attempts)

    def observe(self, event: Exchange) -> None:
        """Count the batches that clients are asked for; the server does not see their uploads."""
        if event.direction == "down" and (plan := event.payload.get("plan")) is not None:
            with self._run.lock:
                self._check()
                self._run.ledger.charge_request(event.client, plan)

    def charge(self, plan: Plan, mixed: Mixed) -> None:
        """Charge mixtures before they are sent to the server.

        What a mixer adds up has not been rounded on the wire (`Line.exact`).

        Raises
        ------
        RefusedError
            If the run has begun another round since.
        """
        with self._run.lock:
            self._check()
            for client in self._run.ledger.charge_sums(plan, mixed):
                self._run.ledger.answer(client)

    def finish(self, failures: Collection[int]) -> RunAccount:
        """End the round and return the account for the server.

        Parameters
        ----------
        failures
            Clients that have not finished.

        Raises
        ------
        RefusedError
            As for `charge`.
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
    """The ledgers by run id; beyond `most`, the least recently used is dropped.

    Parameters
    ----------
    most
        Most runs whose ledgers are kept.
    """

    def __init__(self, most: int = MAX_RUNS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._runs: dict[str, RunLedger] = {}

    def of(self, run: str, relation: Relation) -> RunLedger:
        """Return a run's ledger, creating it if necessary.

        Raises
        ------
        RefusedError
            If the run has a ledger with another relation.
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
