"""One ledger per client, charged for requests to clients and for their uploads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr_splitmix.accounting.data_position import DataPosition, longest
from flwr_splitmix.accounting.earlier_charges import EarlierCharges
from flwr_splitmix.accounting.mixtures import NO_SUMS, Ratios, merged
from flwr_splitmix.accounting.uploads import release_of
from flwr_splitmix.description import SplitDescription
from flwr_splitmix.mixers import Mixed, Plan, Share, known_shares, share_from_wire
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
        self._passes: dict[int, DataPosition] = {}
        self._shares = known_shares(shares)
        self._earlier = EarlierCharges()

    @property
    def epsilons(self) -> dict[int, float]:
        """Epsilon at `delta` by client index; infinite if there is no bound."""
        return {client: statement.epsilon for client, statement in self.statements().items()}

    def report(self) -> str:
        """State the largest epsilon of any client, and what it does not cover."""
        statements = self.statements()
        if not statements:
            return "nothing was released"
        worst = max(statements, key=lambda client: statements[client].epsilon)
        return f"client {worst}: {statements[worst]}"

    def statements(self) -> dict[int, Statement]:
        """Return each client's statement, by its index, sorted."""
        nothing = Ledger(self.relation)
        owing = self._earlier.owing
        statements = {}
        for client in sorted({*self.ledgers, *owing}):
            statement = self.ledgers.get(client, nothing).statement(self.delta)
            owes = client in owing
            statements[client] = statement.without_bound(UNBOUNDED["owed"]) if owes else statement
        return statements

    def note_interrupted(self, clients: Collection[int]) -> None:
        """Leave clients without an epsilon until interrupted rounds are charged."""
        self._earlier.note_interrupted(clients)

    def miss(self, clients: Collection[int]) -> None:
        """Charge clients for unknown rounds: they have no epsilon any more."""
        for client in sorted(clients):
            self._ledger_of(client).charge(Exposure("missed"))

    def begin(
        self,
        server_round: int,
        descriptions: Mapping[int, SplitDescription],
        attempts: Mapping[int, Sequence[int | None]],
        *,
        averaged: bool = False,
    ) -> None:
        """Begin a round: record each client's position in its data.

        Parameters
        ----------
        descriptions
            Each client's description of itself, by client index.
        attempts
            By client index, for each earlier attempt at this round the number of batches that it
            may have sent, with other noise; None if that is not known. Attempts that this ledger
            has seen and that did not finish count, too.
        averaged
            Whether the lower segments are sent at the end of the round.
        """
        for client, description in descriptions.items():
            is_known = (
                client in self._passes
            )  # otherwise it may have sent batches that are not charged here
            if not is_known:
                self._passes[client] = DataPosition.met(description)
            before = longest(attempts.get(client, ()), self.unfinished(client))
            same_object = is_known and description.uploads.same_object
            self._passes[client].begin_round(
                server_round, description, before, same_object=same_object
            )
            ledger = self._ledger_of(client)
            if averaged:
                ledger.charge(Exposure("lower-segments"))
            if description.uploads.across_batch:
                ledger.charge(Exposure("batch-norm"))
            if reasons := _known_reasons(description.uploads.unbounded):
                ledger.post(Charge(notes=reasons))

    def unfinished(self, client: int) -> list[int | None]:
        """Return the number of batches asked of a client in each round since it last finished one.

        Its own ledger may have lost these rounds.
        """
        data_position = self._passes.get(client)
        return [] if data_position is None else data_position.unfinished

    def charge_request(
        self, client: int, plan: Sequence[Mapping[str, Any] | None]
    ) -> list[Share | None]:
        """Count a batch requested of a client, and charge earlier attempts with its noise.

        The batch itself is charged by its shares once it is sent: see `charge`. Earlier attempts
        are charged whether it is then sent or not.

        Parameters
        ----------
        client
            A client that has begun the round.
        plan
            The batch's share of each pass, as it travels.

        Returns
        -------
        These shares; None for a pass in which it has none.

        Raises
        ------
        ValueError
            If a share is of an unknown type.
        """
        data_position = self._passes[client]
        data_position.count_batch()
        shares = [None if one is None else share_from_wire(one, self._shares) for one in plan]
        self._earlier.charge(client, self._ledger_of(client), data_position, shares, self.delta)
        return shares

    def charge_sums(self, plan: Plan, mixed: Mixed, *, rounded: bool = False) -> Collection[int]:
        """Charge a step's mixtures to the clients whose uploads are in them, and to no others.

        Parameters
        ----------
        rounded
            Whether uploads were rounded on the wire, before they were added: see `merged`.

        Returns
        -------
        The clients that were charged.
        """
        charged: set[int] = set()
        for client, shares, groups in merged(plan, mixed, rounded=rounded):
            self.charge(client, shares, groups)
            charged.add(client)
        return charged

    def charge(
        self,
        client: int,
        shares: Sequence[Share | None],
        groups: Mapping[int, Ratios] = NO_SUMS,
    ) -> None:
        """Charge a batch's share of each pass to a client that has begun the round.

        Parameters
        ----------
        shares
            Its share of each pass; None for a pass in which it has none.
        groups
            By pass, the ratios of the group, if only the sum of its uploads is seen.
        """
        data_position = self._passes[client]
        size = (data_position.tokens, data_position.width)
        events: list[Event] = []
        for index, share in enumerate(shares):
            if share is not None:
                release = release_of(share, *size, data_position.copies)
                events.append(_as_sum(release, groups[index]) if index in groups else release)
        if any(share is not None and share.learns for share in shares):
            events += [Exposure("gradients"), Exposure("training")]
        self.ledgers[client].charge(*events, epoch=data_position.epoch)

    def answer(self, client: int) -> None:
        """Note that the batch of a client's newest `charge_request` has come."""
        self._passes[client].unanswered -= 1

    def expose_tests(self, client: int) -> None:
        """Charge a client's uploads of its own test data, unless it calls these public."""
        data_position = self._passes.get(client)
        # None if it never trained, but was asked for its tests.
        if data_position is None or not data_position.public_tests:
            self.expose(client, Exposure("evaluation"))

    def expose(self, client: int, *exposures: Exposure) -> None:
        """Charge uploads of a client that have no number."""
        self._ledger_of(client).charge(*exposures)

    def finish(self, server_round: int, failures: Collection[int]) -> None:
        """End a round: all clients that began it have finished, except for failures."""
        for client, data_position in self._passes.items():
            if data_position.begun == server_round and client not in failures:
                data_position.finish()

    def account(self, rounds: Collection[int]) -> RunAccount:
        """Return the largest epsilon and the union of all statements, without naming any client.

        Parameters
        ----------
        rounds
            The rounds that this ledger covers.
        """
        statements = self.statements().values()
        because = dict.fromkeys(
            word for statement in statements for word in statement.unbounded_because
        )
        outside = dict.fromkeys(word for statement in statements for word in statement.outside)
        return RunAccount(
            epsilon=max((float(statement.epsilon) for statement in statements), default=0.0),
            # Sorted, since the original order is that of the clients.
            unbounded_because=tuple(sorted(because)),
            outside=tuple(sorted(outside)),
            rounds=frozenset(rounds),
        )

    def state(self) -> dict[str, Any]:
        """Return all ledgers and positions."""
        return {
            "ledgers": {str(c): ledger.state_dict() for c, ledger in self.ledgers.items()},
            "passes": {str(c): data_position.state() for c, data_position in self._passes.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`.

        Raises
        ------
        ValueError
            If it has another relation.
        """
        self.ledgers = {}
        for client, ledger_state in state["ledgers"].items():
            self.ledgers[int(client)] = Ledger(self.relation)
            self.ledgers[int(client)].load_state_dict(ledger_state)
        self._passes = {
            int(c): DataPosition.of(pass_state) for c, pass_state in state["passes"].items()
        }

    def _ledger_of(self, client: int) -> Ledger:
        if client not in self.ledgers:
            self.ledgers[client] = Ledger(self.relation)
        return self.ledgers[client]


def _known_reasons(named: Sequence[str]) -> tuple[str, ...]:
    """Return the keys of `UNBOUNDED` that a client names; another version's as "unknown"."""
    return tuple(sorted({key if key in UNBOUNDED else "unknown" for key in named}))


def _as_sum(release: Release, ratios: Ratios) -> Release:
    return release if release.family == "full" else replace(release, seen="sum", ratios=ratios)
