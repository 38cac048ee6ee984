"""Mixup: weighted sums there, weighted gradients back."""

from __future__ import annotations

import math
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
    Plan,
    SmashedShape,
    Upload,
    WeightedShare,
)

B, N, D, L = 3, 4, 2, 5


def plan_of(*ratios: float, prefix: int = 0) -> Plan:
    members = tuple(Member(i, WeightedShare(lam=lam)) for i, lam in enumerate(ratios))
    return Plan(SmashedShape(B, N, D, prefix), ((Group(members),),))


def smashed_of(plan: Plan, n: int) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(plan.shape.size, dtype=torch.float64).requires_grad_() for _ in range(n)]


def labels_of(n: int) -> list[Tensor]:
    return [(2 * torch.arange(B) + i) % L for i in range(n)]


def upload(plan: Plan, client: int, smashed: Tensor) -> Tensor:
    (share,) = plan.shares(client)
    assert share is not None
    return share.upload(smashed)[0]


@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("came", [(0, 1, 2), (0, 2), (1,)])
def test_the_mixture_is_the_weighted_mean_of_what_came(came: tuple[int, ...], prefix: int) -> None:
    """Of smashed data, prefix tokens and labels alike; and so is its gradient, at the clients."""
    ratios = (0.5, 0.3, 0.2)
    plan = plan_of(*ratios, prefix=prefix)
    smashed, labels = smashed_of(plan, 3), labels_of(3)
    uploads = {i: Upload([upload(plan, i, smashed[i]).detach()], labels[i]) for i in came}
    mixed = Mixup(3).merge(uploads, plan, num_classes=L)

    total = sum(ratios[i] for i in came)
    whole = sum((ratios[i] / total * smashed[i] for i in came), start=torch.zeros(()))
    target = sum(ratios[i] / total * F.one_hot(labels[i], L).double() for i in came)
    torch.testing.assert_close(mixed.smashed, whole, rtol=0, atol=1e-14)
    torch.testing.assert_close(mixed.targets, target, rtol=0, atol=1e-14)

    gradient = torch.randn_like(mixed.smashed)
    copied = gradient.clone()
    back = Mixup(3).split(copied, mixed, plan)
    assert torch.equal(copied, gradient)
    assert back.keys() == set(came)
    for i in came:
        (returned,) = back[i]
        assert returned is not None
        # The client pushes what came back through its own upload, whose factor is lam.
        (arrived,) = torch.autograd.grad((returned * upload(plan, i, smashed[i])).sum(), smashed[i])
        torch.testing.assert_close(arrived, ratios[i] / total * gradient, rtol=0, atol=1e-14)


def test_a_complete_group_gets_the_gradient_of_the_mixture_itself() -> None:
    plan = plan_of(0.7, 0.3)
    smashed = smashed_of(plan, 2)
    uploads = {i: Upload([upload(plan, i, smashed[i]).detach()], labels_of(2)[i]) for i in (0, 1)}
    mixed = Mixup().merge(uploads, plan, num_classes=L)
    gradient = torch.randn_like(mixed.smashed)
    back = Mixup().split(gradient, mixed, plan)
    for client, lam in enumerate((0.7, 0.3)):
        (returned,) = back[client]
        assert returned is not None
        assert torch.equal(returned, gradient)
        (arrived,) = torch.autograd.grad(
            (returned * upload(plan, client, smashed[client])).sum(), smashed[client]
        )
        assert torch.equal(arrived, lam * gradient)


def test_a_ratio_too_small_to_divide_by_leaves_its_group_out() -> None:
    """Dirichlet ratios with a small alpha go down to 1e-300: 0 / 0 in the smashed data's dtype."""
    plan = plan_of(1e-30, 1.0)
    alone = {0: Upload([1e-30 * torch.ones(B, N, D)], labels_of(1)[0])}
    with pytest.raises(EmptyMixtureError, match="there is nothing to mix"):
        Mixup().merge(alone, plan, num_classes=L)
    both = {**alone, 1: Upload([torch.ones(B, N, D)], labels_of(2)[1])}
    mixed = Mixup().merge(both, plan, num_classes=L)
    assert bool(mixed.smashed.isfinite().all())
    torch.testing.assert_close(mixed.targets.sum(1), torch.ones(B))


def test_a_ratio_of_two_millionths_suffices_and_half_a_millionth_does_not() -> None:
    for ratio, suffices in ((2e-6, True), (5e-7, False)):
        plan = plan_of(ratio, 1 - ratio)
        (smashed,) = smashed_of(plan, 1)
        alone = {0: Upload([upload(plan, 0, smashed).detach()], labels_of(1)[0])}
        if suffices:
            mixed = Mixup().merge(alone, plan, num_classes=L)
            torch.testing.assert_close(mixed.smashed, smashed.detach())
        else:
            with pytest.raises(EmptyMixtureError):
                Mixup().merge(alone, plan, num_classes=L)


def test_the_ratios_are_dirichlet() -> None:
    """Var(lam) = p (1 - p) / (k alpha + 1) with p = 1/k."""
    k, alpha, size = 3, 2.0, 6_000
    rng = np.random.default_rng(3)
    mixer = Mixup(k, alpha)
    ratios = np.array(
        [
            [member.share.lam for member in mixer.mix(range(k), SmashedShape(B, N, D), rng)]
            for _ in range(size)
        ]
    )
    assert ratios.sum(1) == pytest.approx(np.ones(size))
    variance = 1 / k * (1 - 1 / k) / (k * alpha + 1)
    assert ratios.mean(0) == pytest.approx(np.full(k, 1 / k), abs=4 * math.sqrt(variance / size))
    assert ratios.var(0) == pytest.approx(np.full(k, variance), rel=0.08)


def test_without_alpha_everyone_weighs_the_same() -> None:
    members = Mixup(3, None).mix(range(3), SmashedShape(B, N, D), np.random.default_rng(0))
    assert [member.share.lam for member in members] == [1 / 3] * 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"k": 1}, "k is 1; a mixing group needs at least 2 clients"),
        ({"alpha": 0.0}, r"alpha is 0\.0; it must be greater than 0 and at most 1e\+100, or None"),
        ({"alpha": -6.0}, r"alpha is -6\.0"),
        ({"alpha": math.nan}, "alpha is nan"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Mixup(**options)
