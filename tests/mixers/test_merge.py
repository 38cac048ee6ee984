"""The mixture against dense masks written out by hand, complete and with clients missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flwr_splitmix.mixers import (
    EmptyMixtureError,
    Group,
    Member,
    Mixup,
    NoMixing,
    PatchCutMix,
    PatchShare,
    Plan,
    SmashedShape,
    Upload,
)

B, N, D, L = 4, 10, 3, 5


def shape(prefix: int = 0) -> SmashedShape:
    return SmashedShape(B, N, D, prefix)


def smashed_of(n: int, prefix: int = 0) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(B, prefix + N, D, dtype=torch.float64) for _ in range(n)]


def labels_of(n: int) -> list[Tensor]:
    return [(torch.arange(B) + i) % L for i in range(n)]


def dense_mask(share: PatchShare) -> Tensor:
    """M_i of shape (b, N, 1), from the definition: a slice of a seeded permutation."""
    mask = torch.zeros(B, N, 1, dtype=torch.float64)
    for row, patches in enumerate(share.positions(B).expand(B, -1)):
        for patch in patches.tolist():
            mask[row, patch] = 1
    return mask


def uploads_of(plan: Plan, smashed: list[Tensor]) -> dict[int, Upload]:
    labels = labels_of(len(smashed))
    return {
        i: Upload([None if h is None else h.upload(s)[0] for h in plan.shares(i)], labels[i])
        for i, s in enumerate(smashed)
    }


def two(lam: float = 0.3, prefix: int = 0) -> Plan:
    """Clients 0 and 1, of which 0 keeps the first `lam` of the permutation."""
    stop = round(lam * N)
    members = tuple(
        Member(i, PatchShare(lam=(b - a) / N, patches=N, prefix=prefix, seed=8, start=a, stop=b))
        for i, (a, b) in enumerate([(0, stop), (stop, N)])
    )
    return Plan(shape(prefix), ((Group(members),),))


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize(
    "options", [{"k": 2}, {"k": 3, "mask_per_sample": True}, {"k": 3, "k_times": True}], ids=str
)
def test_the_mixture_is_the_sum_of_the_masked_smashed_data(
    options: dict[str, Any], prefix: int
) -> None:
    plan = PatchCutMix(**options).plan(range(5), shape(prefix), np.random.default_rng(3))
    smashed, labels = smashed_of(5, prefix), labels_of(5)
    mixed = PatchCutMix(**options).merge(uploads_of(plan, smashed), plan, num_classes=L)
    groups = [group for groups in plan.passes for group in groups]
    assert len(mixed.sources) == len(groups)
    for row, group in enumerate(groups):
        expected = torch.zeros(B, prefix + N, D, dtype=torch.float64)
        target = torch.zeros(B, L, dtype=torch.float64)
        for member in group.members:
            s, share = smashed[member.client], member.share
            mask = dense_mask(share) if isinstance(share, PatchShare) else torch.ones(B, N, 1)
            expected[:, prefix:] += mask * s[:, prefix:]
            expected[:, :prefix] += mask[0].mean() * s[:, :prefix]
            target += mask[0].mean() * F.one_hot(labels[member.client], L)
        rows = slice(row * B, (row + 1) * B)
        assert torch.equal(mixed.smashed[rows, prefix:], expected[:, prefix:])
        torch.testing.assert_close(mixed.smashed[rows], expected, rtol=0, atol=1e-14)
        torch.testing.assert_close(mixed.targets[rows], target, rtol=0, atol=1e-14)


def test_without_mixing_the_mixture_is_the_smashed_data() -> None:
    plan = NoMixing().plan([0, 1], shape(), np.random.default_rng(0))
    smashed = smashed_of(2)
    mixed = NoMixing().merge(uploads_of(plan, smashed), plan, num_classes=L)
    assert torch.equal(mixed.smashed, torch.cat(smashed))
    assert torch.equal(mixed.targets, F.one_hot(torch.cat(labels_of(2)), L).double())


def test_targets_sum_to_one() -> None:
    for n in (2, 3, 7):
        plan = PatchCutMix(n).plan(range(n), shape(), np.random.default_rng(n))
        mixed = PatchCutMix(n).merge(uploads_of(plan, smashed_of(n)), plan, num_classes=L)
        torch.testing.assert_close(mixed.targets.sum(1), torch.ones(B, dtype=torch.float64))


def test_prefix_tokens_of_an_incomplete_group_are_a_weighted_mean() -> None:
    prefix = 2
    plan = PatchCutMix(3).plan(range(3), shape(prefix), np.random.default_rng(4))
    smashed = smashed_of(3, prefix)
    uploads = uploads_of(plan, smashed)
    del uploads[1]
    mixed = PatchCutMix(3).merge(uploads, plan, num_classes=L)
    lam = {i: share.lam for i in (0, 2) if (share := plan.shares(i)[0]) is not None}
    expected = sum(lam[i] * smashed[i][:, :prefix] for i in lam) / sum(lam.values())
    torch.testing.assert_close(mixed.smashed[:, :prefix], expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("missing", [None, 0, 1])
def test_what_goes_back_is_the_gradient_of_the_mixture(prefix: int, missing: int | None) -> None:
    """Also of an incomplete group: dividing the prefix on the way in divides its gradient."""
    mixer, plan = PatchCutMix(), two(0.3, prefix)
    leaves = {
        i: upload.detach().requires_grad_()
        for i, u in uploads_of(plan, smashed_of(2, prefix)).items()
        if i != missing and (upload := u.smashed[0]) is not None
    }
    uploads = {i: Upload([leaf], labels_of(2)[i]) for i, leaf in leaves.items()}
    mixed = mixer.merge(uploads, plan, num_classes=L)
    gradient = torch.randn_like(mixed.smashed)
    expected = torch.autograd.grad((gradient * mixed.smashed).sum(), list(leaves.values()))
    before = gradient.clone()
    back = mixer.split(gradient, mixed, plan)
    assert torch.equal(gradient, before)  # observers see it after this
    assert back.keys() == leaves.keys()
    for client, exact in zip(leaves, expected, strict=True):
        (returned,) = back[client]
        assert returned is not None
        torch.testing.assert_close(returned, exact, rtol=0, atol=1e-14)


def test_k_times_returns_one_gradient_to_each_client() -> None:
    mixer = PatchCutMix(3, k_times=True)
    plan = mixer.plan(range(3), shape(), np.random.default_rng(0))
    mixed = mixer.merge(uploads_of(plan, smashed_of(3)), plan, num_classes=L)
    back = mixer.split(torch.randn_like(mixed.smashed), mixed, plan)
    arrived = [[g is not None for g in back[client]] for client in range(3)]
    assert [sum(row) for row in arrived] == [1, 1, 1]
    assert [sum(column) for column in zip(*arrived, strict=True)] == [1, 1, 1]


def test_a_group_of_which_no_patch_came_is_left_out() -> None:
    members = two(0.0).passes[0][0].members  # client 0 keeps nothing
    plan = Plan(shape(), ((Group(members), Group((Member(2, members[1].share),))),))
    uploads = uploads_of(plan, smashed_of(3))
    del uploads[1]
    mixed = PatchCutMix().merge(uploads, plan, num_classes=L)
    assert [[m.client for m in source.members] for source in mixed.sources] == [[2]]
    assert len(mixed.smashed) == B
    assert PatchCutMix().split(mixed.smashed, mixed, plan).keys() == {2}


def test_nothing_to_mix_is_said() -> None:
    with pytest.raises(EmptyMixtureError, match="there is nothing to mix"):
        PatchCutMix().merge({}, two(), num_classes=L)


@pytest.mark.parametrize("k", [2, 8])
def test_targets_of_half_precision_uploads_sum_to_one(k: int) -> None:
    """In the uploads' dtype, rows of eight members miss one by 0.8 %."""
    plan = Mixup(k=k).plan(range(k), shape(), np.random.default_rng(0))
    smashed = [one.bfloat16() for one in smashed_of(k)]
    mixed = Mixup(k=k).merge(uploads_of(plan, smashed), plan, num_classes=L)
    assert (mixed.smashed.dtype, mixed.targets.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(mixed.targets.sum(1), torch.ones(B))
