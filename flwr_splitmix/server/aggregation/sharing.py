"""Which Flower strategy has aggregated for which strategy of split learning in this process."""

from __future__ import annotations

import logging
import weakref

from flwr.serverapp import strategy as flower

from flwr_splitmix.server.aggregation.choice import with_wrapped

log = logging.getLogger("flwr.splitmix")

_KEEPS_NOTHING = (
    flower.FedAvg,
    flower.FedMedian,
    flower.FedTrimmedAvg,
    flower.Krum,
    flower.MultiKrum,
    flower.Bulyan,
    flower.DifferentialPrivacyServerSideFixedClipping,
    flower.DifferentialPrivacyClientSideFixedClipping,
)
"""Flower's strategies that keep nothing from round to round."""

_last_for: dict[int, object] = {}
"""By the identity of a living Flower strategy, for whom it has aggregated last."""


def note_use(aggregator: flower.Strategy, owner: object) -> None:
    """Note that a Flower strategy has aggregated for an owner."""
    key = id(aggregator)
    if key not in _last_for:
        weakref.finalize(aggregator, _last_for.pop, key, None).atexit = False
    _last_for[key] = owner


def warn_of_use(aggregator: flower.Strategy, owner: object) -> bool:
    """Log if a Flower strategy that keeps something has aggregated for another owner last."""
    other = _last_for.get(id(aggregator), owner)
    if other is owner or all(type(own) in _KEEPS_NOTHING for own in with_wrapped(aggregator)):
        return False
    log.warning(
        "the aggregator, %s, has aggregated for another strategy, and may go on with what it keeps "
        "from that, such as moments: for an equal start make a new one for each strategy",
        type(aggregator).__name__,
    )
    return True
