"""The evaluation of a round: central, over the link, or both, and where Flower's result has it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flwr.serverapp.strategy import Result

from flwr_splitmix.events import EvaluationResult
from flwr_splitmix.links import LinkError
from flwr_splitmix.server.evaluation.central import EvaluateFn, central_result
from flwr_splitmix.server.evaluation.over_link import to_record

log = logging.getLogger("flwr.splitmix")


def evaluate_model(
    server_round: int,
    result: Result,
    evaluate_fn: EvaluateFn | None,
    over_link: Callable[[], EvaluationResult | None] | None,
) -> EvaluationResult | None:
    """Measure the model after a round, and note it in the result.

    Parameters
    ----------
    result
        Has the round's arrays; both kinds of metrics are added to it.
    evaluate_fn
        Central evaluation, if there is one.
    over_link
        Evaluation with the clients, if there is one. A link that fails costs a warning: the
        training of the round has finished and is kept.

    Returns
    -------
    The central evaluation, else the one over the link, else None.
    """
    central = measured = None
    if evaluate_fn is not None:
        record = evaluate_fn(server_round, result.arrays)
        if record is not None:
            result.evaluate_metrics_serverapp[server_round] = record
        central = central_result(record)
    if over_link is not None:
        try:
            measured = over_link()
        except LinkError as error:
            log.warning("round %d could not be evaluated: %s", server_round, error)
    if measured is not None:
        result.evaluate_metrics_clientapp[server_round] = to_record(measured)
    return central or measured
