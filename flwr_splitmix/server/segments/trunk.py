"""The trunk at the server: forward, and later backward with what the clients send back."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.device import Precision, autocast, pick_device, pick_precision
from flwr_splitmix.schedule import (
    OptimizerFactory,
    Schedule,
    ScheduledOptimizer,
    WarmupCosine,
    adamw,
)
from flwr_splitmix.seeding import torch_seed
from flwr_splitmix.server.intake.finite import all_finite, squares_finite

log = logging.getLogger("flwr.splitmix")


@dataclass(frozen=True)
class Messages:
    """What one client sent for the trunk.

    Parameters
    ----------
    hidden
        Tensors (b, T, d), all of one shape.
    mask
        uint8 (b, T): 1 where the trunk attends to; the same for all of them.
    """

    hidden: Sequence[Tensor]
    mask: Tensor


@dataclass
class _Passed:
    """A forward pass of several clients' messages as one batch, in its graph."""

    clients: list[int]
    counts: list[int]
    inputs: Tensor
    mask: Tensor
    outputs: Tensor


class TrunkSegment:
    """A trunk and all that trains it.

    Parameters
    ----------
    module
        (hidden states (b, T, d), mask (b, T)) to hidden states (b, T, d).
    device, precision
        "auto" chooses: CUDA, then MPS, then the CPU; bfloat16 where a CUDA device has it. A trunk
        whose modules are placed on several devices already takes "placed".
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        optimizer: OptimizerFactory | None = None,
        schedule: Schedule | None = None,
        device: str = "auto",
        precision: Precision = "auto",
    ) -> None:
        placed = device == "placed"
        self.device = _device_of(module) if placed else pick_device(device)
        self.dtype = pick_precision(precision, self.device)
        self.module = module if placed else module.to(self.device)
        self.optimizer = ScheduledOptimizer(
            self.module, optimizer or adamw(), schedule or WarmupCosine()
        )
        self._passed: list[_Passed] = []

    @property
    def hidden_dtype(self) -> torch.dtype:
        """The dtype that messages must have: that of the trunk's parameters."""
        found = (p.dtype for p in self.module.parameters() if p.dtype.is_floating_point)
        return next(found, torch.float32)

    def forward(self, messages: Mapping[int, Messages], seed: int) -> dict[int, list[Tensor]]:
        """Pass the clients' messages through, keeping the graph for `backward`.

        Messages of equal length make one batch.

        Parameters
        ----------
        seed
            Of dropout and the like.

        Returns
        -------
        By client, the output of each of its messages, same shapes.
        """
        self.module.train()
        self._passed = []
        with torch_seed(self.device, seed):
            for clients in _by_length(messages):
                inputs, mask = self._batch([messages[c] for c in clients])
                inputs.requires_grad_()
                with autocast(self.device, self.dtype):
                    outputs = self.module(inputs, mask).to(inputs.dtype)
                counts = [sum(len(h) for h in messages[c].hidden) for c in clients]
                self._passed.append(_Passed(clients, counts, inputs, mask, outputs))
        return {
            client: list(part.detach().chunk(len(messages[client].hidden)))
            for passed in self._passed
            for client, part in zip(
                passed.clients, torch.split(passed.outputs, passed.counts), strict=True
            )
        }

    def look(self, messages: Mapping[int, Messages]) -> dict[int, list[Tensor]]:
        """Pass messages through without dropout and without a graph."""
        self.module.eval()
        found: dict[int, list[Tensor]] = {}
        # Not inference mode: its tensors could not go on to a client of this process that trains.
        with torch.no_grad(), autocast(self.device, self.dtype):
            for clients in _by_length(messages):
                inputs, mask = self._batch([messages[c] for c in clients])
                outputs = self.module(inputs, mask).to(inputs.dtype)
                counts = [sum(len(h) for h in messages[c].hidden) for c in clients]
                for client, part in zip(clients, torch.split(outputs, counts), strict=True):
                    found[client] = list(part.chunk(len(messages[client].hidden)))
        return found

    def learn(
        self, gradients: Mapping[int, Sequence[Tensor]], progress: float, num_rounds: int
    ) -> dict[int, list[Tensor]]:
        """Go back through the last forward pass and take one optimizer step.

        The trunk's gradient is the mean over the clients that answered; what goes back to each
        client is the gradient of its own loss (spec section 4).

        Parameters
        ----------
        gradients
            By client, the gradient of its mean loss at each of its outputs.
        progress, num_rounds
            Global progress in rounds, for the schedule.

        Returns
        -------
        By client, the gradient at each of its messages. Where numbers overflow, in these or in
        the trunk's own gradient, the trunk takes no step, and those whose doing it is are left out.
        """
        self.optimizer.zero_grad()
        self.module.train()  # a checkpointed layer runs again, and must do what it did
        found: dict[int, list[Tensor]] = {}
        for passed in self._passed:
            answered = [client for client in passed.clients if client in gradients]
            if not answered:
                continue
            upstream = torch.cat(
                [
                    _joined(gradients[client], passed.outputs)
                    if client in gradients
                    else passed.outputs.new_zeros((count, *passed.outputs.shape[1:]))
                    for client, count in zip(passed.clients, passed.counts, strict=True)
                ]
            )
            torch.autograd.backward(passed.outputs, upstream)
            assert passed.inputs.grad is not None
            for client, part in zip(
                passed.clients, torch.split(passed.inputs.grad, passed.counts), strict=True
            ):
                if client in gradients:
                    found[client] = list(part.chunk(len(gradients[client])))
        passes, self._passed = self._passed, []
        if not found:
            return found
        if not (all_finite([g for parts in found.values() for g in parts]) and self._may_step()):
            # No share can be taken out of a sum that overflows, or that holds an offender's.
            self.optimizer.zero_grad()
            log.warning("the trunk takes no step: gradients overflow in it")
            guilty = [c for c, parts in found.items() if not all_finite(parts)]
            guilty = guilty or self._overflowing_alone(passes, gradients)
            return {client: parts for client, parts in found.items() if client not in guilty}
        if len(found) > 1:
            torch._foreach_div_(self._own_gradients(), len(found))
        self.optimizer.step(progress, num_rounds)
        return found

    def _own_gradients(self) -> list[Tensor]:
        return [p.grad for p in self.module.parameters() if p.grad is not None]

    def _may_step(self) -> bool:
        """Whether the trunk's gradients, and their squares, which Adam keeps, are finite."""
        own = self._own_gradients()
        return not own or bool(squares_finite(own))

    def _overflowing_alone(
        self, passes: Sequence[_Passed], gradients: Mapping[int, Sequence[Tensor]]
    ) -> list[int]:
        """Return the clients whose messages and gradients overflow in the trunk without others."""
        guilty = []
        for passed in passes:
            rows = torch.split(passed.inputs.detach(), passed.counts)
            masks = torch.split(passed.mask, passed.counts)
            for client, inputs, mask in zip(passed.clients, rows, masks, strict=True):
                if client not in gradients:
                    continue
                # Dropout's draws differ from those of the step; whether it overflows hardly does.
                with torch_seed(self.device, 0), autocast(self.device, self.dtype):
                    outputs = self.module(inputs.requires_grad_(), mask).to(inputs.dtype)
                torch.autograd.backward(outputs, _joined(gradients[client], outputs))
                if not self._may_step():
                    guilty.append(client)
                self.optimizer.zero_grad()
        return guilty

    def _batch(self, messages: Sequence[Messages]) -> tuple[Tensor, Tensor]:
        inputs = torch.cat([h.to(self.device) for m in messages for h in m.hidden])
        mask = torch.cat([m.mask.to(self.device) for m in messages for _ in m.hidden])
        return inputs.detach(), mask.long()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return module and optimizer as tensors and plain values."""
        tensors = {f"trunk.{name}": t for name, t in self.module.state_dict().items()}
        moments, meta = self.optimizer.state("trunk-optimizer")
        return tensors | moments, meta

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self.module.load_state_dict(
            {k.removeprefix("trunk."): t for k, t in tensors.items() if k.startswith("trunk.")}
        )
        self.optimizer.restore(tensors, meta, "trunk-optimizer")


def _joined(gradients: Sequence[Tensor], outputs: Tensor) -> Tensor:
    return torch.cat([gradient.to(outputs.device) for gradient in gradients])


def _by_length(messages: Mapping[int, Messages]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for client in sorted(messages):
        groups.setdefault(messages[client].mask.shape[1], []).append(client)
    return list(groups.values())


def _device_of(module: nn.Module) -> torch.device:
    return next((p.device for p in module.parameters()), torch.device("cpu"))
