"""Optimizers, the same on both sides of the cut, with a learning rate by schedule."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, ValuesView
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flwr_splitmix.optimizer_state import pack_optimizer, unpack_optimizer
from flwr_splitmix.schedule import Schedule, ScheduleError, WarmupCosine
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.values import real_number, takes
from flwr_splitmix.words import with_article

log = logging.getLogger("flwr.splitmix")


OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
"""Makes the optimizer of one segment from its trainable parameters."""


UNKNOWN_WEIGHTS = (
    "has weights to train that its optimizer does not know, and leaves as they are: they were "
    "frozen, or another's, when the optimizer was made, or its function left them out; make the "
    "optimizer of all weights that are to learn"
)
"""The error message about a module for which `ScheduledOptimizer.knows` is false."""


def adamw(
    lr: float = 1e-3, weight_decay: float = 0.05, betas: tuple[float, float] = (0.9, 0.999)
) -> OptimizerFactory:
    """Return a factory of AdamW optimizers, as used by the papers (CutMixSL, section 4).

    It can be pickled, and so can clients and strategies that have it.
    The papers state neither weight decay nor betas: the defaults are DeiT's (Touvron et al., 2020).

    Raises
    ------
    ValueError
        If `lr` or `weight_decay` is no finite number of at least 0.
    """
    for name, value in (("lr", lr), ("weight_decay", weight_decay)):
        if not 0 <= real_number(name, value) < math.inf:
            raise ValueError(f"{name} is {value}; it must be at least 0, and finite")
    return partial(torch.optim.AdamW, lr=lr, weight_decay=weight_decay, betas=betas)


class ScheduledOptimizer:
    """An optimizer whose learning rates follow a schedule of the global round.

    Parameters
    ----------
    factory, schedule
        None for `adamw()` and `WarmupCosine()`.

    Attributes
    ----------
    has_stepped
        Whether a step has been taken.

    Raises
    ------
    TypeError
        If the factory or the schedule is not a function, the schedule takes other arguments than
        the progress and the number of rounds, or the factory makes no optimizer that can step after
        one backward pass.
    ValueError
        If the optimizer has none of the module's parameters, or no learning rate.
    """

    def __init__(
        self, module: nn.Module, factory: OptimizerFactory | None, schedule: Schedule | None
    ) -> None:
        factory = adamw() if factory is None else factory
        schedule = WarmupCosine() if schedule is None else schedule
        if isinstance(factory, torch.optim.Optimizer):
            kind = type(factory).__name__
            raise TypeError(
                f"optimizer is a torch.optim.{kind}; expected a function that makes one from the "
                f"segment's weights: lambda parameters: torch.optim.{kind}(parameters, lr=...)"
            )
        if not callable(factory):
            raise TypeError(
                f"optimizer is {factory!r}; expected a function that makes one, such as "
                "adamw(lr=1e-3)"
            )
        if other := _no_schedule(schedule):
            raise TypeError(
                f"schedule is {other}; expected a function (progress in rounds, number of "
                "rounds) -> factor on the learning rate, such as WarmupCosine() or constant"
            )
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        parameters = [*trained.values()]
        self.optimizer = _optimizer(factory(parameters), parameters) if parameters else None
        if half := [name for name, p in trained.items() if p.dtype == torch.float16]:
            _warn_of_half_weights(half[0])
        self.schedule = schedule
        self._module = module
        self.base_lrs = [g["lr"] for g in self.optimizer.param_groups] if self.optimizer else []
        self._once = SeenKeys()
        self.has_stepped = False
        if self.optimizer is not None and _has_scheduler(self.optimizer):
            self.base_lrs = [g["initial_lr"] for g in self.optimizer.param_groups]
            self._once.add("overridden")
            log.warning(
                "%s is made with a scheduler of torch, which has no effect: the learning rate "
                "follows the schedule alone; give the scheduler's rule as schedule=..., a function "
                "(progress in rounds, number of rounds) -> factor on the learning rate",
                with_article(type(self.optimizer).__name__),
            )
        self._own_entries = set(self.optimizer.state_dict() if self.optimizer else ())
        self._own_entries -= {"state", "param_groups"}
        self._set_lrs: list[float] = []

    def knows(self, module: nn.Module) -> bool:
        """Return whether all trainable parameters of a module are this optimizer's."""
        groups = self.optimizer.param_groups if self.optimizer is not None else []
        parameter_ids = {id(parameter) for group in groups for parameter in group["params"]}
        return all(id(p) in parameter_ids for p in module.parameters() if p.requires_grad)

    def zero_grad(self) -> None:
        """Discard the last step's gradients, including those of weights without an optimizer."""
        self._module.zero_grad(set_to_none=True)

    def step(self, progress: float, num_rounds: int) -> None:
        """Take one step with the learning rate scheduled for `progress` rounds.

        Raises
        ------
        ScheduleError
            If the schedule returns no finite number of at least 0.
        """
        if self.optimizer is None:
            return
        factor = self.schedule(progress, num_rounds)
        number = isinstance(factor, (int, float, np.number, Tensor))
        if not number or not 0 <= factor < math.inf:
            raise ScheduleError(factor, progress, num_rounds)
        groups = self.optimizer.param_groups
        changed = self._set_lrs and [float(g["lr"]) for g in groups] != self._set_lrs
        if changed and self._once.add("overridden"):
            log.warning(
                "the learning rate of %s was changed from outside, as by a scheduler of torch; the "
                "schedule sets it anew in every step: give it as schedule=...",
                type(self.optimizer).__name__,
            )
        for group, lr in zip(groups, self.base_lrs, strict=True):
            group["lr"] = lr * factor
        self._set_lrs = [float(group["lr"]) for group in groups]
        self.optimizer.step()
        self.has_stepped = True

    def state(self, name: str = "optimizer") -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the optimizer's state as tensors and plain values under `name`, empty if none."""
        if self.optimizer is None:
            return {}, {}
        if self._own_entries:
            log.warning(
                "checkpoints do not keep %s of %s.state_dict(): a resumed run starts with new ones",
                ", ".join(map(repr, sorted(self._own_entries))),
                type(self.optimizer).__name__,
            )
            self._own_entries = set()  # told once
        tensors, meta = pack_optimizer(self.optimizer, name)
        return tensors, {name: meta}

    def restore(
        self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], name: str = "optimizer"
    ) -> None:
        """Restore `state`, which may be part of a larger state."""
        if self.optimizer is not None:
            unpack_optimizer(self.optimizer, tensors, meta[name], name)
            self._set_lrs = []


