"""Buffers that grow in training are refused in the first round, as no later one could use them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.clients import ClientError, SplitClient, UShapeClient
from flwr_splitmix.links import LinkError
from flwr_splitmix.strategies import PSL, SFL, USplitSL
from tests.clients.own_segments import DATA, Lower, Part


class Seen(nn.Module):
    """Keeps the mean of every example that it has seen in training."""

    seen: Tensor

    def __init__(self, *, persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(0), persistent=persistent)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.seen = torch.cat([self.seen, inputs.detach().flatten(1).mean(1)])
        return inputs


class Counting(nn.Module):
    """Makes its buffer in the first forward pass, of one shape."""

    count: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", None)

    def forward(self, inputs: Tensor) -> Tensor:
        self.count = torch.zeros(3) if self.count is None else self.count + 1
        return inputs


class SeeingPart(Part):
    def __init__(self, width: int = 6, inputs: int = 5) -> None:
        super().__init__(width, inputs)
        self.first = Seen()

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        return super().forward(self.first(inputs), mask)


class Middle(nn.Linear):
    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(inputs)


def clients_of(first: type[nn.Module] = Seen, **options: Any) -> list[SplitClient]:
    return [
        SplitClient(Lower(first(**options)), DATA, batch_size=4, device="cpu") for _ in range(2)
    ]


def upper() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 3))


REFUSED = (
    r"the shapes within the {} have changed in this round: it has {} \(\d+,\) in place of \(0,\); "
    r".* fixed size, or register it with persistent=False"
)


@pytest.mark.parametrize("kind", [PSL, SFL])
def test_a_buffer_of_a_lower_segment_that_grows_is_refused_in_the_first_round(kind: Any) -> None:
    """Later, averaging or a resumed run would blame other weights."""
    where = r"first\.seen"
    strategy = kind(upper(), num_classes=3, device="cpu")
    with pytest.raises(LinkError, match="round 1: .*" + REFUSED.format("lower segment", where)):
        strategy.fit(clients_of(), num_rounds=2)


@pytest.mark.parametrize("name", ["head", "tail"])
def test_a_buffer_of_head_or_tail_that_grows_is_refused_in_the_first_round(name: str) -> None:
    head, tail = (SeeingPart(), Part(3, 6)) if name == "head" else (Part(), SeeingPart(3, 6))
    clients = [UShapeClient(head, tail, DATA, batch_size=4, device="cpu")]
    where = rf"{name}\.first\.seen"
    with pytest.raises(LinkError, match="round 1: .*" + REFUSED.format("head and tail", where)):
        USplitSL(Middle(6, 6), device="cpu").fit(clients, num_rounds=2)


def test_one_that_is_not_kept_may_grow_and_one_may_be_made_by_the_first_batch() -> None:
    for clients in (clients_of(persistent=False), clients_of(Counting)):
        strategy = PSL(upper(), num_classes=3, device="cpu")
        strategy.fit(clients, num_rounds=2)
        assert [row["clients_alive"] for row in strategy.rows] == [2, 2]


def test_a_kept_state_that_does_not_fit_is_not_called_the_servers() -> None:
    client, other = clients_of()
    other.segment.first.seen = torch.zeros(7)  # type: ignore[union-attr]
    message = (
        r"^this client's kept lower segment does not fit .*: it has first\.seen \(7,\) in place"
    )
    with pytest.raises(ClientError, match=message):
        client.restore(*other.state())


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_observers_of_quantization_without_a_first_batch_get_the_remedy() -> None:
    """NumPy shares the memory of weights that leave; torch's error was blamed on the inputs."""

    def observed(*, ran: bool) -> nn.Module:
        layers = nn.Sequential(nn.Linear(5, 6), nn.Unflatten(1, (2, 3))).train()
        quantization: Any = torch.ao.quantization
        layers.qconfig = quantization.get_default_qat_qconfig("x86")
        prepared: nn.Module = quantization.prepare_qat(layers)
        if ran:
            prepared(DATA.tensors[0])
        return prepared

    for ran in (True, False):
        segment = observed(ran=ran)
        client = SplitClient(segment, DATA, batch_size=4, device="cpu")
        strategy = PSL(upper(), num_classes=3, device="cpu")
        if ran:
            strategy.fit([client], num_rounds=2)
            continue
        with pytest.raises(LinkError, match="changes the size of a buffer: run one batch through"):
            strategy.fit([client], num_rounds=1)
