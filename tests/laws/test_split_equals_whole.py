"""Law 1 over all mixers, and over every form of CutMix that returns exact gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from flwr_splitmix.data.batches import Batches
from flwr_splitmix.mixers import MaskShare
from flwr_splitmix.optimizers import OptimizerFactory, adamw
from flwr_splitmix.schedule import constant
from flwr_splitmix.server.segments.upper import ServerUpdate
from flwr_splitmix.strategies import PSL, CutMixSL, ShuffledCutMixSL
from flwr_splitmix.testing.laws import Toy, check_same_tensors, check_split_equals_whole, sgd
from tests.laws.makers import NAMES, maker, toy_for

UPDATES: list[ServerUpdate] = ["sum", "mean", "sequential"]


@pytest.mark.parametrize("server_update", UPDATES)
@pytest.mark.parametrize("name", NAMES)
def test_every_mixer(name: str, server_update: ServerUpdate) -> None:
    check_split_equals_whole(maker(name), toy_for(name), server_update=server_update, steps=3)


@pytest.mark.parametrize("server_update", UPDATES)
@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize(
    ("clients", "options"),
    [
        (5, {"k": 2}),  # one client left over
        (4, {"k": 3}),  # one left over of four
        (5, {"k": 3}),  # a smaller group left over
        (3, {"k": 3, "alpha": None}),
        (4, {"k": 2, "alpha": 0.05}),  # mostly zero counts
        (4, {"k": 2, "mask_per_sample": True}),
        (5, {"k": 2, "k_times": True}),
        (5, {"k": 3, "k_times": True, "mask_per_sample": True}),
        (4, {"k": 2, "regroup": "epoch", "rounding": "largest-remainder", "min_patches": 1}),
    ],
    ids=str,
)
def test_every_form_of_cutmix(
    clients: int, options: dict[str, Any], prefix: int, server_update: ServerUpdate
) -> None:
    check_split_equals_whole(
        partial(CutMixSL, **options),
        Toy(clients=clients, prefix=prefix),
        server_update=server_update,
    )


@pytest.mark.parametrize("server_update", UPDATES)
def test_shuffled_cutmix_has_all_forms_of_cutmix(server_update: ServerUpdate) -> None:
    check_split_equals_whole(
        partial(ShuffledCutMixSL, k=3, k_times=True, mask_per_sample=True),
        Toy(clients=5, prefix=2),
        server_update=server_update,
    )


@pytest.mark.parametrize("server_update", UPDATES)
@pytest.mark.parametrize("clients", [2, 5])
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("Input")])
def test_inputs_mixed_across_clients(name: str, clients: int, server_update: ServerUpdate) -> None:
    make = partial(maker(name), across="clients")
    check_split_equals_whole(make, Toy(clients=clients), server_update=server_update)


@pytest.mark.parametrize("options", [{}, {"server_update": "sum", "micro_batches": 2}], ids=str)
@pytest.mark.parametrize("optimizer", [sgd(0.1, momentum=0.9), adamw(0.01)], ids=["sgd", "adamw"])
def test_a_stateful_optimizer_also_steps_on_gradients_of_zeros(
    optimizer: OptimizerFactory, options: dict[str, Any]
) -> None:
    """Classes 0 and 1 have the weight 0: batches of them alone have no loss."""
    toy, seed, steps = Toy(clients=1, batch=2, dropout=0.0, batch_norm=False), 1, 12
    loss = nn.CrossEntropyLoss(torch.tensor([0.0, 0.0, 1.0]).double(), reduction="none")
    strategy = PSL(
        toy.upper(),
        loss=loss,
        optimizer=optimizer,
        schedule=constant,
        steps_per_round=steps,
        device="cpu",
        seed=seed,
        **options,
    )
    (client,) = toy.make_clients(optimizer)
    strategy.fit([client], 1)

    lower, upper = toy.lower(), toy.upper()
    optimizers = [optimizer(list(segment.parameters())) for segment in (lower, upper)]
    batches, losses = Batches(toy.data(0), toy.batch), []
    for _ in range(steps):
        inputs, labels = batches.next_batch(seed, 0)
        losses.append(loss(upper(lower(inputs)), labels).mean())
        for segment_optimizer in optimizers:
            segment_optimizer.zero_grad()
        losses[-1].backward()
        for segment_optimizer in optimizers:
            segment_optimizer.step()
    without = [not bool(value) for value in losses]
    assert any(without[2:])
    assert not all(without)
    for whole, split in ((lower, client.segment), (upper, strategy.upper.module)):
        check_same_tensors("law 1", whole.state_dict(), split.state_dict(), 1e-12)


def test_the_law_notices_a_wrong_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    right = MaskShare.pick
    monkeypatch.setattr(MaskShare, "pick", lambda self, gradient: 2 * right(self, gradient))
    with pytest.raises(AssertionError, match="law 1, split equals whole: lower segment of client"):
        check_split_equals_whole(CutMixSL, Toy(clients=2))


def test_the_toy_draws_dropout_and_shares_statistics() -> None:
    """The law is worth something only if its model has what makes splitting hard."""
    toy = Toy(clients=2)
    lower, upper, inputs = toy.lower(), toy.upper(), toy.data(0).inputs
    first, second = lower(inputs), lower(inputs)
    assert not torch.equal(first, second)
    assert not torch.equal(upper(first), upper(first))
    rows = lower.eval()(inputs)
    assert not torch.allclose(upper(rows)[:2], upper(rows[:2]))
    check_split_equals_whole(PSL, toy)
