"""Trials of whether a segment keeps the examples of a batch apart, and when to make them again."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from flwr_splitmix.segments.state_digest import state_digest


class BatchTrial(Protocol):
    """One trial; its parameters, and what it returns, are as of `mixes_examples`."""

    def __call__(self, *, renewed: bool, warns: bool) -> str | None:
        """Return the layer that mixes examples, "" if none does, None if inconclusive."""


class ApartTrial:
    """The last trial of a module, and what it found.

    The answer depends on weights and inputs, so it holds for no other client and no other weights;
    it is kept as long as these are the same to the last bit. After a complete trial that finds
    nothing, the next one has only the current weights; after any other, these may show less. That
    a trial is incomplete is logged once.
    """

    def __init__(self) -> None:
        self._state: bytes | None = None
        self._answer: str | None = None
        self._apart = self._warned = False

    def find(self, trial: BatchTrial, module: nn.Module, *inputs: Tensor) -> str | None:
        """Return what a trial finds, or what the last one found of the same module and inputs.

        Parameters
        ----------
        trial
            Makes the trial.
        module, inputs
            All that it depends on.
        """
        state = state_digest(module, *inputs)
        if state is None or state != self._state:
            self._answer = trial(renewed=not self._apart, warns=not self._warned)
            self._state = state
            self._apart = self._answer == ""
            self._warned |= self._answer is None
        return self._answer
