"""The base class of the server's segments: module, optimizer, device, precision and state."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from flwr_splitmix.clients import Client
from flwr_splitmix.device import Precision, pick_device, pick_precision
from flwr_splitmix.finite import squares_finite
from flwr_splitmix.optimizers import UNKNOWN_WEIGHTS, OptimizerFactory, ScheduledOptimizer
from flwr_splitmix.schedule import Schedule
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.segments.modules import check_module
from flwr_splitmix.server.last_use import note_use, used_by_another
from flwr_splitmix.storage import under
from flwr_splitmix.words import counted

log = logging.getLogger("flwr.splitmix")

PLACED = "placed"
"""The `device` of a module whose parts are already placed on several devices."""


class TrainedSegment:
    """A module at the server, with its optimizer and schedule.

    Parameters
    ----------
    optimizer, schedule
        By default AdamW (lr 1e-3, weight decay 0.05) with a cosine schedule.
    device, precision
        "auto" chooses: CUDA, then MPS, then the CPU; bfloat16 if a CUDA device supports it. Use
        "placed" for a module whose parts are already placed on several devices.

    Attributes
    ----------
    name
        Prefix in checkpoints: names of its tensors begin with "NAME.", those of its optimizer's
        with "NAME-optimizer".
    """

    name: ClassVar[str]

    def __init__(
        self,
        module: nn.Module,
        *,
        optimizer: OptimizerFactory | None = None,
        schedule: Schedule | None = None,
        device: str = "auto",
        precision: Precision = "auto",
    ) -> None:
        placed = device == PLACED
        if not placed:
            check_module(self.name, module)
        self.device = _device_of(module) if placed else pick_device(device)
        self.dtype = pick_precision(precision, self.device)
        self.module = module if placed else module.to(self.device)
        self.optimizer = ScheduledOptimizer(self.module, optimizer, schedule)
        self._skipped = 0
        self._once = SeenKeys()
        self._use = object()

    @property
    def input_dtype(self) -> torch.dtype:
        """The dtype required of what clients send: that of the module's parameters."""
        dtypes = (p.dtype for p in self.module.parameters() if p.dtype.is_floating_point)
        return next(dtypes, torch.float32)

    @property
    def device_and_dtype(self) -> str:
        """The device and the dtype that it computes in, such as "cuda in bfloat16"."""
        return f"{self.device} in {str(self.dtype).removeprefix('torch.')}"

    def warn_of_unknown_weights(self) -> None:
        """Log a warning, once, if there are weights to train that the optimizer does not know.

        Weights may be unfrozen in any round.
        """
        if not self.optimizer.knows(self.module) and self._once.add("unknown weights"):
            log.warning("the server's %s %s", self.name, UNKNOWN_WEIGHTS)

    def warn_if_trained(self, strategy: str) -> None:
        """Log, once, if it continues from training before, by this strategy or another.

        Parameters
        ----------
        strategy
            Name of the strategy.
        """
        elsewhere = used_by_another(self.module, self._use)
        if (self.optimizer.has_stepped or elsewhere) and self._once.add("trained"):
            log.warning(
                "the server's %s has learned in %s, and its training continues from that; if you "
                "mean to continue it, nothing is wrong; to compare from equal starts, make new "
                "clients, a new upper segment or trunk, a new strategy and a new aggregator for "
                "each run",
                self.name,
                "another strategy" if elsewhere else f"an earlier run of this {strategy}",
            )

    def take_step(self, progress: float, num_rounds: int) -> None:
        """Take one optimizer step; see `ScheduledOptimizer.step`."""
        self.optimizer.step(progress, num_rounds)
        if self.optimizer.has_stepped:  # one of a frozen module never does
            note_use(self.module, self._use)

    def check_shares_no_weights(self, clients: Sequence[Client]) -> None:
        """Raise ValueError if a client in this process trains weights of this module.

        In processes of their own they would be copies: two optimizers would not step one weight.
        """
        parameter_ids = {id(parameter) for parameter in self.module.parameters()}
        for index, client in enumerate(clients):
            if any(id(parameter) in parameter_ids for parameter in client.trainable_parameters()):
                raise ValueError(
                    f"client {index} and the server share weights, of which each would train a "
                    "copy; give the client its own: copy.deepcopy(lower)"
                )

    def own_gradients(self) -> list[Tensor]:
        """Return the gradients of the parameters that have one."""
        return [p.grad for p in self.module.parameters() if p.grad is not None]

    def average_gradients(self, number: float) -> None:
        """Divide the gradients, if there are any, that are sums over `number` clients or groups."""
        for gradient in self.own_gradients():
            gradient.div_(number)

    def gradients_finite(self) -> Tensor | None:
        """Return whether the gradients, and their squares, which Adam keeps, are finite: bool ().

        None if there are no gradients. Does not wait for the device.
        """
        gradients = self.own_gradients()
        return squares_finite(gradients) if gradients else None

    def leave_step(self) -> None:
        """Take no step, as the gradients are not finite, and count it as skipped."""
        self._skipped += 1
        self.optimizer.zero_grad()

    def warn_of_skipped_steps(self, server_round: int) -> None:
        """Log, at the end of a round, how many steps it has not taken."""
        skipped, self._skipped = self._skipped, 0
        if skipped:
            log.warning(
                "round %d: the server's %s left out %s, as gradients in it were NaN or too large: "
                "the loss may be NaN, or the learning rate too high",
                server_round,
                self.name,
                counted(skipped, "step"),
            )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state of module and optimizer as tensors and plain values."""
        tensors = {f"{self.name}.{key}": t for key, t in self.module.state_dict().items()}
        moments, meta = self.optimizer.state(f"{self.name}-optimizer")
        return tensors | moments, meta

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self.module.load_state_dict(under(self.name, tensors))
        self.optimizer.restore(tensors, meta, f"{self.name}-optimizer")


def _device_of(module: nn.Module) -> torch.device:
    return next((p.device for p in module.parameters()), torch.device("cpu"))
