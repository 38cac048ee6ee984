"""Errors of a module's forward pass that are about the shape of its inputs."""

from __future__ import annotations

import re

_OF_SHAPES = re.compile(r"shape|size|dimension|channels")
"""The common parts of torch's messages about shapes."""

_OF_MEMORY = re.compile(r"out of memory|allocate memory|not enough memory", re.IGNORECASE)
"""The common parts of its messages about memory."""

_OF_DEVICES = re.compile(r"cuda|cudnn|cublas", re.IGNORECASE)
"""The common parts of its messages about accelerators."""


def out_of_memory(error: Exception) -> bool:
    """Return whether an error of torch's reports that memory could not be allocated."""
    return isinstance(error, MemoryError) or bool(_OF_MEMORY.search(str(error)))


def of_shapes(error: Exception) -> bool:
    """Return whether an error reports that a shape does not fit."""
    message = str(error)
    other = _OF_DEVICES.search(message) or out_of_memory(error)
    return bool(_OF_SHAPES.search(message)) and not other


def torchs_words(error: Exception) -> str:
    """Return an error's text in one line if torch raised it, else "": a text may hold data.

    So may that of an assertion, as of `torch._assert`.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    is_from_torch = name.partition(".")[0] == "torch" and not isinstance(error, AssertionError)
    return " ".join(str(error).split()) if is_from_torch else ""
