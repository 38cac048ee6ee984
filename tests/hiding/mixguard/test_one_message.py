"""One message carries the gradient: right in the mean, and silent on the decoding weights."""

from __future__ import annotations

import pytest
import torch

from flwr_splitmix.attacks.texts.gradient_ratio import gradient_ratio
from flwr_splitmix.hiding.mixguard import draw_secret, one_message
from flwr_splitmix.seeding import seeded_secrets

DRAWS = 20_000


def gradients_of(weights: list[float]) -> torch.Tensor:
    """Return collinear gradients (m, b, T, d), as MixGuard's are."""
    base = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.tensor(weights, dtype=torch.float64)[:, None, None, None] * base


@pytest.mark.parametrize("each", [False, True])
def test_its_mean_over_many_draws_is_what_it_stands_for(each: bool) -> None:
    gradients = gradients_of([1.5, -0.7, 0.2])
    total, squares = torch.zeros_like(gradients), torch.zeros_like(gradients)
    with seeded_secrets():
        torch.manual_seed(1)
        for _ in range(DRAWS):
            drawn = one_message(gradients, per_sample=each)
            total, squares = total + drawn, squares + drawn.square()
    mean = total / DRAWS
    error = ((squares / DRAWS - mean.square()) / DRAWS).sqrt()
    assert ((mean - gradients).abs() <= 5 * error).all()
    # What such a test can see: a draw that is not weighted is far off.
    assert ((mean / 3 - gradients).abs() > 5 * error).all()


@pytest.mark.parametrize("each", [False, True])
def test_one_message_carries_it_and_its_size_is_always_the_same(each: bool) -> None:
    gradients = gradients_of([1.5, -0.7, 0.2])
    norms = gradients.flatten(2).norm(dim=2)
    carriers = set()
    for _ in range(60):
        sizes = one_message(gradients, per_sample=each).flatten(2).norm(dim=2)
        assert (sizes > 0).sum(0).tolist() == [1, 1]
        torch.testing.assert_close(sizes.sum(0), norms.sum(0))
        carriers.add(tuple((sizes > 0).double().argmax(0).tolist()))
    together = {carrier for carrier in carriers if len(set(carrier)) == 1}
    assert (carriers == together) is not each
    assert len(carriers) > 1


def test_the_ratio_of_gradients_tells_one_message_and_not_the_weights() -> None:
    secret = draw_secret(3, 3, sampler="convex", support_norm=2.0)
    target = torch.randn(1, 6, 32, dtype=torch.float64)
    supports = torch.randn(2, 1, 6, 32, dtype=torch.float64)
    messages = secret.encode(secret.arrange(target, supports))
    gradients = secret.decoding[:, None, None, None] * torch.randn(1, 6, 32, dtype=torch.float64)

    def likeness(returned: torch.Tensor) -> float:
        estimate = gradient_ratio(messages, returned).estimate
        return abs(float(torch.cosine_similarity(estimate.flatten(), target.flatten(), dim=0)))

    alone = [
        abs(float(torch.cosine_similarity(message.flatten(), target.flatten(), dim=0)))
        for message in messages
    ]
    assert likeness(gradients) > 0.999
    reached = [likeness(one_message(gradients)) for _ in range(10)]
    assert all(min(abs(one - similarity) for similarity in alone) < 1e-9 for one in reached)
    assert sum(reached) / len(reached) < 0.9


def test_without_a_gradient_nothing_is_made_up() -> None:
    assert not one_message(torch.zeros(3, 2, 4, 5)).any()
    some = gradients_of([0.0, 2.0, 0.0]).float()
    for _ in range(20):  # never a message that has none
        assert torch.equal(one_message(some), some)
