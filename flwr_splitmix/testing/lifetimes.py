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
    """Count the tensors that Python holds, by shape; scalars without a graph are left out.

    An observer may keep a step's loss as a scalar on the device, so as not to wait for it. Left out
    are also parameters of lazy modules that somebody has imported: they have no shape yet.
    """
    gc.collect()
    return Counter(
        tuple(each.shape)
        for each in gc.get_objects()
        # By type: isinstance asks every object for its __class__, and some warn.
        if issubclass(type(each), torch.Tensor)
        and not is_lazy(each)
        and (each.ndim or each.grad_fn is not None)
    )


class TensorCounts(Observer):
    """Counts live tensors after some steps."""

    def __init__(self, *numbers: int) -> None:
        self.counts: dict[int, Counter[tuple[int, ...]]] = {n: Counter() for n in numbers}

    def on_exchange(self, event: Exchange) -> None:
        """Count after as many steps as were asked for: when the next one is about to begin."""
        done = step_of(event)
        if self.counts.get(done) == Counter():
            self.counts[done] = live_tensors()


def check_graphs_are_freed(
    make_strategy: MakeAny, toy: AnyToy | None = None, *, few: int = 20, many: int = 200
) -> None:
    """Compare the number of live tensors after `few` and after `many` steps of one round.

    Raises
    ------
    AssertionError
        Naming the numbers, and the shape whose tensors added up.
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
