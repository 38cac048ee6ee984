"""The server's privacy ledger: each client's spending, as far as the server can know it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flwr_splitmix.events import Exchange, RoundBegun, RoundDone, StepDone
from flwr_splitmix.mixers import SHARES, Mixed, Plan, Share, share_from_wire
from flwr_splitmix.mixers.accounting import earlier_releases, release_of
from flwr_splitmix.observers.observer import Observer
from flwr_splitmix.privacy import Event, Exposure, Ledger, Relation, Release, RunAccount
from flwr_splitmix.privacy.accountant import check_delta

log = logging.getLogger("flwr.splitmix")

_NUMBERS = ("batch-size", "num-examples", "prefix", "patches", "width", "state-round")

_Ratios = tuple[float, ...]


@dataclass
class _Pass:
    """Where a client is in its data, as far as the server can count."""

    per_epoch: int = 0
    batch: int = 0
    tokens: int = 0
    width: int = 0
    drawn: int = 0
    offset: int = 0
    finished: int = 0
    attempts: int = 0
    unfinished: int = 0
    aligned: bool = True
    public_tests: bool = False

    @property
    def epoch(self) -> int:
        """The pass that the newest batch belongs to; one each, where batches are drawn anew."""
        drawn = max(self.drawn - 1, 0)
        return self.offset + (drawn // self.per_epoch if self.per_epoch else drawn)

    @property
    def copies(self) -> int:
        """How often a record may be in what is charged as one batch, or as one pass.

        Drawn with replacement, at worst always. What is counted as a pass from the midst of one is
        the end of one and the beginning of the next: twice.
        """
        if not self.per_epoch:
            return self.batch
        return 1 if self.aligned else 2


class PrivacyLedger(Observer):
    """One ledger for each client, from what crossed the link and what clients say of themselves.

    It charges every pass over a client's data with its worst batch, since the server does not know
    which examples are in which; the client's own ledger knows, and never says more. Uploads are
    charged when they are sent, even if they are then rejected.

    Parameters
    ----------
    delta
        Of the (epsilon, delta) that is reported.
    trusted_mixer
        The user's statement that another party mixes, and the server sees only the sums. By
        default the server, which runs the mixer, sees each upload alone.
    relation
        Neighbouring data sets: one example is another one ("replace"), or is there or not.
    shares
        Further kinds of shares that plans contain, besides the built-in ones.

    Raises
    ------
    ValueError
        If delta is not strictly between 0 and 1.
    """

    def __init__(
        self,
        delta: float = 1e-5,
        *,
        trusted_mixer: bool = False,
        relation: Relation = "replace",
        shares: Sequence[type[Share]] = (),
    ) -> None:
        check_delta(delta)
        self.delta = delta
        self.trusted_mixer = trusted_mixer
        self.relation = relation
        self.ledgers: dict[int, Ledger] = {}
        self._shares = (*SHARES, *shares)
        self._passes: dict[int, _Pass] = {}
        self._asked: dict[int, list[Share | None]] = {}
        self._parts_of: dict[int, int] = {}
        self._parts_left: dict[int, int] = {}
        self._private_tests = False
        self._said: set[tuple[str, ...]] = set()

    @property
    def epsilons(self) -> dict[int, float]:
        """By client index, its epsilon at `delta`; infinite if there is no bound."""
        return {c: ledger.epsilon(self.delta) for c, ledger in sorted(self.ledgers.items())}

    def report(self) -> str:
        """Say what the client that spent most has spent, and what no number covers."""
        if not self.ledgers:
            return "nothing was released"
        worst = max(self.ledgers, key=lambda client: self.ledgers[client].epsilon(self.delta))
        return f"client {worst}: {self.ledgers[worst].statement(self.delta)}"

    def on_begin(self, event: RoundBegun) -> None:
        """Note where each client stands in its data."""
        attempts = {c: event.attempt + self.unfinished(c) for c in event.descriptions}
        self.begin(event.server_round, event.descriptions, attempts, averaged=event.averaged)

    def begin(
        self,
        server_round: int,
        descriptions: Mapping[int, Mapping[str, Any]],
        attempts: Mapping[int, int],
        *,
        averaged: bool = False,
    ) -> tuple[int, ...]:
        """Begin a round: note where each client stands in its data.

        Parameters
        ----------
        descriptions
            What each client says of itself, by client index.
        attempts
            By client index, how often it may have sent this round's batches before, with other
            noise.
        averaged
            Whether the lower segments are sent at the end of the round.

        Returns
        -------
        Clients whose descriptions are no numbers. Nothing can be charged to them, and so nothing
        may be asked of them.
        """
        strange = []
        for client, described in descriptions.items():
            numbers: list[Any] = [described.get(key) for key in _NUMBERS]
            if not all(type(number) is int and number >= 0 for number in numbers):
                strange.append(client)
                continue
            batch, examples, prefix, patches, width, state_round = numbers
            per_epoch = examples // max(batch, 1)
            place = self._passes.setdefault(client, _Pass())
            ledger = self._ledger_of(client)
            resized = (batch, per_epoch) != (place.batch, place.per_epoch)
            if place.finished and (resized or state_round < place.finished):
                # It did not finish a round, or went back: wherever it goes on, it pays again.
                place.offset, place.drawn, place.aligned = place.epoch + 1, 0, False
            place.batch, place.per_epoch = batch, per_epoch
            place.tokens, place.width = prefix + patches, width
            # A repeated round sends the same batches again, with fresh noise unless it repeats too.
            repeats = described.get("repeatable-secrets") is True
            place.attempts = 0 if repeats else attempts[client]
            place.unfinished += 1
            place.finished = server_round
            place.public_tests = described.get("public-evaluation") is True
            if averaged:
                ledger.charge(Exposure("lower-segments"))
            if described.get("batch-norm") is True:
                ledger.charge(Exposure("batch-norm"))
        return tuple(strange)

    def unfinished(self, client: int) -> int:
        """Return how often a client has begun a round since the last one that it finished.

        It may have lost what its own ledger says of those.
        """
        place = self._passes.get(client)
        return 0 if place is None else place.unfinished

    def on_exchange(self, event: Exchange) -> None:
        """Count the batches that clients draw, and charge what they send.

        A call of training with a plan draws a batch; the smashed data of the reply are charged as
        the plan's shares say. A batch that goes up in parts, of which each sample is in one, is
        charged as a whole with the first of them. What else is sent in any phase is no release
        that has a number.
        """
        if event.phase == "evaluate":
            if event.direction == "down":
                self._private_tests = event.payload.get("kind") != "benchmark"
            elif self._private_tests:
                self._charge_tests(event.client)
        elif event.direction == "down":
            plan = event.payload.get("plan")
            if plan is not None and not event.payload.get("part"):
                self.draw(event.client)
                self._asked[event.client] = [
                    None if share is None else share_from_wire(share, self._shares)
                    for share in plan
                ]
                self._parts_left.pop(event.client, None)
                self._parts_of[event.client] = event.payload.get("parts", 1)
        elif "smashed" in event.payload and event.client in self._asked:
            if self._begins_batch(event.client) and not self.trusted_mixer:
                self._charge(event.client, self._asked[event.client], {})
        elif event.nbytes:
            self._ledger_of(event.client).charge(Exposure("uncounted"))

    def draw(self, client: int) -> None:
        """Count a batch that a client, which has begun the round, is asked for."""
        self._passes[client].drawn += 1

    def _begins_batch(self, client: int) -> bool:
        """Count the parts of a batch that have come; returns whether one was the first."""
        left = self._parts_left.get(client, 0)
        self._parts_left[client] = (left or self._parts_of[client]) - 1
        return not left

    def _charge_tests(self, client: int) -> None:
        place = self._passes.get(client)  # None: it never trained, but was asked for its tests
        if place is None or not place.public_tests:
            self._ledger_of(client).charge(Exposure("evaluation"))

    def _ledger_of(self, client: int) -> Ledger:
        return self.ledgers.setdefault(client, Ledger(self.relation))

    def on_step(self, event: StepDone) -> None:
        """Charge the sums, where only they are seen."""
        if self.trusted_mixer and event.plan is not None and event.mixed is not None:
            self.charge_sums(event.plan, event.mixed)

    def charge_sums(self, plan: Plan, mixed: Mixed, *, rounded: bool = False) -> None:
        """Charge a step's mixtures to those whose uploads are in them, and to nobody else.

        Each hides in the noise of the members that came. A sum of one is charged as seen alone.

        Parameters
        ----------
        rounded
            Whether each upload was rounded before it was added. A sum of rounded numbers is no
            function of the sum of plain ones: each upload is then charged as seen alone.
        """
        passes = len(plan.passes)
        shares: dict[int, list[Share | None]] = {}
        groups: dict[int, dict[int, _Ratios]] = {}
        for source in mixed.sources:
            ratios = tuple(member.share.lam for member in source.members)
            for member in source.members:
                own = shares.setdefault(member.client, [None] * passes)
                own[source.index] = member.share
                groups.setdefault(member.client, {})[source.index] = ratios
        for client, seen in shares.items():
            self._charge(client, seen, {} if rounded else groups[client])

    def _charge(
        self, client: int, shares: Sequence[Share | None], groups: Mapping[int, _Ratios]
    ) -> None:
        """Charge a batch's share of each pass; `groups` has the ratios of those seen as a sum."""
        place = self._passes[client]
        size = (place.tokens, place.width)
        events: list[Event] = []
        for index, share in enumerate(shares):
            if share is not None:
                release = release_of(share, *size, place.copies)
                events.append(_as_sum(release, groups[index]) if index in groups else release)
        events += earlier_releases(shares, *size, place.attempts * place.copies)
        if any(share is not None and share.learns for share in shares):
            events += [Exposure("gradients"), Exposure("training")]
        self.ledgers[client].charge(*events, epoch=place.epoch)

    def on_round(self, event: RoundDone) -> None:
        """Note who finished; say in the log what no number covers, whenever there is more of it."""
        self.finish(event.server_round, event.failures)
        statements = [ledger.statement(self.delta) for ledger in self.ledgers.values()]
        words = {said.unbounded_because + said.outside for said in statements}
        if words - self._said:
            self._said |= words
            log.info("privacy of %s", self.report())

    def finish(self, server_round: int, failures: Collection[int]) -> None:
        """Note that a round is over, and that all who began it have finished, but for failures."""
        for client, place in self._passes.items():
            if place.finished == server_round and client not in failures:
                place.unfinished = 0

    def account(self, rounds: Collection[int]) -> RunAccount:
        """Return the largest epsilon and all clients' words, without a word about which client.

        Parameters
        ----------
        rounds
            Those that this ledger has been told of.
        """
        statements = [ledger.statement(self.delta) for ledger in self.ledgers.values()]
        because = dict.fromkeys(word for said in statements for word in said.unbounded_because)
        outside = dict.fromkeys(word for said in statements for word in said.outside)
        return RunAccount(
            epsilon=max((float(said.epsilon) for said in statements), default=0.0),
            # Sorted: their order would be that of the clients.
            unbounded_because=tuple(sorted(because)),
            outside=tuple(sorted(outside)),
            rounds=frozenset(rounds),
        )

    def facts(self) -> Mapping[str, Any]:
        """Return "privacy": what `report` says."""
        return {"privacy": self.report()}

    def state(self) -> dict[str, Any]:
        """Return all ledgers and places."""
        return {
            "ledgers": {str(c): ledger.state_dict() for c, ledger in self.ledgers.items()},
            "passes": {str(c): vars(place).copy() for c, place in self._passes.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self.ledgers = {}
        for client, kept in state["ledgers"].items():
            self.ledgers[int(client)] = Ledger(self.relation)
            self.ledgers[int(client)].load_state_dict(kept)
        self._passes = {int(client): _Pass(**place) for client, place in state["passes"].items()}


def _as_sum(release: Release, ratios: tuple[float, ...]) -> Release:
    return release if release.family == "full" else replace(release, seen="sum", ratios=ratios)
