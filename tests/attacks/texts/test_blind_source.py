"""Independent non-Gaussian sources come out of their mixtures, and a score says how well."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from flwr_splitmix.attacks import blind_source, score, separate_gradients
from flwr_splitmix.hiding.mixguard import balance_gradients, draw_secret


def laplace(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).laplace(size=shape))


@pytest.mark.parametrize(("m", "k"), [(3, 3), (2, 2), (5, 3)])
def test_sources_that_are_not_gaussian_are_separated(m: int, k: int) -> None:
    sources = laplace(k, 2, 40, 100)
    components = blind_source(draw_secret(m, k).encode(sources))
    assert components.shape == (k, 2, 40, 100)
    torch.testing.assert_close(
        components.flatten(1).var(1), torch.ones(k).double(), rtol=1e-3, atol=0
    )
    for source in sources:
        assert score(components, source, source).best > 0.99


def test_gaussian_sources_are_not() -> None:
    torch.manual_seed(0)
    sources = torch.randn(3, 2, 40, 100, dtype=torch.float64)
    cosines = []
    for seed in range(15):
        secret = draw_secret(3, 3)
        components = blind_source(secret.encode(sources), seed=seed)
        cosines.append(score(components, secret.target_of(sources), sources[0]).best)
    assert torch.tensor(cosines).median() < 0.97


def test_among_many_sources_the_target_stands_out() -> None:
    """Ten sources in three messages: one direction is pure, and it is the target's."""
    sources = laplace(10, 1, 64, 384)
    picked = []
    for seed in range(9):
        secret = draw_secret(3, 10)
        target = secret.target_of(sources)
        components = blind_source(secret.encode(sources), seed=seed)
        picked.append(score(components, target, target).picked)
    assert torch.tensor(picked).median() > 0.9


def test_components_come_with_the_least_gaussian_first() -> None:
    torch.manual_seed(0)
    spiky = laplace(1, 64, 384)[0].pow(3)
    normal = torch.randn(2, 64, 384, dtype=torch.float64)
    mixed = torch.einsum("mk,kij->mij", torch.randn(3, 3).double(), torch.stack([*normal, spiky]))
    components = blind_source(mixed)
    assert score(components, spiky, normal[0]).picked > 0.99


def test_what_all_texts_share_can_be_left_out() -> None:
    """Sources with a loud common part are not independent; without it they are."""
    common = 3 * laplace(41, 100)[0].repeat(41, 1)
    sources = laplace(3, 41, 100) + common
    with_it, without = [], []
    for seed in range(7):
        secret = draw_secret(3, 3)
        messages, target = secret.encode(sources[:, None]), secret.target_of(sources[:, None])
        with_it.append(score(blind_source(messages, seed=seed), target, target).best)
        components = blind_source(messages, common=common[None], seed=seed)
        without.append(score(components, target, target).best)
    assert torch.tensor(without).median() > 0.98
    assert torch.tensor(without).median() > torch.tensor(with_it).median()


def test_all_sources_gradients_are_separated_too() -> None:
    secret = draw_secret(3, 3)
    both = laplace(6, 1, 64, 128)
    sources, gradients = both[:3], both[3:]
    outputs = secret.encode(sources).requires_grad_()
    secret.decode_sources(outputs).backward(balance_gradients(secret, gradients))  # type: ignore[no-untyped-call]
    assert outputs.grad is not None
    decoded = separate_gradients(outputs.detach(), outputs.grad)
    target = secret.target_of(sources)
    assert score(decoded, target, target).best > 0.97


def test_the_score_tells_best_and_picked_apart() -> None:
    target = torch.randn(1, 50, 50, dtype=torch.float64)
    spiky = laplace(1, 50, 50).pow(3)
    other = torch.randn(1, 50, 50, dtype=torch.float64)
    scored = score(torch.stack([spiky, -3 * target + 7]), target, other)
    assert scored.best == pytest.approx(1.0)
    assert scored.best_index == 1
    assert scored.picked < 0.1
    correlation = torch.corrcoef(torch.stack([target.flatten(), other.flatten()]))
    assert scored.floor == pytest.approx(abs(correlation[0, 1].item()))
    assert score(target * 2, target, other).best == pytest.approx(1.0)


def test_bad_inputs_are_said() -> None:
    with pytest.raises(ValueError, match="there must be at least two"):
        blind_source(torch.ones(1, 5))
    with pytest.raises(ValueError, match="the messages are constant"):
        blind_source(torch.ones(3, 50))
    with pytest.raises(ValueError, match=r"common has shape \(3, 50\)"):
        blind_source(laplace(3, 50), common=torch.ones(3, 50))
    with pytest.raises(ValueError, match="they must be the same"):
        separate_gradients(torch.ones(3, 1, 5), torch.ones(2, 1, 5))
    with pytest.raises(ValueError, match=r"components have shape \(3, 4\)"):
        score(torch.ones(3, 4), torch.ones(5), torch.ones(5))
