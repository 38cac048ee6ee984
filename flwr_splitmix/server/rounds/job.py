"""A run of the loop of rounds: its inputs and its result."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower

from flwr_splitmix.server.evaluation.central import EvaluateFn

log = logging.getLogger("flwr.splitmix")


@dataclass(frozen=True)
class Job:
    """A run's inputs, and Flower's result, which grows with the rounds.

    Parameters
    ----------
    goes_on
        Whether the clients are those of the strategy's last `fit`.
    """

    grid: Grid | None
    initial: ArrayRecord
    evaluate_fn: EvaluateFn | None
    train_config: ConfigRecord = field(default_factory=ConfigRecord)
    evaluate_config: ConfigRecord = field(default_factory=ConfigRecord)
    result: flower.Result = field(default_factory=flower.Result)
    goes_on: bool = False


def message_config(name: str, config: ConfigRecord | None) -> ConfigRecord:
    """Return the entries that messages carry, with a warning that a `client_fn` sees none.

    Parameters
    ----------
    name
        The argument's name.
    """
    if config:
        log.warning(
            "%s (%s) reaches mods and the aggregator, but no client_fn: clients are built from the "
            "run configuration (context.run_config)",
            name,
            ", ".join(sorted(config)),
        )
    return config or ConfigRecord()
