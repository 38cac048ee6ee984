"""The gradient's noise follows the residual, sample by sample: MixGuard, equations 28, 29."""

from __future__ import annotations

import pytest
import torch

from flwr_splitmix.hiding.mixguard import perturb

SHAPE = (2, 200, 100)
G = torch.tensor([3.0, 0.5])[:, None, None] * torch.ones(SHAPE)
DECODED = torch.tensor([2.0, 4.0])[:, None, None] * torch.ones(SHAPE)
RESIDUAL = torch.tensor([1.0, 1.0])[:, None, None] * torch.ones(SHAPE)


def test_adaptive_noise_follows_the_residual() -> None:
    """By sample: 0.2 * 1/2 * 3 and 0.2 * 1/4 * 0.5."""
    noise = perturb(G, RESIDUAL, DECODED, strength=0.2) - G
    assert noise[0].std().item() == pytest.approx(0.3, rel=0.02)
    assert noise[1].std().item() == pytest.approx(0.025, rel=0.02)
    assert noise.mean(dim=(1, 2)).abs().max().item() < 0.01
    assert perturb(G, torch.zeros_like(G), DECODED).equal(G)


def test_constant_noise_follows_the_gradient_alone() -> None:
    noise = perturb(G, RESIDUAL, DECODED * 0, strength=0.2, kind="constant") - G
    assert noise[0].std().item() == pytest.approx(0.6, rel=0.02)
    assert noise[1].std().item() == pytest.approx(0.1, rel=0.02)


def test_none_and_zero_leave_the_gradient() -> None:
    assert torch.equal(perturb(G, RESIDUAL, DECODED, kind=None), G)
    assert torch.equal(perturb(G, RESIDUAL, DECODED, strength=0.0), G)


@pytest.mark.fresh_secrets
def test_noise_is_secret_and_keeps_the_dtype() -> None:
    torch.manual_seed(0)
    first = perturb(G.bfloat16(), RESIDUAL.bfloat16(), DECODED.bfloat16())
    torch.manual_seed(0)
    second = perturb(G.bfloat16(), RESIDUAL.bfloat16(), DECODED.bfloat16())
    assert first.dtype == torch.bfloat16
    assert not torch.equal(first, second)


def test_bad_inputs_are_said() -> None:
    with pytest.raises(ValueError, match="it must be one of adaptive, constant, or None"):
        perturb(G, RESIDUAL, DECODED, kind="other")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="strength is -1; it must be at least 0"):
        perturb(G, RESIDUAL, DECODED, strength=-1)
    with pytest.raises(ValueError, match="they must be the same"):
        perturb(G, RESIDUAL[:1], DECODED)
    with pytest.raises(ValueError, match="its residual has no scale"):
        perturb(G, RESIDUAL, DECODED * 0)
