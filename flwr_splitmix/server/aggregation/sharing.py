"""Whether a Flower strategy has aggregated for another strategy of split learning."""

from __future__ import annotations

import logging

from flwr.serverapp import strategy as flower

from flwr_splitmix.server.aggregation.choice import ROBUST, with_wrapped
from flwr_splitmix.server.last_use import used_by_another

log = logging.getLogger("flwr.splitmix")

_KEEPS_NOTHING = (
    flower.FedAvg,
    *ROBUST,
    flower.DifferentialPrivacyServerSideFixedClipping,
    flower.DifferentialPrivacyClientSideFixedClipping,
)
"""Flower's strategies that keep nothing from round to round."""


def warn_of_use(aggregator: flower.Strategy, owner: object) -> bool:
    """Log if a Flower strategy that keeps a state has aggregated for another owner last."""
    keeps_nothing = all(type(strategy) in _KEEPS_NOTHING for strategy in with_wrapped(aggregator))
    if keeps_nothing or not used_by_another(aggregator, owner):
        return False
    log.warning(
        "the aggregator, %s, has aggregated for another strategy, and may still have its state, "
        "such as moments: to compare from equal starts, make a new one for each strategy",
        type(aggregator).__name__,
    )
    return True
