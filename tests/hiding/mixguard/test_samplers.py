"""Secrets by every sampler meet equations 14 to 17; positive ones amplify nothing and leak less."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from flwr_splitmix.attacks import score
from flwr_splitmix.hiding.mixguard import (
    MixGuardOptions,
    Secret,
    draw_secret,
    measured_leak,
)
from flwr_splitmix.hiding.mixguard import sampler as samplers
from flwr_splitmix.hiding.mixguard.sampler import Sampler
from flwr_splitmix.seeding import seeded_secrets

SIZES = [(3, 3), (2, 2), (2, 5), (3, 10), (9, 3), (5, 3)]
POSITIVE: list[Sampler] = ["convex", "skewed"]
sizes = pytest.mark.parametrize(("m", "k"), SIZES)
positive = pytest.mark.parametrize("sampler", POSITIVE)


def draws(m: int, k: int, sampler: Sampler, norm: float = 1.0) -> Secret:
    with seeded_secrets():
        torch.manual_seed(0)
        return draw_secret(m, k, samples=300, sampler=sampler, support_norm=norm)


def own_column(secrets: Secret) -> Tensor:
    m = secrets.m
    return secrets.weights.gather(2, secrets.target[:, None, None].expand(-1, m, 1)).squeeze(2)


@positive
@sizes
def test_equations_14_to_17_hold(m: int, k: int, sampler: Sampler) -> None:
    secrets = draws(m, k, sampler)
    target = torch.nn.functional.one_hot(secrets.target, k).double()
    assert (secrets.signs.abs() == 1).all()
    assert (secrets.signs.sum(1).abs() < m).all()  # both signs
    cancelled = torch.einsum("bm,bmk->bk", secrets.signs, secrets.mixing)
    torch.testing.assert_close(cancelled, target, rtol=0, atol=1e-8)  # 14
    assert (secrets.mixing > 0).all()  # 15: k >= 2 entries in each row
    assert torch.isfinite(torch.linalg.inv(secrets.blinding)).all()
    product = secrets.blinding @ (secrets.signs.unsqueeze(2) * secrets.mixing)  # 16 and 17
    torch.testing.assert_close(product, secrets.weights)
    decoded = torch.einsum("bm,bmk->bk", secrets.decoding, secrets.weights)  # 18 and 19
    torch.testing.assert_close(decoded, target, rtol=0, atol=1e-6)


@positive
@sizes
def test_decoding_is_positive_and_every_message_has_the_target_once(
    m: int, k: int, sampler: Sampler
) -> None:
    secrets = draws(m, k, sampler, 1.5)
    assert (secrets.decoding > 0).all()
    torch.testing.assert_close(secrets.amplification, torch.ones(300).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(own_column(secrets), torch.ones(300, m).double(), rtol=0, atol=1e-6)
    supports = secrets.weights.square().sum((1, 2)) - m
    torch.testing.assert_close((supports / m).sqrt(), torch.full_like(supports, 1.5))


def test_a_skewed_decoding_has_one_heavy_weight_anywhere() -> None:
    secrets = draws(3, 3, "skewed")
    heavy, place = secrets.decoding.max(1)
    assert ((heavy > 0.5 - 1e-6) & (heavy < 0.75 + 1e-6)).all()
    assert (torch.bincount(place, minlength=3) > 60).all()


def test_skewed_secrets_hide_the_target_in_the_plain_sum_where_convex_ones_do_not() -> None:
    leaks = {
        (sampler, norm): float(draws(3, 3, sampler, norm).leak.median())
        for sampler in POSITIVE
        for norm in (1.0, 1.5, 2.0)
    }
    assert leaks["convex", 1.0] > 0.94
    assert leaks["skewed", 1.0] == pytest.approx(0.90, abs=0.03)
    assert leaks["skewed", 1.5] == pytest.approx(0.82, abs=0.04)
    assert leaks["skewed", 2.0] == pytest.approx(0.72, abs=0.04)


def test_rotated_secrets_amplify_errors() -> None:
    """Of these 85 % of the draws have a negative weight; the median of its sum is 2."""
    with seeded_secrets():
        torch.manual_seed(0)
        secrets = draw_secret(3, 3, samples=4000, sampler="rotated")
    negative = (secrets.decoding < 0).any(1).double().mean()
    assert float(negative) == pytest.approx(0.85, abs=0.03)
    assert float(secrets.amplification.median()) == pytest.approx(2.1, abs=0.2)


def test_by_default_no_error_is_amplified() -> None:
    for secret in (draw_secret(3, 3, samples=300), MixGuardOptions().draw(300)):
        assert (secret.decoding > 0).all()


def bent(hidden: Tensor) -> Tensor:
    """Return what a pre-norm block makes of hidden states."""
    steered = torch.Generator().manual_seed(5)
    weight = torch.randn(32, 32, generator=steered, dtype=torch.float64) / 32**0.5
    return hidden + torch.tanh(torch.nn.functional.layer_norm(hidden, (32,)) @ weight)


@positive
@sizes
def test_a_bent_trunk_is_decoded_better_than_under_rotated_secrets(
    m: int, k: int, sampler: Sampler
) -> None:
    sources = torch.randn(k, 300, 3, 32, dtype=torch.float64)

    def error(secrets: Secret) -> float:
        truth = bent(secrets.target_of(sources))
        off = secrets.decode(bent(secrets.encode(sources))) - truth
        return float((off.norm(dim=(1, 2)) / truth.norm(dim=(1, 2))).median())

    assert error(draws(m, k, sampler)) < 0.75 * error(draws(m, k, "rotated"))


def test_leak_is_what_orthogonal_sources_show() -> None:
    secrets = draws(3, 4, "skewed", 1.5)
    sources = torch.zeros(4, 300, 1, 8, dtype=torch.float64)
    for place in range(4):  # orthogonal, equally long, and of mean zero
        sources[place, :, 0, 2 * place] = 1.0
        sources[place, :, 0, 2 * place + 1] = -1.0
    leak = measured_leak(secrets.encode(sources), secrets.target_of(sources))
    torch.testing.assert_close(leak, secrets.leak)


def test_measured_leak_is_the_attacks_score_of_messages_and_sum() -> None:
    messages, target = torch.randn(3, 2, 4, 5) + 1, torch.randn(2, 4, 5)
    measured = measured_leak(messages, target)
    for text in range(2):
        guesses = torch.cat([messages[:, text], messages[:, text].sum(0, keepdim=True)])
        best = score(guesses, target[text], target[text]).best
        assert float(measured[text]) == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("sampler", ["rotated", "convex", "skewed"])
def test_bounds_are_kept(sampler: Sampler) -> None:
    secrets = draw_secret(
        3, 3, samples=50, sampler=sampler, support_norm=1.5, max_leak=0.9, max_amplification=3.0
    )
    assert (secrets.leak <= 0.9 + 1e-8).all()
    assert (secrets.amplification <= 3.0 + 1e-8).all()
    one = draw_secret(3, 3, sampler=sampler, support_norm=1.5, max_amplification=3.0)
    assert one.samples is None
    assert float(one.amplification) <= 3.0 + 1e-8


@pytest.mark.parametrize("sampler", ["rotated", "convex", "skewed"])
def test_that_there_are_no_secrets_is_known_after_few_draws(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 draws of 64 secrets, 40 seconds of them, would tell no more."""
    kind = "draw_rotated" if sampler == "rotated" else "draw_positive"
    draw = getattr(samplers, kind)
    sizes: list[int] = []

    def counted(count: int, *arguments: Any, **options: Any) -> Any:
        sizes.append(count)
        return draw(count, *arguments, **options)

    monkeypatch.setattr(samplers, kind, counted)
    with pytest.raises(ValueError, match=r"max_leak is 0.01; of 128,000 secrets too few"):
        draw_secret(3, 3, sampler=sampler, max_leak=0.01)
    assert sum(sizes) == 128_000
    assert len(sizes) < 50


def test_what_no_sampler_draws_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flwr_splitmix.hiding.mixguard.sampler.MAX_DRAWS", 2)
    with pytest.raises(ValueError, match=r"max_leak is 0.1; of 128 secrets too few"):
        draw_secret(3, 3, sampler="convex", max_leak=0.1)
    with pytest.raises(ValueError, match="sampler is 'flat'; it must be one of skewed, convex"):
        draw_secret(3, 3, sampler="flat")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="support_norm is inf; it must be positive and finite"):
        draw_secret(3, 3, sampler="convex", support_norm=math.inf)
    with pytest.raises(ValueError, match="max_leak is 0; it must be positive, or None"):
        draw_secret(3, 3, max_leak=0)
