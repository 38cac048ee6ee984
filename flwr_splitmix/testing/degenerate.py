"""Law 2, degenerate cases agree: without anything to split or mix, training is ordinary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn

from flwr_splitmix.data.batches import Batches
from flwr_splitmix.data.examples import Example
from flwr_splitmix.links.arrays import to_tensors
from flwr_splitmix.mixers import NoMixing
from flwr_splitmix.schedule import WarmupCosine, constant
from flwr_splitmix.testing.agreement import check_same_tensors
from flwr_splitmix.testing.toy import Toy, sgd
from flwr_splitmix.testing.whole import MakeStrategy

LAW = "law 2, degenerate cases agree"
SEED = 5


def check_degenerate_cases(
    make_strategy: MakeStrategy, toy: Toy | None = None, *, tolerance: float = 1e-10
) -> list[str]:
    """Check the cases that apply to a strategy: no mixing, averaging, or both.

    Returns
    -------
    The names of the cases that applied.

    Raises
    ------
    AssertionError
        With the case and the weight that differs most.
    """
    toy = toy or Toy()
    strategy = make_strategy(toy.upper())
    unmixed = isinstance(strategy.mixer, NoMixing)
    averaged = type(strategy.aggregator.strategy) is FedAvg
    cases = []
    if unmixed:
        check_one_client_is_ordinary_training(make_strategy, toy, tolerance)
        cases.append("one client")
    if unmixed and averaged:
        check_mean_update_is_training_on_all_batches(make_strategy, toy, tolerance)
        cases.append("all batches")
    if averaged:
        check_average_is_fedavg(make_strategy, toy, tolerance)
        cases.append("average")
    return cases


def check_one_client_is_ordinary_training(
    make_strategy: MakeStrategy, toy: Toy, tolerance: float
) -> None:
    """Compare one client without mixing to the whole model, with momentum and a schedule."""
    toy = replace(toy, clients=1, dropout=0.0)
    rounds, steps, schedule = 2, 3, WarmupCosine(warmup=0.5)
    optimizer = sgd(0.5, momentum=0.9)
    strategy = make_strategy(
        toy.upper(),
        optimizer=optimizer,
        schedule=schedule,
        steps_per_round=steps,
        device="cpu",
        seed=SEED,
    )
    clients = toy.make_clients(optimizer, schedule=schedule, shares=strategy.mixer.shares)
    strategy.fit(clients, rounds)

    model = nn.Sequential(toy.lower(), toy.upper())
    ordinary = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    batches = Batches(toy.data(0), toy.batch)
    for step in range(rounds * steps):
        ordinary.param_groups[0]["lr"] = 0.5 * schedule(step / steps, rounds)
        _train(model, ordinary, batches.next_batch(SEED, 0))
    split = nn.Sequential(clients[0].segment, strategy.upper.module)
    check_same_tensors(
        f"{LAW}: one client is not ordinary training",
        model.state_dict(),
        split.state_dict(),
        tolerance,
    )


def check_mean_update_is_training_on_all_batches(
    make_strategy: MakeStrategy, toy: Toy, tolerance: float
) -> None:
    """Compare mean updates with plain SGD and averaging at each step to training on all batches."""
    toy = replace(toy, dropout=0.0, batch_norm=False)
    rounds = 4
    strategy = make_strategy(
        toy.upper(),
        optimizer=sgd(0.5),
        schedule=constant,
        server_update="mean",
        steps_per_round=1,
        device="cpu",
        seed=SEED,
    )
    result = strategy.fit(toy.make_clients(sgd(0.5), shares=strategy.mixer.shares), rounds)

    model = nn.Sequential(toy.lower(), toy.upper())
    ordinary = torch.optim.SGD(model.parameters(), lr=0.5)
    batches = [Batches(toy.data(i), toy.batch) for i in range(toy.clients)]
    for _ in range(rounds):
        drawn = [client_batches.next_batch(SEED, i) for i, client_batches in enumerate(batches)]
        inputs, labels = (torch.cat(parts) for parts in zip(*drawn, strict=True))
        _train(model, ordinary, (inputs, labels))
    for name, expected, actual in (
        ("lower", model[0].state_dict(), to_tensors(_arrays(result.arrays))),
        ("upper", model[1].state_dict(), strategy.upper.module.state_dict()),
    ):
        check_same_tensors(
            f"{LAW}: the mean update is not training on all batches, {name} segment",
            expected,
            actual,
            tolerance,
        )


def check_average_is_fedavg(make_strategy: MakeStrategy, toy: Toy, tolerance: float) -> None:
    """Compare a round's lower segment to the clients' mean, weighted by their examples."""
    sizes = tuple(toy.batch * (1 + i % 3) + i for i in range(toy.clients))
    toy = replace(toy, examples=sizes)
    strategy = make_strategy(
        toy.upper(), optimizer=sgd(0.1), schedule=constant, device="cpu", seed=SEED
    )
    clients = toy.make_clients(sgd(0.1), shares=strategy.mixer.shares)
    result = strategy.fit(clients, 1)
    states = [client.segment.state_dict() for client in clients]
    check_same_tensors(
        f"{LAW}: the average is not FedAvg's",
        {name: _weighted_mean((s[name] for s in states), sizes) for name in states[0]},
        to_tensors(_arrays(result.arrays)),
        tolerance,
    )


def _weighted_mean(tensors: Iterable[Tensor], sizes: Sequence[int]) -> Tensor:
    stacked = np.stack([tensor.numpy() for tensor in tensors]).astype(np.float64)
    return torch.tensor(np.tensordot(np.array(sizes) / sum(sizes), stacked, axes=1))


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Example) -> None:
    inputs, labels = batch
    model.train()
    optimizer.zero_grad()
    F.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def _arrays(arrays: ArrayRecord | None) -> ArrayRecord:
    if arrays is None:
        raise AssertionError(f"{LAW}: the strategy returned no lower segment")
    return arrays
