"""The size limit of a reply, from the client's description of itself and the call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr_splitmix.description import Description, SplitDescription

SLACK_BYTES = 64 << 20
"""Bytes allowed for everything but smashed data: labels, masks, scores."""

MAX_NUMBER_BYTES = 8
"""Bytes of the widest number, so that the limit also holds for widened tensors."""


def reply_limit(description: Description | None, payload: Mapping[str, Any], most: int) -> int:
    """Return how many bytes of tensors a client's reply to a call may have, at most `most`.

    They are `SLACK_BYTES`, and for each pass that the call plans twice the smashed data of a batch
    (or of the test examples that the call names), in the widest dtype.

    Parameters
    ----------
    description
        The client's description of itself. If it has not the L shape (texts have no fixed length),
        or is not known, the limit is `most`.
    payload
        Arguments of the call.
    most
        Largest body of any frame in bytes.
    """
    if not isinstance(description, SplitDescription):
        return most
    batch, segment = description.batch_size, description.segment
    start, stop = payload.get("start"), payload.get("stop")
    if isinstance(start, int) and isinstance(stop, int):
        batch = max(batch, stop - start)
    plan = payload.get("plan")
    passes = max(1, len(plan)) if isinstance(plan, (list, tuple)) else 1
    return min(
        most, SLACK_BYTES + 2 * MAX_NUMBER_BYTES * passes * batch * segment.patches * segment.width
    )
