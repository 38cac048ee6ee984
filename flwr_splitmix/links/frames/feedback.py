"""Error feedback: the rounding error of gradients, added to the next gradients."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from flwr_splitmix.links.frames.wire import STOCHASTIC, WireDtype, level_bits, narrow, widen

GRADIENT = "gradient"
"""Name of the exchange argument that holds gradients: a list, in which some may be None."""


class Feedback:
    """Adds the rounding error of one client's gradients to its next gradients.

    With the gradient g of a call and the error e of the call before, g + e is sent, and the new
    error is e' = (g + e) - Q(g + e), where Q rounds to the wire format and back (Seide et al.,
    1-bit stochastic gradient descent, 2014, eq. 5). Errors are added by position (example, patch
    and number in the batch), although the next step has other examples there; an error of another
    shape is dropped.

    Each line has its own instance, which starts without errors, so none outlives the round.

    Parameters
    ----------
    wire
        "int8" or "int4".

    Raises
    ------
    ValueError
        For other formats: wider ones leave too little error, stochastic ones have mean error 0.
    """

    def __init__(self, wire: WireDtype) -> None:
        check_feedback(wire)
        self._wire = wire
        self._lock = threading.Lock()
        self._number = 0
        self._corrected: Mapping[str, Any] = {}
        self._residuals: list[Tensor | None] = []

    def correct(self, number: int, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a call's payload with corrected gradients; a repeated call gets the same payload.

        Parameters
        ----------
        number
            Number of the call.
        payload
            Its arguments; without gradients, the stored error is unchanged.
        """
        with self._lock:
            if number != self._number:
                self._number, self._corrected = number, self._next(payload)
            return self._corrected

    def _next(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        gradients: Sequence[Tensor | None] | None = payload.get(GRADIENT)
        if gradients is None:
            return payload
        residuals = [*self._residuals, *[None] * len(gradients)]
        corrected = [_sum(g, rest) for g, rest in zip(gradients, residuals, strict=False)]
        self._residuals = [None if g is None else self._rest(g) for g in corrected]
        return {**payload, GRADIENT: corrected}

    def _rest(self, gradient: Tensor) -> Tensor:
        rest = gradient - widen(*narrow(gradient, self._wire), gradient.dtype)
        return rest.nan_to_num_(0.0, 0.0, 0.0)  # an overflow must not spoil the next call


def check_feedback(wire: str) -> None:
    """Raise ValueError if a wire format leaves no error worth feeding back."""
    if not level_bits(wire) or wire.endswith(STOCHASTIC):
        raise ValueError(
            f"wire-feedback is for gradients that travel as 'int8', not as {wire!r}: set "
            "wire-dtype-down to 'int8', or wire-feedback to false"
        )


def _sum(gradient: Tensor | None, rest: Tensor | None) -> Tensor | None:
    if gradient is None or rest is None or rest.shape != gradient.shape:
        return gradient
    return gradient.detach() + rest
