"""What rounding has left of gradients, added to the next ones: error feedback."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from flwr_splitmix.links.frames.wire import STOCHASTIC, WireDtype, level_bits, narrow, widen

GRADIENT = "gradient"
"""The argument of exchanges that holds gradients: a list, in which some may be None."""


class Feedback:
    """Corrects one client's gradients by what the format has left of the ones before.

    With the gradient g of a call and the rest e of the one before, g + e travels, and the new rest
    is e' = (g + e) - Q(g + e), where Q is the format there and back (Seide et al., 1-bit stochastic
    gradient descent, 2014, eq. 5). A rest has the gradient's place: example, patch and number of
    the batch, in which the next step has other examples; one of another shape is dropped.

    A rest is as good as none where a line begins, so it is never older than the round.

    Parameters
    ----------
    wire
        "int8" or "int4".

    Raises
    ------
    ValueError
        If it is another format: only those leave enough, and stochastic rounding has mean 0.
    """

    def __init__(self, wire: WireDtype) -> None:
        check_feedback(wire)
        self._wire = wire
        self._lock = threading.Lock()
        self._number = 0
        self._corrected: Mapping[str, Any] = {}
        self._left: list[Tensor | None] = []

    def correct(self, number: int, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a call's payload as it is to travel; asked for again, it is the same.

        Parameters
        ----------
        number
            The call's; a payload without gradients leaves the rest as it is.
        """
        with self._lock:
            if number != self._number:
                self._number, self._corrected = number, self._next(payload)
            return self._corrected

    def _next(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        gradients: Sequence[Tensor | None] | None = payload.get(GRADIENT)
        if gradients is None:
            return payload
        left = [*self._left, *[None] * len(gradients)]
        corrected = [_sum(g, rest) for g, rest in zip(gradients, left, strict=False)]
        self._left = [None if g is None else self._rest(g) for g in corrected]
        return {**payload, GRADIENT: corrected}

    def _rest(self, gradient: Tensor) -> Tensor:
        rest = gradient - widen(*narrow(gradient, self._wire), gradient.dtype)
        return rest.nan_to_num_(0.0, 0.0, 0.0)  # a patch that overflows must not spoil the next


def check_feedback(wire: str) -> None:
    """Raise ValueError if what travels as a format leaves nothing that is worth feeding back."""
    if not level_bits(wire) or wire.endswith(STOCHASTIC):
        raise ValueError(
            f"wire-feedback is for gradients that travel as 'int8' or 'int4', not as {wire!r}: set "
            "wire-dtype-down to one of these, or wire-feedback to false"
        )


def _sum(gradient: Tensor | None, rest: Tensor | None) -> Tensor | None:
    if gradient is None or rest is None or rest.shape != gradient.shape:
        return gradient
    return gradient.detach() + rest
