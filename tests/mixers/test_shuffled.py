"""Shuffling: an order that can be undone, for every sample its own, and the way back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flwr_splitmix.mixers import (
    InputLevel,
    Mixer,
    Mixup,
    NoMixing,
    PatchCutMix,
    Plan,
    RandomCutout,
    Shuffled,
    SmashedShape,
    Upload,
    VanillaCutMix,
)
from flwr_splitmix.mixers.shuffled import ShuffledMixed, ShuffledPlan
from flwr_splitmix.segments import split_vision_model

B, N, D, L = 4, 9, 3, 5
INNER: list[Mixer] = [
    NoMixing(),
    PatchCutMix(2),
    PatchCutMix(3, k_times=True),
    PatchCutMix(2, mask_per_sample=True),
    Mixup(3),
    VanillaCutMix(),
    RandomCutout(0.5),
]


def plan_of(mixer: Mixer, n: int = 5, seed: int = 0, prefix: int = 0) -> Plan:
    return mixer.plan(range(n), SmashedShape(B, N, D, prefix), np.random.default_rng(seed))


def uploads_of(plan: Plan, n: int = 5) -> tuple[dict[int, Upload], dict[int, list[Tensor]]]:
    """Each client's uploads, and the same tensors as leaves of a graph."""
    torch.manual_seed(3)
    uploads, leaves = {}, {}
    for client in range(n):
        smashed = torch.randn(plan.shape.size, dtype=torch.float64)
        tensors = [None if s is None else s.upload(smashed)[0] for s in plan.shares(client)]
        leaf = [None if t is None else t.clone().requires_grad_() for t in tensors]
        uploads[client] = Upload(leaf, (torch.arange(B) + client) % L)
        leaves[client] = [t for t in leaf if t is not None]
    return uploads, leaves


def merged(mixer: Mixer, uploads: dict[int, Upload], plan: Plan) -> ShuffledMixed:
    mixed = mixer.merge(uploads, plan, num_classes=L)
    assert isinstance(mixed, ShuffledMixed)
    return mixed


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("inner", INNER, ids=lambda m: f"{m}-{getattr(m, 'k', 1)}")
def test_put_back_in_order_it_is_what_the_mixer_inside_made(inner: Mixer, prefix: int) -> None:
    mixer = Shuffled(inner)
    plan = plan_of(mixer, prefix=prefix)
    uploads, _ = uploads_of(plan)
    plain = inner.merge(uploads, plan, num_classes=L)
    mixed = merged(mixer, uploads, plan)
    assert torch.equal(mixed.targets, plain.targets)
    assert mixed.sources == plain.sources
    assert torch.equal(mixed.smashed[:, :prefix], plain.smashed[:, :prefix])
    assert tuple(mixed.order.shape) == (len(plain.smashed), N)
    for row, order in enumerate(mixed.order.tolist()):
        assert sorted(order) == list(range(N))
        for slot, patch in enumerate(order):
            moved = mixed.smashed[row, prefix + slot]
            assert torch.equal(moved, plain.smashed[row, prefix + patch])
    assert not torch.equal(mixed.smashed, plain.smashed)


@pytest.mark.parametrize("missing", [None, 2])
@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("inner", INNER, ids=lambda m: f"{m}-{getattr(m, 'k', 1)}")
def test_the_gradient_returns_to_the_patches_that_it_belongs_to(
    inner: Mixer, prefix: int, missing: int | None
) -> None:
    """Against autograd through the mixture, with respect to what each client sent."""
    mixer = Shuffled(inner)
    plan = plan_of(mixer, prefix=prefix)
    uploads, leaves = uploads_of(plan)
    if missing is not None:
        del uploads[missing]
    mixed = merged(mixer, uploads, plan)
    gradient = torch.randn_like(mixed.smashed)
    back = mixer.split(gradient, mixed, plan)
    assert missing not in back
    for client, parts in back.items():
        exact = torch.autograd.grad(
            (gradient * mixed.smashed).sum(), leaves[client], retain_graph=True, allow_unused=True
        )
        shares = [share for share in plan.shares(client) if share is not None]
        passes = [
            returned
            for returned, s in zip(parts, plan.shares(client), strict=True)
            if s is not None
        ]
        for returned, share, expected in zip(passes, shares, exact, strict=True):
            if share.learns and returned is not None and expected is not None:
                torch.testing.assert_close(returned, expected, rtol=0, atol=1e-13)
            else:
                assert returned is None


