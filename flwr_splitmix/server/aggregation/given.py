"""The numbers given to an aggregator, as distinct from those that it changes in a run."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Real

import torch
from flwr.serverapp import strategy as flower
from torch import Tensor

from flwr_splitmix.server.aggregation.state import FLOAT, RefusedStateError

log = logging.getLogger("flwr.splitmix")

_BEGAN = ".float.began"
"""End of a tensor's name: the number given at the last start or resumption; empty if none."""


class GivenNumbers:
    """Knows what an aggregator was given, so that a resumed run is not reverted to other options.

    A float of a Flower strategy may be an option, such as FedAdam's `eta`, or change from round to
    round, such as an adaptive clipping norm. Checkpoints have the present value of each, and the
    value given when the run last began or was resumed. If a resumed run is given the latter again,
    it continues with the value in the checkpoint, otherwise with the value given now.

    Parameters
    ----------
    strategy
        The aggregator; its attributes count, and those of strategies that it wraps.
    """

    def __init__(self, strategy: flower.Strategy | None) -> None:
        self._strategy = strategy
        self._given = self._last_numbers = self._numbers

    @property
    def _numbers(self) -> dict[str, float]:
        return {} if self._strategy is None else dict(_numbers_of(self._strategy))

    def begin(self) -> None:
        """Begin a run: values that the aggregator did not leave have been given to it since."""
        numbers, given = self._numbers, dict(self._given)
        for path in {*numbers, *self._last_numbers}:
            if not _same(numbers.get(path), self._last_numbers.get(path)):
                given.pop(path, None)
                given |= {path: numbers[path]} if path in numbers else {}
        self._given, self._last_numbers = given, numbers

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Take changes within a `with` block for the aggregator's own."""
        try:
            yield
        finally:
            self._last_numbers = self._numbers

    def with_beginnings(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what `state_of` returned, and for each float in it the value that was given."""
        began = {}
        for path in _floats_in(tensors):
            number = self._given.get(path)
            values = [] if number is None else [number]
            began[path + _BEGAN] = torch.tensor(values, dtype=torch.float64)
        return {**tensors, **began}

    def to_restore(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what `restore_state` should restore of what `with_beginnings` returned.

        An argument, or an attribute of the class, that is now given a value other than the last
        given one and the present one is left out; or has the given value, if the aggregator has
        changed it since. Other floats, which may be drawn or read from a clock, are restored. A
        warning names each.

        Raises
        ------
        RefusedStateError
            If the value that was given for a float is missing.
        """
        chosen = {name: t for name, t in tensors.items() if not name.endswith(_BEGAN)}
        for path in _floats_in(tensors):
            checkpointed, given = float(tensors[path + FLOAT]), self._given.get(path)
            if path + _BEGAN not in tensors:
                raise RefusedStateError(
                    f"the checkpoint lacks the value that {self._name(path)} was given"
                )
            began = next(iter(tensors[path + _BEGAN].tolist()), None)
            if _same(given, began) or _same(given, checkpointed):
                continue
            if not _is_option(self._strategy, path):
                log.warning(
                    "the aggregator continues with %s = %s, as its checkpoint has it, not with %s "
                    "as given now: only arguments and attributes of the class can be changed in a "
                    "run; to change this, start a new run",
                    self._name(path),
                    _in_words(checkpointed),
                    _in_words(given),
                )
                continue
            del chosen[path + FLOAT]
            if given is not None and not _same(given, self._last_numbers.get(path)):
                chosen[path + FLOAT] = torch.tensor(given, dtype=torch.float64)
            log.warning(
                "the aggregator continues with %s = %s, as given now; the run began with %s%s",
                self._name(path),
                _in_words(given),
                _in_words(began),
                "" if _same(checkpointed, began) else f" and had reached {_in_words(checkpointed)}",
            )
        return chosen

    def _name(self, path: str) -> str:
        return f"{type(_owner(self._strategy, path)).__name__}.{path.rpartition('.')[2]}"


def _numbers_of(strategy: flower.Strategy, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers that a strategy and those that it wraps have as attributes, by path."""
    attributes: dict[str, object] = {}
    for owner in (*reversed(type(strategy).__mro__), strategy):
        attributes |= vars(owner)
    for name, value in attributes.items():
        if isinstance(value, flower.Strategy):
            yield from _numbers_of(value, f"{prefix}{name}.")
        elif isinstance(value, Real) and not isinstance(value, bool):
            yield f"{prefix}{name}", _as_float(value)


def _as_float(value: Real) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _floats_in(tensors: Mapping[str, Tensor]) -> list[str]:
    return [name.removesuffix(FLOAT) for name in tensors if name.endswith(FLOAT)]


def _same(one: float | None, other: float | None) -> bool:
    """Return whether two numbers are equal, or both NaN, or both missing."""
    return one == other or (one is not None and other is not None and one != one and other != other)


def _in_words(number: float | None) -> str:
    return "no number" if number is None else str(number)


def _owner(strategy: flower.Strategy | None, path: str) -> object:
    """Return the strategy that has an attribute, or the last one on the way to it."""
    owner: object = strategy
    for name in path.split(".")[:-1]:
        owner = getattr(owner, name, owner)
    return owner


def _is_option(strategy: flower.Strategy | None, path: str) -> bool:
    """Return whether an attribute is one of its owner's class, or named like its arguments."""
    kinds = type(_owner(strategy, path)).__mro__
    name = path.rpartition(".")[2]
    makers = [vars(kind).get("__init__") for kind in kinds]
    return any(name in vars(kind) for kind in kinds) or any(
        name in inspect.signature(maker).parameters for maker in makers if inspect.isfunction(maker)
    )
