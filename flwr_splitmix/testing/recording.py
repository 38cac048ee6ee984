"""Recording of a round's traffic over the link, and of the lower segments' outputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.events import Exchange, RoundDone, StepDone
from flwr_splitmix.mixers import Plan
from flwr_splitmix.observers import Observer


class Recording(Observer):
    """Observer that keeps the exchanges of training steps by client, with copies of tensors."""

    def __init__(self) -> None:
        self.down: defaultdict[int, list[Exchange]] = defaultdict(list)
        self.up: defaultdict[int, list[Exchange]] = defaultdict(list)
        self.steps: list[StepDone] = []
        self.failures: dict[int, str] = {}

    def on_exchange(self, event: Exchange) -> None:
        """Keep a copy of a training exchange."""
        if event.phase == "train":
            exchanges = self.down if event.direction == "down" else self.up
            exchanges[event.client].append(copied(event))

    def on_step(self, event: StepDone) -> None:
        """Keep the step."""
        self.steps.append(event)

    def on_round(self, event: RoundDone) -> None:
        """Keep the reasons why clients dropped out."""
        self.failures |= event.failures


def plan_of(step: StepDone) -> Plan:
    """Return the plan of a step of the L shape."""
    assert step.plan is not None, "a step of the U shape has no plan"
    return step.plan


def watch_segment(segment: nn.Module) -> list[Tensor]:
    """Return a list to which a lower segment's output is appended in each training step."""
    outputs: list[Tensor] = []

    def keep(module: nn.Module, inputs: Any, smashed: Tensor) -> None:
        if module.training and torch.is_grad_enabled():  # else it is only looked at
            outputs.append(smashed.detach().clone())

    segment.register_forward_hook(keep)
    return outputs


def recorded_bytes(payload: Any) -> int:
    """Return the bytes of a payload's tensors, counted independently of the library."""
    if isinstance(payload, Tensor):
        return payload.numel() * payload.element_size()
    if isinstance(payload, Mapping):
        return sum(recorded_bytes(value) for value in payload.values())
    return sum(map(recorded_bytes, payload)) if isinstance(payload, (list, tuple)) else 0


def copied(event: Exchange) -> Exchange:
    """Return an exchange with copies of its tensors."""
    return replace(event, payload=_copied(event.payload))


def _copied(payload: Any) -> Any:
    if isinstance(payload, Tensor):
        return payload.detach().clone()
    if isinstance(payload, Mapping):
        return {key: _copied(value) for key, value in payload.items()}
    if isinstance(payload, (list, tuple)):
        return type(payload)(_copied(value) for value in payload)
    return payload
