"""The error of a head or tail with which a hiding cannot keep its epsilon."""

from __future__ import annotations

from flwr_splitmix.errors import ForeseenError

REMEDY = "take another model, or adapters if it is a language model (lora-rank)"
"""The remedy where a layer's gradients of single examples are unknown."""


class UnfitError(ForeseenError, ValueError):
    """Head or tail has a layer whose gradients of single examples are not known."""
