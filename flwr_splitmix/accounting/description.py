"""What a ledger reads of a client's description of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from flwr_splitmix.privacy.events import UNBOUNDED
from flwr_splitmix.values import MAX_COUNT

_NUMBERS = ("batch-size", "num-examples", "prefix", "patches", "width", "state-round")


class Description(NamedTuple):
    """What a ledger reads of a client's description of itself.

    Attributes
    ----------
    batch, per_epoch
        Examples of a batch, and full batches of a pass.
    tokens, width
        Of one example's smashed data.
    state_round
        The last round that the client's state has.
    begun
        How many batches of a pass it has drawn: if it does not say, the most that it can have been.
    repeats
        Whether its secrets are the run's seed's, so that a repeated round has the same noise.
    goes_on
        Whether it is the object that was asked for all batches since this ledger met it. A client
        that is made anew for each round, as on a node, does not say so.
    unbounded
        Why what it has sent before, perhaps in other runs, has no epsilon: keys of `UNBOUNDED`,
        sorted; empty if it has one, or the client does not say.
    """

    batch: int
    per_epoch: int
    tokens: int
    width: int
    state_round: int
    begun: int
    repeats: bool
    goes_on: bool
    public_tests: bool
    batch_norm: bool
    unbounded: tuple[str, ...]

    @classmethod
    def read(cls, described: Mapping[str, Any]) -> Self | None:
        """Return what it says; None if it lacks a non-negative integer, or has one beyond a size.

        A size is at most 2^31 - 1.
        """
        numbers: list[Any] = [described.get(key) for key in _NUMBERS]
        if not all(type(number) is int and number >= 0 for number in numbers):
            return None
        *sizes, state_round = numbers
        if max(sizes) > MAX_COUNT:  # a sum of very long integers has no place in a checkpoint
            return None
        batch, examples, prefix, patches, width = sizes
        per_epoch = examples // max(batch, 1)
        drawn = described.get("drawn")
        return cls(
            batch=batch,
            per_epoch=per_epoch,
            tokens=prefix + patches,
            width=width,
            state_round=state_round,
            begun=(drawn if type(drawn) is int else -bool(state_round)) % max(per_epoch, 1),
            repeats=described.get("repeatable-secrets") is True,
            goes_on=described.get("goes-on") is True,
            public_tests=described.get("public-evaluation") is True,
            batch_norm=described.get("batch-norm") is True,
            unbounded=_reasons(described.get("unbounded")),
        )


def _reasons(named: object) -> tuple[str, ...]:
    """Return which keys of `UNBOUNDED` a client names; others, of another version, as "unknown"."""
    keys = named if isinstance(named, (list, tuple)) else ()
    known = (key if isinstance(key, str) and key in UNBOUNDED else "unknown" for key in keys)
    return tuple(sorted(set(known)))
