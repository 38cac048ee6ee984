"""Law 1 for the U shape: comparison with one graph through all heads, the trunk and all tails."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from flwr_splitmix.clients import Order, UShapeClient
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import SentBatch
from flwr_splitmix.schedule import constant
from flwr_splitmix.seeding import derive_seed, seeded_draws, seeded_secrets
from flwr_splitmix.testing.agreement import check_same_tensors
from flwr_splitmix.testing.toy import MakeAny, sgd
from flwr_splitmix.testing.toy_texts import TextToy

LAW = "law 1, split equals whole"


def check_ushape_equals_whole(
    make_strategy: MakeAny,
    toy: TextToy | None = None,
    *,
    steps: int = 2,
    seed: int = 3,
    tolerance: float = 1e-10,
) -> None:
    """Train `steps` steps with the strategy, and again with one unsplit graph per step.

    Both sides use SGD with learning rate 1, so that a step equals the gradient. The clients'
    obfuscation of messages is part of the graph; noise on gradients is not, so a client of
    MixGuard must have none, and no calibrator.

    Parameters
    ----------
    make_strategy
        Called with the toy's trunk and options of `UShapeStrategy`.
    tolerance
        Largest absolute difference of a weight.

    Raises
    ------
    AssertionError
        With the weight that differs most.
    """
    toy = toy or TextToy()
    strategy = make_strategy(
        toy.server(),
        optimizer=sgd(),
        schedule=constant,
        steps_per_round=steps,
        device="cpu",
        seed=seed,
    )
    clients = toy.clients_for(strategy, sgd())
    strategy.fit(clients, 1)

    twins = toy.clients_for(strategy, sgd())
    trunk = toy.server()
    for index, twin in enumerate(twins):
        twin.attach(Order(index, seed, 1, 1), None)
    for number in range(steps):
        _step(twins, trunk, seed, number)
    for index, (twin, client) in enumerate(zip(twins, clients, strict=True)):
        check_same_tensors(
            f"{LAW}: head and tail of client {index}",
            dict(twin.segments.state_dict()),
            dict(client.segments.state_dict()),
            tolerance,
        )
    check_same_tensors(
        f"{LAW}: trunk", trunk.state_dict(), strategy.trunk.module.state_dict(), tolerance
    )


def _step(clients: Sequence[UShapeClient], trunk: nn.Module, seed: int, number: int) -> None:
    """Take one step of all clients in one graph, in which nothing is detached."""
    cpu = torch.device("cpu")
    uploads: list[SentBatch] = []
    for index, client in enumerate(clients):
        example = client.batches.next_batch(seed, index)
        client.segments.train()
        place = derive_seed(seed, "encode", index, 1, number)
        with seeded_draws(cpu, place), seeded_secrets():
            uploads.append(client.hiding.obfuscate(MaskedBatch.of(example, cpu)))
    outputs: dict[int, Sequence[Tensor]] = {}
    trunk.train()
    with seeded_draws(cpu, derive_seed(seed, "trunk", 1, number)):
        # Messages of equal length form one batch, in the order of the clients.
        for length in dict.fromkeys(s.mask.shape[1] for s in uploads):
            chosen = [i for i, s in enumerate(uploads) if s.mask.shape[1] == length]
            hidden = torch.cat([message for i in chosen for message in uploads[i].messages])
            mask = torch.cat([uploads[i].mask for i in chosen for _ in uploads[i].messages])
            parts = trunk(hidden, mask).split([len(m) for i in chosen for m in uploads[i].messages])
            for i in chosen:
                outputs[i], parts = (
                    parts[: len(uploads[i].messages)],
                    parts[len(uploads[i].messages) :],
                )
    losses = []
    for index, client in enumerate(clients):
        with seeded_draws(cpu, derive_seed(seed, "decode", index, 1, number)):
            hidden = client.hiding.recover(outputs[index], uploads[index])
            loss = client.loss(hidden, uploads[index])
            penalty = uploads[index].penalty
            losses.append(loss if penalty is None else loss + penalty)
    client_parameters = [
        p for client in clients for p in client.segments.parameters() if p.requires_grad
    ]
    shared = [p for p in trunk.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(torch.stack(losses).sum(), client_parameters + shared)
    with torch.no_grad():
        for parameter, gradient in zip(
            client_parameters, gradients[: len(client_parameters)], strict=True
        ):
            parameter.sub_(gradient)
        for parameter, gradient in zip(shared, gradients[len(client_parameters) :], strict=True):
            parameter.sub_(gradient / len(clients))