def test_every_sample_and_every_step_has_an_order_of_its_own() -> None:
    mixer = Shuffled(NoMixing())
    orders = []
    for seed in range(20):
        plan = plan_of(mixer, seed=seed)
        uploads, _ = uploads_of(plan)
        mixed = merged(mixer, uploads, plan)
        assert torch.equal(mixed.order, merged(mixer, uploads, plan).order)
        orders += [tuple(row) for row in mixed.order.tolist()]
    assert len(set(orders)) == 20 * 5 * B
    slots = np.array(orders)
    frequency = np.stack([(slots == patch).mean(0) for patch in range(N)])
    assert np.abs(frequency - 1 / N).max() < 4.5 * math.sqrt(1 / N / len(slots))


def test_no_client_is_told_the_order() -> None:
    mixer = Shuffled(PatchCutMix(2))
    plan = plan_of(mixer)
    assert isinstance(plan, ShuffledPlan)
    inner = plan_of(PatchCutMix(2))
    assert inner.passes == plan.passes
    for client in range(5):
        assert plan.for_node(client) == inner.for_node(client)


def test_what_the_wrapper_does_not_change_is_as_inside() -> None:
    mixer = Shuffled(PatchCutMix(4, regroup="epoch"))
    assert (mixer.min_members, mixer.regroup, mixer.cover) == (2, "epoch", "partition")
    assert (mixer.k, mixer.min_patches) == (4, 0)
    other = Shuffled(PatchCutMix(3, min_patches=2, k_times=True, mask_per_sample=True))
    assert (other.k, other.min_patches) == (3, 2)
    assert other.k_times
    assert other.mask_per_sample
    assert Shuffled(Mixup()).cover == "weighted"
    assert Shuffled(InputLevel(Mixup(), across="clients")).raw_inputs_cross
    assert not Shuffled(InputLevel(Mixup())).raw_inputs_cross
    assert str(mixer) == "Shuffled(PatchCutMix)"
    with pytest.raises(ValueError, match="k is 4, but only 3 clients take part"):
        mixer.check_clients(3)


def test_patches_are_shuffled_once() -> None:
    with pytest.raises(ValueError, match="Shuffled already moves the patches"):
        Shuffled(Shuffled(NoMixing()))


def test_a_transformer_sees_the_shuffle_only_if_it_adds_positions_by_slot() -> None:
    """Added before, they travel with the patches, and the output does not depend on the order."""
    options: dict[str, Any] = {"image_size": 16, "depth": 2, "embed_dim": 24, "num_heads": 3}
    images = torch.randn(3, 1, 16, 16, dtype=torch.float64)
    for positions, differs in (("lower", False), ("upper", True)):
        lower, upper = split_vision_model(positions=positions, seed=0, **options)  # type: ignore[arg-type]
        lower, upper = lower.double().eval(), upper.double().eval()
        plan = Shuffled(NoMixing()).plan([0], SmashedShape(3, 16, 24), np.random.default_rng(0))
        with torch.no_grad():
            smashed = lower(images)
            mixed = merged(
                Shuffled(NoMixing()), {0: Upload([smashed], torch.zeros(3).long())}, plan
            )
            gap = float((upper(mixed.smashed) - upper(smashed)).abs().max())
        assert (gap > 1e-5) if differs else (gap < 1e-12)
