"""Checks of the values that methods of a Flower strategy, own ones too, return."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.serverapp import strategy as flower

from flwr_splitmix.clients.weights import differences
from flwr_splitmix.links.ticket import RECORD
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.server.aggregation.choice import with_wrapped
from flwr_splitmix.server.aggregation.measured import to_whole
from flwr_splitmix.server.aggregation.nodes import AggregatorError
from flwr_splitmix.words import described, listed

log = logging.getLogger("flwr.splitmix")


def messages_of(returned: object, strategy: flower.Strategy, method: str) -> list[Message]:
    """Return the messages that a method returned, which may be a generator.

    Raises
    ------
    AggregatorError
        If it returned something else, or two messages for one client: a client takes part in a
        round once.
    """
    messages: list[Any] = list(returned) if isinstance(returned, Iterable) else [None]
    if not all(isinstance(message, Message) for message in messages):
        raise AggregatorError(
            f"{method} of {type(strategy).__name__} returns {described(returned)}; expected "
            "messages"
        )
    addressees: set[int | str] = set()
    for message in messages:
        client, node = _addressee(message), message.metadata.dst_node_id
        if {client, node} & addressees:
            raise AggregatorError(
                f"{method} of {type(strategy).__name__} gives {client} two messages; a round takes "
                "one for each client"
            )
        addressees |= {client, node}
    return messages


def _addressee(message: Message) -> str:
    """Return the client that a message is for, from its ticket; without one, its node."""
    ticket = message.content.config_records.get(RECORD)
    node, client = message.metadata.dst_node_id, None if ticket is None else ticket.get("client")
    return f"client {client}" if isinstance(client, int) else f"node {node}"


def training_messages_of(
    returned: object, strategy: flower.Strategy, server_round: int
) -> list[Message]:
    """Return the messages that `configure_train` made.

    Raises
    ------
    AggregatorError
        As for `messages_of`, or if it returned none.
    """
    messages = messages_of(returned, strategy, "configure_train")
    if not messages:
        raise asked_no_node(strategy, server_round)
    return messages


def asked_no_node(strategy: flower.Strategy, server_round: int) -> AggregatorError:
    """Return the error of a strategy whose `configure_train` made no messages."""
    return AggregatorError(
        f"{type(strategy).__name__} asked no node to train in round {server_round}"
    )


def missing_weight(strategy: flower.Strategy, replies: Sequence[Message]) -> AggregatorError | None:
    """Return the error of a strategy that weights clients by what they do not report, if it is so.

    Parameters
    ----------
    replies
        At least one; all have the same metrics.
    """
    reported = [name for record in replies[0].content.metric_records.values() for name in record]
    for weighting in with_wrapped(strategy):
        key = getattr(weighting, "weighted_by_key", None)
        if isinstance(key, str) and key not in reported:
            return AggregatorError(
                f"{type(weighting).__name__} has weighted_by_key={key!r}, which clients do not "
                f"report; it must be one of {listed(map(repr, reported))}, or a metric that "
                "clients add in release()"
            )
    return None


def aggregated(
    returned: object, strategy: flower.Strategy, like: Mapping[str, Array], once: SeenKeys
) -> tuple[ArrayRecord | None, MetricRecord | None]:
    """Return what `aggregate_train` returned: arrays and metrics, or None where it has none.

    Parameters
    ----------
    like
        A lower segment as clients sent it. The arrays must have its names, shapes and kinds of
        numbers, but that averages of whole numbers may have fractions; they get its dtypes.
    once
        The warnings logged so far: that a class returns narrower numbers is logged once.

    Raises
    ------
    AggregatorError
        If it returned anything but such a pair, or None, or other arrays.
    """
    if returned is None:  # a method that ends without a return
        return None, None
    if not isinstance(returned, (tuple, list)) or len(returned) != 2:
        raise AggregatorError(
            f"aggregate_train of {type(strategy).__name__} returns {described(returned)}; "
            "expected a pair of an ArrayRecord and a MetricRecord"
        )
    for part, kind in zip(returned, (ArrayRecord, MetricRecord), strict=True):
        if part is not None and not isinstance(part, kind):
            raise AggregatorError(
                f"aggregate_train of {type(strategy).__name__} returns {described(part)} "
                f"in its pair where {kind.__name__} is needed"
            )
    arrays, metrics = returned
    if arrays and (wrong := differences(like, arrays)):
        raise AggregatorError(
            f"aggregate_train of {type(strategy).__name__} returns other arrays than the clients' "
            f"lower segments have: {wrong}"
        )
    if not arrays:
        return arrays, metrics
    for name, client_array in like.items():
        _check_kind(strategy, name, arrays[name], np.dtype(client_array.dtype))
    class_name = type(strategy).__name__
    narrow = [name for name in like if _is_narrower(arrays[name], like[name])]
    if narrow and once.add(("narrower", class_name)):
        name = narrow[0]
        log.warning(
            "aggregate_train of %s returns %r as %s, narrower than the clients' %s: what it "
            "rounds in every round is lost; return the clients' dtypes",
            class_name,
            name,
            arrays[name].dtype,
            like[name].dtype,
        )
    return in_dtypes_of(like, arrays), metrics


def check_finite(
    arrays: Mapping[str, Array], strategy: flower.Strategy, *finite_in: Mapping[str, Array]
) -> None:
    """Raise an error for NaN and infinite numbers that only the aggregation can have made.

    Parameters
    ----------
    finite_in
        A lower segment as a client sent it, and as the round began with it. A constant mask of -inf
        is in both; one in either does not concern the aggregation.

    Raises
    ------
    AggregatorError
        If arrays have such numbers where all of `finite_in` have others.
    """
    for name, array in arrays.items():
        accepted = np.isfinite(array.numpy())
        if accepted.all():
            continue
        for other in finite_in:
            if name in other:
                accepted = accepted | ~np.isfinite(other[name].numpy())
        if not accepted.all():
            raise AggregatorError(
                f"aggregate_train of {type(strategy).__name__} returns NaN or infinite numbers in "
                f"{name!r}, though those of the clients are finite: the training diverges, or the "
                "aggregator's step is too large"
            )


def _check_kind(
    strategy: flower.Strategy, name: str, array: Array, client_dtype: np.dtype[Any]
) -> None:
    """Raise AggregatorError unless an array has numbers that could be of the dtype sent."""
    try:
        kind: str = np.dtype(array.dtype).kind
    except TypeError:  # such as bfloat16, which numpy does not know
        kind = ""
    # An average of whole numbers has fractions, and is rounded.
    if kind not in ({"f"} if client_dtype.kind == "f" else set("biuf")):
        raise AggregatorError(
            f"aggregate_train of {type(strategy).__name__} returns {name!r} as {array.dtype}; "
            f"expected {client_dtype}, as the clients sent it"
        )


def _is_narrower(array: Array, client_array: Array) -> bool:
    dtype, client_dtype = np.dtype(array.dtype), np.dtype(client_array.dtype)
    return dtype.kind == client_dtype.kind == "f" and dtype.itemsize < client_dtype.itemsize


def in_dtypes_of(like: Mapping[str, Array], arrays: Mapping[str, Array]) -> ArrayRecord:
    """Return arrays in the dtypes of others, by name; whole numbers are rounded.

    Raises
    ------
    AggregatorError
        If a dtype cannot hold the numbers: they are too large for it, or it has no NaN.
    """
    cast = {}
    for name, array in arrays.items():
        dtype = np.dtype(like[name].dtype)
        if np.dtype(array.dtype) == dtype:
            cast[name] = array
            continue
        numbers = array.numpy()
        finite = np.isfinite(numbers)
        if dtype.kind == "f":
            with np.errstate(over="ignore"):
                converted = numbers.astype(dtype)
            lost = not np.isfinite(converted[finite]).all()
        else:
            lost = not finite.all()
            converted = numbers if lost else to_whole(numbers, dtype)
        if lost:
            raise AggregatorError(
                f"the aggregated {name!r} has numbers that {dtype}, which the clients sent, has "
                "not: the training diverges, or the aggregator's step is too large"
            )
        cast[name] = Array(converted)
    return ArrayRecord(cast)
