"""The evaluation of a round: central, over the link, or both, stored in Flower's result."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import strategy as flower

from flwr_splitmix.events import EvaluationResult
from flwr_splitmix.links import LinkError
from flwr_splitmix.observers.metrics import LIST_RULE
from flwr_splitmix.server.aggregation.choice import with_wrapped
from flwr_splitmix.server.evaluation.central import EvaluateFn, central_result
from flwr_splitmix.server.evaluation.over_link import to_record
from flwr_splitmix.storage import plain_numbers
from flwr_splitmix.words import described, listed, one_line, with_article

log = logging.getLogger("flwr.splitmix")


_OVER_LINK = (
    "an evaluation is computed over the link, not from replies; an observer gets its result in "
    "on_round"
)

_UNCALLED = {
    "aggregate_evaluate": _OVER_LINK,
    "configure_fit": "in flwr.serverapp.strategy its name is configure_train",
    "aggregate_fit": "in flwr.serverapp.strategy its name is aggregate_train",
}
"""Methods of Flower's strategies, older ones included, that nothing calls, and why."""


def check_evaluate_fn(evaluate_fn: object) -> None:
    """Raise an error, before the first round, unless the rounds can call it.

    Raises
    ------
    TypeError
        If it is not a function, or takes other arguments.
    """
    if evaluate_fn is None:
        return
    needed = "expected a function of the round's number and its arrays"
    if not callable(evaluate_fn):
        raise TypeError(f"evaluate_fn is {with_article(type(evaluate_fn).__name__)}; {needed}")
    try:
        inspect.signature(evaluate_fn).bind(1, ArrayRecord())
    except TypeError as error:
        raise TypeError(f"evaluate_fn cannot be called so ({error}); {needed}") from None
    except ValueError:  # a function of C without a signature
        return


def warn_of_initial_weights(strategy: str) -> None:
    """Log that the clients of a strategy which does not average keep what they learn."""
    log.warning(
        "%s does not average: evaluate_fn gets the clients' initial weights in every round, not "
        "what they learn; evaluate with evaluation='federated' or 'benchmark', or average with "
        "aggregator=FedAvg()",
        strategy,
    )


_UNCALLED_OF_AGGREGATORS = {
    **_UNCALLED,
    "configure_evaluate": "an aggregator has no part in an evaluation; override it in a subclass "
    "of the strategy of split learning",
    "evaluate_metrics_aggr_fn": _OVER_LINK,
}
"""The same of an aggregator, with what it may be given."""


def warn_of_uncalled(strategy: flower.Strategy, aggregator: flower.Strategy | None) -> None:
    """Log the user's own methods of strategy and aggregator that nothing calls."""
    owners = [(strategy, _UNCALLED)]
    owners += [(wrapped, _UNCALLED_OF_AGGREGATORS) for wrapped in with_wrapped(aggregator)]
    for owner, uncalled in owners:
        kind = type(owner)
        for name, why in uncalled.items():
            method = getattr(owner, name, None)
            module = getattr(method, "__module__", None) or "flwr"
            if callable(method) and module.split(".")[0] not in ("flwr", "flwr_splitmix"):
                log.warning("%s.%s is never called: %s", kind.__name__, name, why)


def checked_result(result: object, strategy: flower.Strategy) -> EvaluationResult | None:
    """Return what a strategy's `evaluate_round` returned.

    Raises
    ------
    TypeError
        If it is neither an EvaluationResult nor None.
    """
    if result is None or isinstance(result, EvaluationResult):
        return result
    raise TypeError(
        f"evaluate_round of {type(strategy).__name__} returns {described(result)}; expected an "
        "EvaluationResult (flwr_splitmix.events), or None"
    )


def evaluate_model(
    server_round: int,
    result: flower.Result,
    evaluate_fn: EvaluateFn | None,
    over_link: Callable[[], EvaluationResult | None] | None,
) -> EvaluationResult | None:
    """Evaluate the model after a round and store the metrics in the result.

    Parameters
    ----------
    result
        Holds the round's arrays; both kinds of metrics are added to it.
    evaluate_fn
        Central evaluation, if any.
    over_link
        Evaluation with the clients, if any. If the link fails, a warning is logged: the round's
        training has finished and is kept.

    Returns
    -------
    The central evaluation, otherwise the one over the link, otherwise None. If there are both,
    accuracy and loss of the latter are further scores of the former, named after its kind.

    Raises
    ------
    TypeError
        If `evaluate_fn` returns something else than metrics.
    """
    central = measured = None
    if evaluate_fn is not None:
        record = _metrics(evaluate_fn(server_round, result.arrays))
        earlier = result.evaluate_metrics_serverapp.values()
        if (wrong := _no_share(record)) is not None and all(_no_share(r) is None for r in earlier):
            log.warning(
                "round %d: evaluate_fn returned an accuracy of %g, and it is read as a share, from "
                "0 to 1; divide percentages by 100",
                server_round,
                wrong,
            )
        central = central_result(record)
        if record is not None and central is None and all(central_result(r) for r in earlier):
            log.warning(
                "round %d: evaluate_fn returned no %s, so the run's rows have none of its "
                "metrics; they are in the result's evaluate_metrics_serverapp",
                server_round,
                "'accuracy' that is one number" if "accuracy" in record else "'accuracy'",
            )
        if central is not None and (lists := _lists(record)) and not any(map(_lists, earlier)):
            log.warning(
                "round %d: the run's rows leave out %s of evaluate_fn; %s",
                server_round,
                listed((repr(one_line(name)[:60]) for name in lists), most=5),
                LIST_RULE,
            )
        if record is not None:
            result.evaluate_metrics_serverapp[server_round] = record
    if over_link is not None:
        try:
            measured = over_link()
        except LinkError as error:
            log.warning("round %d could not be evaluated: %s", server_round, error)
    if measured is not None:
        result.evaluate_metrics_clientapp[server_round] = to_record(measured)
    if central is None or measured is None:
        return central or measured
    further = {f"{measured.kind}-accuracy": measured.accuracy}
    if measured.loss is not None:
        further[f"{measured.kind}-loss"] = measured.loss
    return replace(central, scores={**further, **central.scores})


def _no_share(record: MetricRecord | None) -> float | None:
    """Return the accuracy in metrics if it is below 0 or above 1, else None."""
    accuracy = None if record is None else record.get("accuracy")
    if isinstance(accuracy, (int, float)) and (accuracy < 0 or accuracy > 1):
        return accuracy
    return None


def _lists(record: MetricRecord | None) -> list[str]:
    """Return the names of metrics that are lists."""
    return [name for name, value in (record or {}).items() if isinstance(value, list)]


def _metrics(returned: Any) -> MetricRecord | None:
    """Return what an `evaluate_fn` returned as Flower's metrics, which are plain numbers."""
    if returned is None or isinstance(returned, MetricRecord):
        return returned
    if not isinstance(returned, Mapping):
        raise TypeError(
            f"evaluate_fn returned {with_article(type(returned).__name__)}; expected a "
            "MetricRecord with an 'accuracy', or None"
        )
    return MetricRecord(plain_numbers(returned, "evaluate_fn"))
