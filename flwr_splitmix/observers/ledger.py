"""The server's privacy ledger: each client's privacy loss, as far as the server can know it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from flwr_splitmix.accounting.client_ledgers import ClientLedgers
from flwr_splitmix.description import SplitDescription
from flwr_splitmix.events import Exchange, RoundBegun, RoundDone, RoundsMissed, RunStarted, StepDone
from flwr_splitmix.mixers import Share
from flwr_splitmix.observers.observer import Observer
from flwr_splitmix.privacy import Exposure, Ledger, Relation, RunAccount, Statement
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.values import check_truth

log = logging.getLogger("flwr.splitmix")


class PrivacyLedger(Observer):
    """One ledger per client, from the exchanges and the clients' descriptions of themselves.

    It covers the exchanges that it observes: those of a run, or of the fits of one strategy. It
    charges every pass over a client's data with its worst batch, since the server does not know
    which examples are in which batch; the client's own ledger knows, and for the same exchanges and
    relation never reports a larger epsilon, unless so many batches of lost rounds are owed that it
    leaves them without a number (`clients.client.MAX_EARLIER`). What a client has spent in other
    runs is in its own ledger only; the server's learns at most, from clients of `fit`, that it had
    no epsilon.

    A client that may have sent something in an interrupted round has no epsilon until it is asked
    for a batch again, which prices that too. Uploads are charged when they are sent, even if they
    are then rejected. There is no epsilon after rounds of the run that the ledger did not observe.

    Parameters
    ----------
    trusted_mixer
        The user's assertion that another party mixes and the server sees only the sums. By default
        the server, which runs the mixer, sees each upload alone.

    See `ClientLedgers` for the other parameters. Nothing but events, and `restore`, changes it.

    Raises
    ------
    ValueError
        If delta is not strictly between 0 and 1, or another option has an unknown value.
    """

    def __init__(
        self,
        delta: float = 1e-5,
        *,
        trusted_mixer: bool = False,
        relation: Relation = "replace",
        shares: Sequence[type[Share]] = (),
    ) -> None:
        self._clients = ClientLedgers(delta, relation=relation, shares=shares)
        check_truth("trusted_mixer", trusted_mixer)
        self.trusted_mixer = trusted_mixer
        self._requested_shares: dict[int, list[Share | None]] = {}
        self._parts_of: dict[int, int] = {}
        self._parts_left: dict[int, int] = {}
        self._private_tests = False
        self._rounded = False
        self._once = SeenKeys()

    @property
    def delta(self) -> float:
        """Delta of the reported (epsilon, delta)."""
        return self._clients.delta

    @property
    def relation(self) -> Relation:
        """How neighbouring data sets differ."""
        return self._clients.relation

    @property
    def ledgers(self) -> Mapping[int, Ledger]:
        """Each client's ledger, by its index; to be read only."""
        return self._clients.ledgers

    @property
    def epsilons(self) -> dict[int, float]:
        """Epsilon at `delta` by client index; infinite if there is no bound."""
        return self._clients.epsilons

    def statements(self) -> dict[int, Statement]:
        """Return each client's statement, by its index, sorted."""
        return self._clients.statements()

    def report(self) -> str:
        """State the largest epsilon of any client, and what it does not cover."""
        return self._clients.report()

    def account(self, rounds: Collection[int]) -> RunAccount:
        """Return the account of these rounds: see `ClientLedgers.account`."""
        return self._clients.account(rounds)

    def on_start(self, event: RunStarted) -> None:
        """Note the clients that may have sent something in interrupted rounds."""
        self._clients.note_interrupted(event.interrupted)

    def on_missed(self, event: RoundsMissed) -> None:
        """Charge uploads in rounds of which nothing is known: no epsilon is left."""
        self._clients.miss(event.clients)
        self._once.add("unbounded")
        warn_of_missed(event.rounds)

    def on_begin(self, event: RoundBegun) -> None:
        """Record each client's position in its data, and whether its uploads are rounded."""
        self._rounded = event.rounded
        descriptions = {
            c: d for c, d in event.descriptions.items() if isinstance(d, SplitDescription)
        }
        self._clients.begin(
            event.server_round, descriptions, event.attempts, averaged=event.averaged
        )

    def on_exchange(self, event: Exchange) -> None:
        """Count the batches that are requested of clients, and charge what they send.

        A call with a plan requests a batch; the smashed data of the reply are charged by the plan's
        shares, unless the mixer is trusted (see `on_step`). A batch sent in parts, with each sample
        in one part, is charged as a whole with its first part. Evaluations on private test data,
        and anything else that is sent, are charged as exposures without a number.
        """
        if event.phase == "evaluate":
            if event.direction == "down":
                self._private_tests = event.payload.get("kind") != "benchmark"
            elif self._private_tests:
                self._clients.expose_tests(event.client)
        elif event.direction == "down":
            plan = event.payload.get("plan")
            if plan is not None and not event.payload.get("part"):
                self._requested_shares[event.client] = self._clients.charge_request(
                    event.client, plan
                )
                self._parts_left.pop(event.client, None)
                self._parts_of[event.client] = event.payload.get("parts", 1)
        elif "smashed" in event.payload and event.client in self._requested_shares:
            if self._begins_batch(event.client) and not self.trusted_mixer:
                self._clients.charge(event.client, self._requested_shares[event.client])
        elif event.nbytes:
            self._clients.expose(event.client, Exposure("uncounted"))

    def _begins_batch(self, client: int) -> bool:
        """Count an arrived part of a batch; return whether it is the first."""
        parts_left = self._parts_left.get(client, 0)
        self._parts_left[client] = (parts_left or self._parts_of[client]) - 1
        if not parts_left and not self.trusted_mixer:  # of a mixture it is charged with the step
            self._clients.answer(client)
        return not parts_left

    def on_step(self, event: StepDone) -> None:
        """Charge the mixtures, if the server sees only these (`trusted_mixer`)."""
        if self.trusted_mixer and event.plan is not None and event.mixed is not None:
            for client in self._clients.charge_sums(event.plan, event.mixed, rounded=self._rounded):
                self._clients.answer(client)

    def on_round(self, event: RoundDone) -> None:
        """Record the clients that finished; log the report if more is not covered by a number.

        The first report without an epsilon is a warning.
        """
        self._clients.finish(event.server_round, event.failures)
        statements = self.statements().values()
        words = {statement.unbounded_because + statement.outside for statement in statements}
        if self._once.add_all(words):
            unbounded = any(statement.unbounded_because for statement in statements)
            warns = unbounded and self._once.add("unbounded")
            log.log(logging.WARNING if warns else logging.INFO, "privacy of %s", self.report())

    def facts(self) -> Mapping[str, Any]:
        """Return "privacy": the text of `report`."""
        return {"privacy": self.report()}

    def state(self) -> dict[str, Any]:
        """Return all ledgers and positions."""
        return {**self._clients.state(), "trusted-mixer": self.trusted_mixer}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`.

        Raises
        ------
        ValueError
            If it has another relation, or counts mixtures alone (`trusted_mixer`) where this ledger
            counts single uploads.
        """
        if state["trusted-mixer"] and not self.trusted_mixer:
            raise ValueError(
                "a ledger of single uploads cannot take a state of mixtures, from trusted_mixer"
            )
        self._clients.restore(state)


def warn_of_missed(rounds: range) -> None:
    """Log that rounds of the run leave it no epsilon, as its ledger did not observe them."""
    first, last = rounds[0], rounds[-1]
    log.warning(
        "%s of this run had no noise, or noise that another ledger counted. So the run has no "
        "epsilon, and later noise does not change that: begin a new run with noise, and with "
        "clients that have sent nothing yet",
        f"round {first}" if first == last else f"rounds {first} to {last}",
    )
