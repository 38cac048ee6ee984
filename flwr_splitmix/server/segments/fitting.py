"""The error of a module at the server that does not fit what its clients send."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from flwr_splitmix.segments.shape_errors import of_shapes

_OF_VIEWS = re.compile(r"view size is not compatible")
"""Torch's message that numbers do not lie in memory as `view` needs them."""


@contextmanager
def fitting(segment: str, what: str, inputs: Tensor, remedy: str) -> Iterator[None]:
    """Name the inputs if a module's forward pass fails on their shape.

    Parameters
    ----------
    segment, what
        The module, and the noun for its inputs.
    remedy
        What the user can do, as the end of a sentence.

    Raises
    ------
    ValueError
        In place of torch's error, whose message it ends with.
    """
    try:
        yield
    except (RuntimeError, AssertionError) as error:
        message = " ".join(str(error).split())
        if not of_shapes(error):
            raise
        if _OF_VIEWS.search(message):
            raise ValueError(
                f"the {segment} calls .view on a tensor that does not lie in memory in its order, "
                "as none does that is made of one by .mT: call .reshape instead, or .contiguous() "
                f"on what .mT makes ({message})"
            ) from error
        raise ValueError(
            f"the {segment} does not take {what} of shape {tuple(inputs.shape)}, which the clients "
            f"send: {remedy} ({message})"
        ) from error
