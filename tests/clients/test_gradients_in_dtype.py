"""Gradients of a server count in the dtype of the client: noise hides no weights of NaN."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from flwr_splitmix.clients import ClientError, SplitClient
from flwr_splitmix.clients.finite import zero_unless_finite
from flwr_splitmix.clients.guards.privacy_budget import PrivacyBudget
from flwr_splitmix.mixers import FullShare, Share
from flwr_splitmix.testing.laws import sgd
from tests.clients.guarded import DELTA, ORDER, ask, noisy

TOKENS, WIDTH = 4, 3


class Narrow(nn.Module):
    """A lower segment of one dtype, of inputs of any."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = nn.Linear(2, WIDTH, dtype=dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        smashed: Tensor = self.layer(inputs.to(self.layer.weight.dtype))
        return smashed


def client_of(dtype: torch.dtype, **budget: Any) -> SplitClient:
    source = torch.Generator().manual_seed(0)
    data: Any = TensorDataset(
        torch.rand(6, TOKENS, 2, generator=source), torch.randint(3, (6,), generator=source)
    )
    client = SplitClient(
        Narrow(dtype), data, batch_size=3, optimizer=sgd(0.1), device="cpu",
        privacy=PrivacyBudget(delta=DELTA, **budget),
    )  # fmt: skip
    client.attach(ORDER, None)
    return client


def weights(client: SplitClient) -> list[Tensor]:
    return [weight.detach().clone() for weight in client.segment.parameters()]


def same(client: SplitClient, before: list[Tensor]) -> bool:
    return all(map(torch.equal, client.segment.parameters(), before))


def full(value: float, dtype: torch.dtype) -> Tensor:
    return torch.full((3, TOKENS, WIDTH), value, dtype=dtype)


@pytest.mark.parametrize(
    ("dtype", "share", "gradient"),
    [
        (torch.float32, noisy(FullShare()), full(1e300, torch.float64)),
        (torch.float32, FullShare(), full(1e300, torch.float64)),
        (torch.float16, FullShare(), full(9e5, torch.float64)),
        (torch.float16, FullShare(), full(9e5, torch.float32)),
    ],
)
def test_a_gradient_that_is_infinite_in_the_dtype_of_what_was_sent_is_refused(
    dtype: torch.dtype, share: Share, gradient: Tensor
) -> None:
    """Finite as it comes, it would make all weights NaN once it is converted."""
    client = client_of(dtype)
    before = weights(client)
    ask(client, 0, share)
    with pytest.raises(ClientError, match="gradient of pass 0 has NaN or infinite numbers"):
        ask(client, 1, share, gradient=[gradient])
    assert same(client, before)


@pytest.mark.parametrize(
    ("dtype", "budget", "value"),
    [
        (torch.float32, {}, 3e38),
        (torch.float32, {}, 1e30),
        (torch.float16, {}, 9e5),
        (torch.float16, {"max_epsilon": 1e6}, 9e5),
    ],
)
def test_where_noise_hides_data_a_gradient_that_overflows_trains_nothing(
    dtype: torch.dtype, budget: dict[str, Any], value: float, caplog: pytest.LogCaptureFixture
) -> None:
    client, share = client_of(dtype, **budget), noisy(FullShare())
    before = weights(client)
    first = ask(client, 0, share)
    for number in (1, 2):
        reply = ask(client, number, share, gradient=[full(value, torch.float32)])
        assert reply.keys() == first.keys()
        assert reply["smashed"][0].isfinite().all()
        assert same(client, before)
    # The server is told nothing, neither by an error nor by the number of steps.
    assert client.release()[1]["num-steps"] == 2
    warnings = [line for line in caplog.messages if "so that no step is taken" in line]
    assert warnings == [
        "the gradient of a client's lower segment has NaN or infinite numbers, so that no step is "
        "taken: training has diverged, or the server sends far too large numbers"
    ]


def test_the_client_learns_again_from_the_next_fine_gradient() -> None:
    client = client_of(torch.float32)
    before = weights(client)
    for number, value in enumerate([None, 3e38, 0.1]):
        gradient = None if value is None else [full(value, torch.float32)]
        ask(client, number, noisy(FullShare()), gradient=gradient)
    assert not same(client, before)
    assert all(weight.isfinite().all() for weight in client.segment.parameters())


@pytest.mark.parametrize("spoils", [float("nan"), float("inf"), 3e38])
def test_on_an_accelerator_such_gradients_are_zeros(spoils: float) -> None:
    """Nobody waits for it to leave the step out."""
    segment = Narrow(torch.float32)
    for parameter in segment.parameters():
        parameter.grad = torch.ones_like(parameter)
    zero_unless_finite(segment)
    assert all(p.grad is not None and (p.grad == 1).all() for p in segment.parameters())
    segment.layer.bias.grad = torch.full_like(segment.layer.bias, spoils)
    zero_unless_finite(segment)
    assert all(p.grad is not None and (p.grad == 0).all() for p in segment.parameters())
    zero_unless_finite(nn.Identity())
