"""MixGuard as published: a step's gradients tell how to decode its messages."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flwr_splitmix.attacks import gradient_ratio, score
from flwr_splitmix.hiding.mixguard import Secret, draw_secret, perturb

SIZES = [(3, 3), (3, 10), (9, 3)]


def step(
    m: int, k: int, strength: float, samples: int | None = None
) -> tuple[Secret, Tensor, Tensor, Tensor]:
    """Run one step with a non-linear trunk; return what was sent and what was to be hidden."""
    secret = draw_secret(m, k, samples=samples)
    sources = torch.randn(k, 4, 8, 16)
    messages = secret.encode(sources)
    outputs = torch.tanh(messages @ torch.randn(16, 16)).requires_grad_()
    decoded = secret.decode(outputs)
    residual = torch.randn_like(decoded)
    g = torch.randn_like(decoded)
    decoded.backward(perturb(g, residual, decoded, strength=strength))  # type: ignore[no-untyped-call]
    assert outputs.grad is not None
    return secret, messages, outputs.grad, secret.target_of(sources)


@pytest.mark.parametrize(("m", "k"), SIZES)
@pytest.mark.parametrize("strength", [0.0, 0.1, 10.0])
def test_no_perturbation_hides_the_target(m: int, k: int, strength: float) -> None:
    secret, messages, gradients, target = step(m, k, strength)
    attack = gradient_ratio(messages, gradients)
    assert score(attack.estimate, target, torch.randn_like(target)).best > 0.999
    assert torch.cosine_similarity(attack.weights, secret.decoding, dim=0).abs() > 0.999999


def test_secrets_of_samples_fall_one_by_one() -> None:
    secret, messages, gradients, target = step(3, 3, 0.1, samples=4)
    attack = gradient_ratio(messages, gradients, per_sample=True)
    assert attack.weights.shape == (4, 3)
    assert torch.cosine_similarity(attack.weights, secret.decoding).abs().min() > 0.999999
    together = gradient_ratio(messages, gradients)
    for j in range(4):
        assert score(attack.estimate[j], target[j], target[j - 1]).best > 0.999
    assert score(together.estimate, target, torch.randn_like(target)).best < 0.99


def test_much_noise_on_each_message_alone_would_hide_it() -> None:
    """What remains is a random direction of three dimensions, whose median |cos| is 1/2."""
    cosines = []
    for _ in range(40):
        secret, messages, gradients, _ = step(3, 3, 0.0)
        drowned = gradients + 300 * gradients.std() * torch.randn_like(gradients)
        weights = gradient_ratio(messages, drowned).weights
        cosines.append(torch.cosine_similarity(weights, secret.decoding, dim=0).abs())
    assert torch.stack(cosines).median() < 0.8


def test_bad_inputs_are_said() -> None:
    with pytest.raises(ValueError, match="the gradients are all zero"):
        gradient_ratio(torch.ones(3, 1, 2, 2), torch.zeros(3, 1, 2, 2))
    with pytest.raises(ValueError, match=r"shapes \(3, 1, 2, 2\) and \(2, 1, 2, 2\)"):
        gradient_ratio(torch.ones(3, 1, 2, 2), torch.zeros(2, 1, 2, 2))
