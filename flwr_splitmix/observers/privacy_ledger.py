"""What each client has spent of its privacy, as the server can tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flwr_splitmix.events import Exchange, RoundBegun, StepDone
from flwr_splitmix.mixers import SHARES, Share, share_from_wire
from flwr_splitmix.mixers.accounting import release_of
from flwr_splitmix.observers.observer import Observer
from flwr_splitmix.privacy import Event, Exposure, Ledger, Relation, Release
from flwr_splitmix.privacy.accountant import check_delta


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
    times: int = 1

    @property
    def epoch(self) -> int:
        """The pass that the newest batch belongs to; one each, where batches are drawn anew."""
        drawn = max(self.drawn - 1, 0)
        return self.offset + (drawn // self.per_epoch if self.per_epoch else drawn)

    @property
    def copies(self) -> int:
        """How often a record may be in one batch: drawn with replacement, at worst always."""
        return 1 if self.per_epoch else self.batch


class PrivacyLedger(Observer):
    """One ledger for each client, from what crossed the link.

    It charges every pass over a client's data with its worst batch, since the server does not know
    which examples are in which; the client's own ledger knows, and never says more. Uploads are
    charged when they are sent, also if they are then refused.

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
        self._asked: dict[int, list[Share]] = {}
        self._private_tests = False

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
        for client, described in event.descriptions.items():
            place = self._passes.setdefault(client, _Pass())
            self.ledgers.setdefault(client, Ledger(self.relation))
            if int(described.get("state-round", 0)) < place.finished:
                # It lost its state and begins a pass anew, wherever it was.
                place.offset, place.drawn = place.epoch + 1, 0
            place.batch = int(described["batch-size"])
            place.per_epoch = int(described["num-examples"]) // place.batch
            place.tokens = int(described["prefix"]) + int(described["patches"])
            place.width = int(described["width"])
            # A repeated round sends the same batches again, with fresh noise unless it repeats too.
            repeats = bool(described.get("repeatable-secrets"))
            place.times = 1 if repeats else event.attempt + 1
            place.finished = event.server_round
            if event.averaged:
                self.ledgers[client].charge(Exposure("lower-segments"))

    def on_exchange(self, event: Exchange) -> None:
        """Count the batches that clients draw, and charge what they send."""
        if event.method == "step" and event.direction == "down":
            plan = event.payload["plan"]
            if plan is not None:
                self._passes[event.client].drawn += 1
                self._asked[event.client] = [
                    share_from_wire(share, self._shares) for share in plan if share is not None
                ]
        elif event.method == "step" and "smashed" in event.payload and not self.trusted_mixer:
            self._charge(event.client, self._asked[event.client], {})
        elif event.method == "encode_test" and event.direction == "down":
            self._private_tests = event.payload["kind"] == "federated"
        elif event.method == "encode_test" and self._private_tests:
            # It may be a client that never trained.
            ledger = self.ledgers.setdefault(event.client, Ledger(self.relation))
            ledger.charge(Exposure("evaluation"))

    def on_step(self, event: StepDone) -> None:
        """Charge the sums, where only they are seen."""
        if not self.trusted_mixer:
            return
        groups: dict[int, dict[Share, tuple[float, ...]]] = {}
        for source in event.mixed.sources:
            ratios = tuple(member.share.lam for member in source.members)
            for member in source.members:
                groups.setdefault(member.client, {})[member.share] = ratios
        for client, seen in groups.items():
            self._charge(client, list(seen), seen)

    def _charge(
        self, client: int, shares: Sequence[Share], groups: Mapping[Share, tuple[float, ...]]
    ) -> None:
        place = self._passes[client]
        events: list[Event] = []
        for share in shares:
            release = release_of(share, place.tokens, place.width, place.times * place.copies)
            events.append(_as_sum(release, groups[share]) if share in groups else release)
        if any(share.learns for share in shares):
            events += [Exposure("gradients"), Exposure("training")]
        self.ledgers[client].charge(*events, epoch=place.epoch)

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
