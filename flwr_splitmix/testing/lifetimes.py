"""Law 7, graphs are freed: memory does not grow from step to step."""

from __future__ import annotations

import gc
from collections import Counter

import torch
from torch.nn.parameter import is_lazy

from flwr_splitmix.events import Exchange
from flwr_splitmix.observers import Observer
from flwr_splitmix.testing.toy import AnyToy, MakeAny, Toy, step_of


def live_tensors() -> Counter[tuple[int, ...]]:
    """Count the tensors in memory by shape, except scalars without a graph.

    An observer may keep a step's loss as a scalar on the device, to avoid waiting for it.
    Parameters of lazy modules are not counted either, as they have no shape yet.
    """
    gc.collect()
    return Counter(
        tuple(each.shape)
        for each in gc.get_objects()
        # By type: isinstance reads __class__ of every object, and some then warn.
        if issubclass(type(each), torch.Tensor)
        and not is_lazy(each)
        and (each.ndim or each.grad_fn is not None)
    )


class TensorCounts(Observer):
    """Observer that counts live tensors after given numbers of steps."""

    def __init__(self, *numbers: int) -> None:
        self.counts: dict[int, Counter[tuple[int, ...]]] = {n: Counter() for n in numbers}

    def on_exchange(self, event: Exchange) -> None:
        """Count the tensors after a given number of steps, when the next step is about to begin."""
        step = step_of(event)
        if self.counts.get(step) == Counter():
            self.counts[step] = live_tensors()


def check_graphs_are_freed(
    make_strategy: MakeAny, toy: AnyToy | None = None, *, few: int = 20, many: int = 200
) -> None:
    """Compare the number of live tensors after `few` and after `many` steps of one round.

    Raises
    ------
    AssertionError
        With both numbers, and the commonest shape of the added tensors.
    """
    toy = toy or Toy(clients=2)
    counts = TensorCounts(few, many)
    strategy = make_strategy(
        toy.server(), steps_per_round=many + 1, device="cpu", seed=1, observers=[counts]
    )
    strategy.fit(toy.clients_for(strategy), 1)
    early, late = (counts.counts[number].total() for number in (few, many))
    if not early or early != late:
        grown = (counts.counts[many] - counts.counts[few]).most_common(1)
        where = f", {grown[0][1]} more of shape {grown[0][0]}" if grown else ""
        raise AssertionError(
            f"law 7, graphs are freed: {early} live tensors after {few} steps, {late} after "
            f"{many}{where}"
        )
