"""Checks for NaN and infinite numbers that do not wait for an accelerator."""

from __future__ import annotations

import torch
from torch import Tensor

from flwr_splitmix.finite import all_finite


class FiniteCheck:
    """Checks every tensor that clients upload.

    On a CPU it answers at once. Tensors on an accelerator (from clients of this process) are
    checked without waiting: one that is not finite is replaced by zeros on the device, and `late`
    names its sender at the end of the round.
    """

    def __init__(self) -> None:
        self._bad: dict[int, Tensor] = {}

    def passes(self, tensor: Tensor) -> bool | None:
        """Return whether all numbers are finite; None if finding out would mean waiting."""
        if tensor.device.type != "cpu":
            return None
        return all_finite([tensor])

    def cleaned(self, client: int, tensor: Tensor) -> Tensor:
        """Return the tensor, or zeros if it is not finite, and remember the sender."""
        fine = tensor.isfinite().all()
        self._bad[client] = self._bad[client] | ~fine if client in self._bad else ~fine
        return torch.where(fine, tensor, torch.zeros((), dtype=tensor.dtype, device=tensor.device))

    def late(self) -> list[int]:
        """Return the clients that sent non-finite tensors since the last call, and reset."""
        senders = sorted(client for client, bad in self._bad.items() if bool(bad))
        self._bad.clear()
        return senders
