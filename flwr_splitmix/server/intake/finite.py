"""A guard against NaN and infinite numbers that does not wait for an accelerator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class FiniteCheck:
    """Looks at every tensor that clients upload.

    On a CPU it answers at once. Tensors on an accelerator (clients of this very process) are not
    waited for: one with a number that is not finite is replaced by zeros there, and `late` says
    at the round's end whose it was.

    Parameters
    ----------
    waits
        Whether to answer at once also on an accelerator.
    """

    def __init__(self, waits: bool = False) -> None:
        self.waits = waits
        self._bad: dict[int, Tensor] = {}

    def passes(self, tensor: Tensor) -> bool | None:
        """Return whether all numbers are finite; None if that would mean to wait."""
        if tensor.device.type != "cpu" and not self.waits:
            return None
        return all_finite([tensor])

    def cleaned(self, client: int, tensor: Tensor) -> Tensor:
        """Return the tensor, or zeros if it is not finite, and remember whose it was."""
        fine = tensor.isfinite().all()
        self._bad[client] = self._bad[client] | ~fine if client in self._bad else ~fine
        return torch.where(fine, tensor, torch.zeros((), dtype=tensor.dtype, device=tensor.device))

    def late(self) -> list[int]:
        """Return the clients that sent what was not finite since the last time, and forget."""
        senders = sorted(client for client, bad in self._bad.items() if bool(bad))
        self._bad.clear()
        return senders


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Return whether no number is NaN or infinite; waits once, wherever the tensors are."""
    if not tensors:
        return True
    # A sum is finite only if every number is, up to overflow, which the second look settles.
    first = tensors[0].device
    sums = torch.stack([tensor.sum().to(first, torch.float32) for tensor in tensors])
    return bool(sums.isfinite().all()) or all(bool(t.isfinite().all()) for t in tensors)


def squares_finite(tensors: Sequence[Tensor]) -> Tensor:
    """Return whether all numbers and their squares, which Adam keeps, are finite: bool ().

    Nothing is waited for; there must be at least one tensor.
    """
    first = tensors[0].device
    norms = [norm.to(first, torch.float32) for norm in torch._foreach_norm(list(tensors))]
    return torch.stack(norms).isfinite().all()
