"""Buffers of a module that its forward pass may change: what they were before."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from flwr_splitmix.words import listed

log = logging.getLogger("flwr.splitmix")


class BufferValues:
    """Copies of the values that a module's buffers have now.

    Parameters
    ----------
    module
        The module. Its state outside of buffers is not copied.
    """

    def __init__(self, module: nn.Module) -> None:
        self._before = [
            (f"{prefix}.{name}" if prefix else name, owner, name, buffer, buffer.detach().clone())
            for prefix, owner in module.named_modules()
            for name, buffer in owner.named_buffers(recurse=False)
        ]

    def changed(self) -> list[str]:
        """Return the names of those buffers whose values are no longer the same."""
        return [
            full_name
            for full_name, owner, name, _, value in self._before
            if not _same(getattr(owner, name, None), value)
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Put changed values back in place, also of buffers that were replaced or resized.

        Buffers that were deleted or made since then stay so: the module may note this elsewhere.
        """
        for _, owner, name, buffer, value in self._before:
            if not hasattr(owner, name):
                continue
            if getattr(owner, name) is not buffer:
                setattr(owner, name, buffer)
            if buffer.layout == torch.strided and _same(buffer, value):
                continue
            if buffer.is_inference():  # torch lets nothing change it here
                setattr(owner, name, value)
            elif buffer.layout != torch.strided or buffer.shape != value.shape:
                buffer.data = value
            else:
                buffer.copy_(value)


@contextmanager
def restored_buffers(module: nn.Module) -> Iterator[None]:
    """Leave the values of a module's buffers as they were, whatever it makes of them meanwhile."""
    before = BufferValues(module)
    try:
        yield
    finally:
        before.restore()


@contextmanager
def watched_in_parts(module: nn.Module, subject: str) -> Iterator[None]:
    """Warn if a module's forward pass of one part of a batch changes buffers.

    It does so once for each part, where a whole batch would change them once.

    Parameters
    ----------
    subject
        What the module is called, such as "the lower segment".
    """
    before = BufferValues(module)
    yield
    if changed := before.changed():
        log.warning(
            "%s changes buffers in each forward pass (%s), of which a batch in parts has several: "
            "it may train otherwise than with whole batches; set micro-batches to 1 to prevent it",
            subject,
            listed(changed, most=3),
        )


def _same(one: Tensor | None, other: Tensor) -> bool:
    """Return whether two buffers are equal, NaN where the other is."""
    if one is None or one.shape != other.shape:
        return False
    if other.is_meta or other.layout != torch.strided:
        return True  # nothing can be seen
    return bool(((one == other) | (one != one) & (other != other)).all())
