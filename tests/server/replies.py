"""A client's reply at the end of a round, for tests without a link."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from flwr_splitmix.server.messages import messages_to


def reply_of(
    arrays: dict[str, Any], metrics: dict[str, Any], names: Sequence[str] = ("arrays", "metrics")
) -> Message:
    record = {n: a if isinstance(a, Array) else Array(a) for n, a in arrays.items()}
    content = RecordDict({names[0]: ArrayRecord(record), names[1]: MetricRecord(metrics)})
    (request,) = messages_to([1], RecordDict(), "train", in_run=False)
    return Message(content, reply_to=request)
