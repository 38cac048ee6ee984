"""Weights that a client compares and checks, of any dtype and shape."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flwr_splitmix import SplitClient
from flwr_splitmix.clients import ClientError, PrivacyBudget
from flwr_splitmix.clients.guards.first_weights import digest_of
from flwr_splitmix.clients.requests import check_numbers
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.strategies import DPSL
from tests.clients.own_segments import DATA, Lower


def test_a_buffer_without_numbers_does_not_end_a_client_with_a_budget() -> None:
    """Torch's observers have such buffers before the first batch."""
    segment = Lower()
    segment.register_buffer("extremes", torch.empty(0))
    budget = PrivacyBudget(max_epsilon=1e6)
    client = SplitClient(segment, DATA, batch_size=4, device="cpu", privacy=budget)
    upper = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    noise = GaussianNoise(sigma_s=3.0, sigma_y=3.0)
    strategy = DPSL(upper, num_classes=3, noise=noise, device="cpu", steps_per_round=1)
    strategy.fit([client], 1)
    epsilon = strategy.epsilon()
    assert epsilon is not None
    assert 0 < epsilon < 1e6


def test_weights_of_any_shape_have_a_digest() -> None:
    one = torch.ones(1)
    shapes = [one[:0].as_strided((0,), (0,)), one.as_strided((1,), (0,)), one.expand(4), one[0]]
    assert len({digest_of({"w": weights}) for weights in shapes[1:]}) == 2
    assert digest_of({"w": shapes[0]}) != digest_of({"w": shapes[1]})


@pytest.mark.parametrize("wrong", [complex(0, float("inf")), complex(float("nan"), 0), 1e9 + 0j])
def test_complex_numbers_from_a_server_are_checked(wrong: complex) -> None:
    weights = torch.tensor([1 + 1j, wrong], dtype=torch.complex64)
    with pytest.raises(ClientError, match="weights: gate has"):
        check_numbers("weights:", {"gate": weights}, bounded=True)
    check_numbers("weights:", {"gate": weights[:1]}, bounded=True)
