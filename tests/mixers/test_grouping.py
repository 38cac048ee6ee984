"""Leftovers, and clients whose mask is empty, in every mixer that groups clients."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from flwr_splitmix.mixers import (
    FullShare,
    InputLevel,
    InputShare,
    MaskShare,
    Mixer,
    Mixup,
    PatchCutMix,
    Plan,
    Shuffled,
    SmashedShape,
    Upload,
    VanillaCutMix,
)
from flwr_splitmix.server.intake.finite import FiniteCheck
from flwr_splitmix.server.intake.split import LabelRules, read_upload

SHAPE = SmashedShape(4, 16, 3, classes=5)


def plan_of(mixer: Mixer, n: int, seed: int = 0, shape: SmashedShape = SHAPE) -> Plan:
    return mixer.plan(range(n), shape, np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("k", "sizes"), [(2, [2, 2, 2, 2, 2]), (3, [3, 3, 3, 1]), (4, [4, 4, 2])], ids=str
)
@pytest.mark.parametrize("kind", [Mixup, PatchCutMix])
def test_of_ten_clients_three_leave_one_over_and_four_leave_a_pair(
    kind: Any, k: int, sizes: list[int]
) -> None:
    for mixer in (kind(k), Shuffled(kind(k))):
        (groups,) = plan_of(mixer, 10).passes
        assert [len(group.members) for group in groups] == sizes
        clients = [m.client for group in groups for m in group.members]
        assert sorted(clients) == list(range(10))
        for group in groups:
            total = sum(member.share.lam for member in group.members)
            assert total == pytest.approx(1, abs=1e-12)
            alone = len(group.members) == 1
            assert all((m.share == FullShare()) == alone for m in group.members)


@pytest.mark.parametrize("mixer", [Mixup(3), PatchCutMix(3), VanillaCutMix(), Shuffled(Mixup(3))])
def test_who_is_alone_sends_everything_with_its_label_and_the_plan_says_so(mixer: Mixer) -> None:
    n = 5 if isinstance(mixer, VanillaCutMix) else 10
    plan = plan_of(mixer, n)
    (alone,) = plan.unmixed
    (share,) = plan.shares(alone)
    smashed = torch.randn(SHAPE.size)
    assert share is not None
    assert share.upload(smashed)[0] is smashed
    assert share.label_kind == "classes"
    lonely = Counter(plan_of(mixer, n, seed).unmixed[0] for seed in range(50 * n))
    assert all(lonely[client] > 20 for client in range(n))


def test_inputs_of_a_client_alone_are_not_mixed_and_the_plan_says_so() -> None:
    plan = plan_of(InputLevel(Mixup(3), across="clients"), 10)
    (alone,) = plan.unmixed
    (share,) = plan.shares(alone)
    assert isinstance(share, InputShare)
    assert share.parts == ((alone, FullShare()),)
    assert plan_of(InputLevel(Mixup(3)), 10).unmixed == ()


EMPTY = [
    (PatchCutMix(2, 0.01), 2),
    (PatchCutMix(3, 0.01, mask_per_sample=True), 3),
    (VanillaCutMix(beta=0.01), 2),
    (Shuffled(PatchCutMix(2, 0.01)), 2),
]


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize(("mixer", "n"), EMPTY, ids=lambda value: str(value))
def test_a_client_with_an_empty_mask_sends_no_patch_and_gets_no_gradient(
    mixer: Mixer, n: int, prefix: int
) -> None:
    shape = SmashedShape(4, 16, 3, prefix, classes=5)
    plans = (plan_of(mixer, n, seed, shape) for seed in range(200))
    plan, empty = next(
        (plan, client)
        for plan in plans
        for client in range(n)
        if isinstance(share := plan.shares(client)[0], MaskShare) and share.count() == 0
    )
    labels = torch.tensor([0, 1, 2, 3])
    uploads = {}
    for client in range(n):
        (share,) = plan.shares(client)
        assert share is not None
        reply = {"smashed": [share.upload(torch.ones(shape.size))[0]], "labels": labels}
        uploads[client] = read_upload(
            reply, plan, client, LabelRules(5), torch.float32, finite=FiniteCheck()
        )
    assert tuple(_only(uploads[empty].smashed).shape) == (4, prefix, 3)

    mixed = mixer.merge(uploads, plan, num_classes=5)
    assert torch.equal(mixed.smashed[:, prefix:], torch.ones(4, 16, 3))
    torch.testing.assert_close(mixed.targets.sum(1), torch.ones(4))
    gradient = torch.ones_like(mixed.smashed)
    returned = _only(mixer.split(gradient, mixed, plan)[empty])
    assert tuple(returned.shape) == (4, prefix, 3)


def test_a_group_of_which_only_an_empty_mask_came_is_left_out() -> None:
    plan = next(
        plan
        for plan in (plan_of(VanillaCutMix(beta=0.01), 4, seed) for seed in range(200))
        if plan.passes[0][0].members[1].share.lam == 0
    )
    full, empty = (m.client for m in plan.passes[0][0].members)
    uploads = {}
    for client in set(range(4)) - {full}:
        (share,) = plan.shares(client)
        assert share is not None
        uploads[client] = Upload([share.upload(torch.ones(SHAPE.size))[0]], torch.zeros(4).long())
    mixed = VanillaCutMix().merge(uploads, plan, num_classes=5)
    assert [[m.client for m in source.members] for source in mixed.sources] == [
        [m.client for m in plan.passes[0][1].members]
    ]
    assert empty not in VanillaCutMix().split(mixed.smashed, mixed, plan)


def _only(tensors: Any) -> torch.Tensor:
    (tensor,) = tensors
    assert isinstance(tensor, torch.Tensor)
    return tensor
