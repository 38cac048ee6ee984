"""One ledger per client, charged by what is asked of clients and what they send."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from flwr_splitmix.mixers import Mixed, Plan, Share, known_shares, share_from_wire
from flwr_splitmix.mixers.accounting import earlier_releases, release_of
from flwr_splitmix.observers.data_pass import DataPass, Description, longest
from flwr_splitmix.once import Once
from flwr_splitmix.privacy import (
    Event,
    Exposure,
    Ledger,
    Relation,
    Release,
    RunAccount,
    Statement,
)
from flwr_splitmix.privacy.accountant import check_delta
from flwr_splitmix.privacy.events import UNBOUNDED, check_relation
from flwr_splitmix.privacy.ledger import Charge
from flwr_splitmix.words import epsilon_text

log = logging.getLogger("flwr.splitmix")

_Ratios = tuple[float, ...]

_SEVERAL = 3
"""From how many charges for unfinished rounds on a client is known to fail again and again."""


class ClientLedgers:
    """The ledgers of a run's clients, and each client's position in its data.

    Every pass over a client's data is charged with its worst batch, since it is not known here
    which examples are in which batch.

    Parameters
    ----------
    delta
        Delta of the reported (epsilon, delta).
    relation
        How neighbouring data sets differ: see `privacy.events.Relation`.
    shares
        Further types of shares in plans, besides the built-in ones.

    Attributes
    ----------
    ledgers
        By client index.
    owing
        Clients that have not been charged yet for what interrupted rounds may have sent.

    Raises
    ------
    ValueError
        If delta is not strictly between 0 and 1, or the relation is unknown.
    """

    def __init__(
        self,
        delta: float = 1e-5,
        *,
        relation: Relation = "replace",
        shares: Sequence[type[Share]] = (),
    ) -> None:
        check_delta(delta)
        check_relation(relation)
        self.delta = delta
        self.relation = relation
        self.ledgers: dict[int, Ledger] = {}
        self.owing: set[int] = set()
        self._passes: dict[int, DataPass] = {}
        self._shares = known_shares(shares)
        self._lost: dict[int, tuple[int, float]] = {}
        """By client, how often it paid for unfinished rounds, and how much epsilon that added."""
        self._once = Once()

    @property
    def epsilons(self) -> dict[int, float]:
        """Epsilon at `delta` by client index; infinite if there is no bound."""
        return {client: said.epsilon for client, said in self.statements().items()}

    def report(self) -> str:
        """State the largest epsilon of any client, and what it does not cover."""
        said = self.statements()
        if not said:
            return "nothing was released"
        worst = max(said, key=lambda client: said[client].epsilon)
        return f"client {worst}: {said[worst]}"

    def statements(self) -> dict[int, Statement]:
        """Return what holds for each client, by its index, sorted."""
        nothing = Ledger(self.relation)
        said = {}
        for client in sorted({*self.ledgers, *self.owing}):
            said[client] = self.ledgers.get(client, nothing).statement(self.delta)
            if client in self.owing:
                said[client] = said[client].without_bound(UNBOUNDED["owed"])
        return said

    def miss(self, clients: Collection[int]) -> None:
        """Charge clients for unknown rounds: they have no epsilon any more."""
        for client in sorted(clients):
            self._ledger_of(client).charge(Exposure("missed"))

    def begin(
        self,
        server_round: int,
        descriptions: Mapping[int, Mapping[str, Any]],
        attempts: Mapping[int, Sequence[int | None]],
        *,
        averaged: bool = False,
    ) -> tuple[int, ...]:
        """Begin a round: record each client's position in its data.

        Parameters
        ----------
        descriptions
            Each client's description of itself, by client index.
        attempts
            By client index, for each earlier attempt at this round how many batches it may have
            sent, with other noise; None if that is not known. Attempts that this ledger has seen
            and that did not finish count, too.
        averaged
            Whether the lower segments are sent at the end of the round.

        Returns
        -------
        Clients whose descriptions lack one of the required non-negative integers, or have a size
        beyond 2^31 - 1. Nothing can be charged to them, so nothing may be asked of them.
        """
        strange = []
        for client, described in descriptions.items():
            said = Description.read(described)
            if said is None:
                strange.append(client)
                continue
            if client not in self._passes:  # what it sent before, this ledger has not charged
                said = said._replace(goes_on=False)
                self._passes[client] = DataPass.met(said)
            before = longest(attempts.get(client, ()), self.unfinished(client))
            self._passes[client].begin_round(server_round, said, before)
            ledger = self._ledger_of(client)
            if averaged:
                ledger.charge(Exposure("lower-segments"))
            if said.batch_norm:
                ledger.charge(Exposure("batch-norm"))
            if said.unbounded:
                ledger.post(Charge(notes=said.unbounded))
        return tuple(strange)

    def unfinished(self, client: int) -> list[int | None]:
        """Return for how many batches a client was asked in each round since it last finished one.

        Its own ledger may have lost these rounds.
        """
        place = self._passes.get(client)
        return [] if place is None else place.unfinished

    def draw(self, client: int, plan: Sequence[Mapping[str, Any] | None]) -> list[Share | None]:
        """Count a batch requested from a client that has begun the round; return its shares.

        Earlier attempts at the round are charged with the noise of the first batch, whether it is
        then sent or not. Which records these had the server does not know, so all pay.

        Parameters
        ----------
        plan
            The batch's share of each pass, as it travels.
        """
        place = self._passes[client]
        place.draw()
        shares = [None if one is None else share_from_wire(one, self._shares) for one in plan]
        if None in place.earlier:
            self._ledger_of(client).charge(Exposure("attempts"))
            place.earlier = [length for length in place.earlier if length is not None]
        times = sum(place.most(length) for length in place.earlier if length is not None)
        if before := earlier_releases(shares, place.tokens, place.width, times):
            ledger = self._ledger_of(client)
            spent = ledger.epsilon(self.delta)
            ledger.charge_each(*before)
            self._note_lost(client, spent)
            place.earlier = []
        if not place.earlier:
            self.owing.discard(client)
        return shares

    def _note_lost(self, client: int, before: float) -> None:
        """Warn once if what a client may have sent in unfinished rounds is most of its epsilon.

        Parameters
        ----------
        before
            Its epsilon before it was charged for the last of them.
        """
        epsilon = self.ledgers[client].epsilon(self.delta)
        rounds, lost = self._lost.get(client, (0, 0.0))
        self._lost[client] = rounds, lost = rounds + 1, lost + (epsilon - before)
        if (
            rounds >= _SEVERAL
            and math.isfinite(epsilon)
            and lost > epsilon / 2
            and self._once.first("lost")
        ):
            log.warning(
                "client %d does not finish its rounds, and what it may have sent in them is more "
                "than half of its epsilon (%s of %s at delta %g): each further one adds to it, so "
                "find out why it fails, or leave it out",
                client,
                epsilon_text(lost),
                epsilon_text(epsilon),
                self.delta,
            )

    def charge_sums(self, plan: Plan, mixed: Mixed, *, rounded: bool = False) -> Collection[int]:
        """Charge a step's mixtures to the clients whose uploads are in them, and to no others.

        Each upload is protected by the noise of all members that sent theirs. A sum of one upload
        is charged as seen alone. Of a batch in parts a record is in one, so the pass costs the part
        with the least noise.

        Parameters
        ----------
        rounded
            Whether uploads were rounded on the wire, before they were added. A sum of rounded
            numbers is not a function of the sum of unrounded ones, so each upload is then charged
            as seen alone; also if the mixture is narrower than float32, as its uploads then were.

        Returns
        -------
        The clients that were charged.
        """
        charged: set[int] = set()
        rounded = rounded or torch.finfo(mixed.smashed.dtype).bits < 32
        parts = zip(*(source.came for source in mixed.sources), strict=True)
        for came in dict.fromkeys(parts):  # mostly all parts have the same clients
            shares: dict[int, list[Share | None]] = {}
            groups: dict[int, dict[int, _Ratios]] = {}
            for source, clients in zip(mixed.sources, came, strict=True):
                members = [member for member in source.members if member.client in clients]
                ratios = tuple(member.share.lam for member in members)
                for member in members:
                    own = shares.setdefault(member.client, [None] * len(plan.passes))
                    own[source.index] = member.share
                    groups.setdefault(member.client, {})[source.index] = ratios
            for client, seen in shares.items():
                self.charge(client, seen, {} if rounded else groups[client])
            charged |= shares.keys()
        return charged

    def charge(
        self,
        client: int,
        shares: Sequence[Share | None],
        groups: Mapping[int, _Ratios] = MappingProxyType({}),
    ) -> None:
        """Charge a batch's share of each pass to a client that has begun the round.

        Parameters
        ----------
        shares
            Its share of each pass; None for a pass in which it has none.
        groups
            By pass, the ratios of the group, if only the sum of its uploads is seen.
        """
        place = self._passes[client]
        size = (place.tokens, place.width)
        events: list[Event] = []
        for index, share in enumerate(shares):
            if share is not None:
                release = release_of(share, *size, place.copies)
                events.append(_as_sum(release, groups[index]) if index in groups else release)
        if any(share is not None and share.learns for share in shares):
            events += [Exposure("gradients"), Exposure("training")]
        self.ledgers[client].charge(*events, epoch=place.epoch)

    def answer(self, client: int) -> None:
        """Note that the batch of a client's newest `draw` has come."""
        self._passes[client].unanswered -= 1

    def expose_tests(self, client: int) -> None:
        """Charge what a client sends of its own test data, unless it calls these public."""
        place = self._passes.get(client)  # None: it never trained, but was asked for its tests
        if place is None or not place.public_tests:
            self.expose(client, Exposure("evaluation"))

    def expose(self, client: int, *exposures: Exposure) -> None:
        """Charge what a client sends without a number."""
        self._ledger_of(client).charge(*exposures)

    def finish(self, server_round: int, failures: Collection[int]) -> None:
        """End a round: all clients that began it have finished, except for failures."""
        for client, place in self._passes.items():
            if place.begun == server_round and client not in failures:
                place.finish()

    def account(self, rounds: Collection[int]) -> RunAccount:
        """Return the largest epsilon and the union of all statements, without naming any client.

        Parameters
        ----------
        rounds
            The rounds that this ledger has been told of.
        """
        statements = self.statements().values()
        because = dict.fromkeys(word for said in statements for word in said.unbounded_because)
        outside = dict.fromkeys(word for said in statements for word in said.outside)
        return RunAccount(
            epsilon=max((float(said.epsilon) for said in statements), default=0.0),
            # Sorted, since the original order is that of the clients.
            unbounded_because=tuple(sorted(because)),
            outside=tuple(sorted(outside)),
            rounds=frozenset(rounds),
        )

    def state(self) -> dict[str, Any]:
        """Return all ledgers and positions."""
        return {
            "ledgers": {str(c): ledger.state_dict() for c, ledger in self.ledgers.items()},
            "passes": {str(c): place.state() for c, place in self._passes.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`.

        Raises
        ------
        ValueError
            If it is of another relation.
        """
        self.ledgers = {}
        for client, kept in state["ledgers"].items():
            self.ledgers[int(client)] = Ledger(self.relation)
            self.ledgers[int(client)].load_state_dict(kept)
        self._passes = {int(c): DataPass.of(place) for c, place in state["passes"].items()}

    def _ledger_of(self, client: int) -> Ledger:
        if client not in self.ledgers:
            self.ledgers[client] = Ledger(self.relation)
        return self.ledgers[client]


def _as_sum(release: Release, ratios: tuple[float, ...]) -> Release:
    return release if release.family == "full" else replace(release, seen="sum", ratios=ratios)
