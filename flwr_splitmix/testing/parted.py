"""Conversion of a recorded round with batches in parts to one with whole batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix.events import Exchange

PART_CALL_KEYS = {"number", "progress", "plan", "part", "parts"}
GRADIENT_CALL_KEYS = {"number", "part", "gradient", "last"}
"""Keys that a call for a part, and a call with a part's gradient, must have."""


def goes_in_parts(down: Sequence[Exchange]) -> bool:
    """Return whether any call asks a client for a part of its batch."""
    return any("parts" in call.payload for call in down)


def join_parts(
    law: str, down: Sequence[Exchange], up: Sequence[Exchange], outputs: Sequence[Tensor]
) -> tuple[list[Exchange], list[Exchange], list[Tensor]]:
    """Return one call, one reply and one output of the lower segment per step.

    The call of a step has the gradient of the step before, and the last call has nothing else.

    Parameters
    ----------
    law
        Name of the law, at the beginning of error messages.
    down, up
        Calls to one client and its replies, in the same order.
    outputs
        Outputs of its lower segment, part by part.

    Raises
    ------
    AssertionError
        If a call has other keys than allowed, or if parts are not requested and delivered once
        each, in order.
    """
    calls: list[Exchange] = []
    replies: list[list[Exchange]] = []
    gradients: list[list[Any]] = []
    for call, reply in zip(down, up, strict=False):
        call_payload, where = call.payload, f"{law}: client {call.client}"
        if "parts" not in call_payload:
            if call_payload.keys() != GRADIENT_CALL_KEYS or call_payload["part"] != len(
                gradients[-1]
            ):
                raise AssertionError(f"{where} is sent {sorted(call_payload)}, or out of turn")
            if reply.payload:
                raise AssertionError(f"{where} replies to a gradient alone")
            gradients[-1].append(call_payload["gradient"])
            continue
        if call_payload.keys() != PART_CALL_KEYS:
            raise AssertionError(f"{where} is sent {', '.join(sorted(call_payload))}")
        if call_payload["part"] == 0:
            order = {name: call_payload[name] for name in ("number", "progress", "plan")}
            before = _joined(gradients[-1]) if gradients else None
            calls.append(replace(call, payload={**order, "gradient": before, "last": False}))
            replies.append([])
            gradients.append([])
        if (
            call_payload["part"] != len(replies[-1])
            or call_payload["plan"] != calls[-1].payload["plan"]
        ):
            raise AssertionError(f"{where} is asked for parts out of turn, or otherwise")
        replies[-1].append(reply)
    if calls:
        last = {"number": len(calls), "progress": None, "plan": None}
        payload = {**last, "gradient": _joined(gradients[-1])}
        calls.append(replace(calls[-1], payload=payload))
    whole = [_joined_reply(parts) for parts in replies]
    if whole:
        whole.append(replace(whole[-1], payload={}))
    parts = max((len(step_replies) for step_replies in replies), default=1)
    batches = [outputs[i : i + parts] for i in range(0, len(outputs), parts)]
    return calls, whole, [torch.cat(list(batch)) for batch in batches]


def _joined_reply(parts: Sequence[Exchange]) -> Exchange:
    names = {name for part in parts for name in part.payload}
    payload = {name: _joined([part.payload.get(name) for part in parts]) for name in names}
    return replace(parts[0], payload=payload)


def _joined(parts: Sequence[Any]) -> Any:
    """Concatenate the parts' tensors, or lists of tensors; None if a part has none."""
    if not parts or any(part is None for part in parts):
        return None
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts))
    return [_joined(tensors) for tensors in zip(*parts, strict=True)]