def _no_schedule(schedule: object) -> str:
    """Return what is given in place of a schedule, in words; "" for a schedule."""
    if isinstance(schedule, type):
        return schedule.__name__
    if not callable(schedule):
        return type(schedule).__name__
    return "" if takes(schedule, 0.0, 1) else "a function of other arguments"


def _optimizer(optimizer: object, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError(
            "optimizer makes LBFGS, which runs the model several times in a step; split learning "
            "has one backward pass for each: take SGD, AdamW or the like"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer makes {with_article(type(optimizer).__name__)}; expected a "
            "torch.optim.Optimizer"
        )
    if not _steps_alone(optimizer):
        raise TypeError(
            f"optimizer makes {with_article(type(optimizer).__name__)}, whose step() needs "
            "arguments, such as a function that runs the model again; split learning has one "
            "backward pass for each step: take SGD, AdamW or the like"
        )
    parameter_ids = {id(parameter) for parameter in parameters}
    if not any(id(p) in parameter_ids for group in optimizer.param_groups for p in group["params"]):
        raise ValueError(
            f"optimizer makes {with_article(type(optimizer).__name__)} of other weights than those "
            "it is given; make it of its argument: lambda parameters: torch.optim.SGD(parameters, "
            "lr=...)"
        )
    if any(group.get("lr") is None for group in optimizer.param_groups):
        raise ValueError(
            f"optimizer makes {with_article(type(optimizer).__name__)} without a learning rate, "
            "which the schedule would scale; give it lr=..."
        )
    if (inner := _apart(optimizer)) is not None:
        raise TypeError(
            f"optimizer makes {with_article(type(optimizer).__name__)}, which steps with "
            f"{with_article(type(inner).__name__)} of its own: that one's learning rate would not "
            "follow the schedule, and checkpoints would lack its state; make one optimizer with a "
            "parameter group for each part: torch.optim.AdamW([{'params': [...], 'lr': ...}, ...])"
        )
    return optimizer


def _has_scheduler(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a scheduler of torch was made for an optimizer: it replaces its `step`."""
    return "step" in vars(optimizer) and all("initial_lr" in g for g in optimizer.param_groups)


def _steps_alone(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer's `step` can be called without arguments."""
    if _has_scheduler(optimizer):  # in its place is a function with the signature of the class's
        return takes(type(optimizer).step, optimizer)
    return takes(optimizer.step)


def _apart(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer | None:
    """Return an optimizer that another one holds, but does not answer for, if any.

    It answers for one whose groups are its own, and whose state is its own or in its state_dict.
    """
    groups = {id(group) for group in optimizer.param_groups}
    own_state = type(optimizer).state_dict is not torch.optim.Optimizer.state_dict
    for value in vars(optimizer).values():
        contents = value.values() if isinstance(value, dict) else value
        for inner in contents if isinstance(contents, (list, tuple, ValuesView)) else (contents,):
            if isinstance(inner, torch.optim.Optimizer) and not (
                groups.issuperset(map(id, inner.param_groups))
                and (own_state or inner.state is optimizer.state)
            ):
                return inner
    return None


@cache  # all clients of a process have the same weights
def _warn_of_half_weights(name: str) -> None:
    """Log, once per process and name, that weights of float16 are trained, the first by name."""
    log.warning(
        "weights of float16 are trained (%s, ...): small gradients and Adam's eps are 0 in it, so "
        "that steps may be NaN; keep the weights in float32 and compute under torch.autocast, with "
        ".float() on the output, or take bfloat16",
        name,
    )
