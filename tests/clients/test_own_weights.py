"""Weights and buffers of segments of somebody's own: what is sent, kept or refused in words."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from flwr_splitmix.clients import ClientError, Order, PrivacyBudget, SplitClient
from tests.clients.own_segments import DATA, INPUTS, ORDER, Lower, smashed_of


def test_weights_unfrozen_after_the_client_was_made_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They would otherwise stay as they are, without a word."""
    data: Any = TensorDataset(torch.randn(8, 4, 3), torch.arange(8) % 2)
    client = SplitClient(nn.Linear(3, 3).requires_grad_(False), data, batch_size=4, device="cpu")
    client.attach(Order(0, 1, 1, 1), None)
    assert not caplog.records
    client.segment.requires_grad_(True)
    client.attach(Order(0, 1, 1, 1), None)
    assert (
        "client 0: its lower segment has weights to train that its optimizer does not know"
        in caplog.text
    )


class Counting(Lower):
    """Counts its calls in place, in a new tensor and in one that grows; and has a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(2))
        self.register_buffer("grown", torch.zeros(0), persistent=False)
        self.register_buffer("constant", torch.zeros(1).expand(4), persistent=False)
        self.register_buffer("missing", torch.full((2,), torch.nan))

    def forward(self, inputs: Tensor) -> Tensor:
        calls = self.get_buffer("calls").add_(1)
        self.replaced = self.get_buffer("replaced") + 1
        if not self.training:
            self.get_buffer("grown").resize_(3).fill_(1.0)
        return super().forward(inputs) / (1 + calls)


def test_the_description_of_a_segment_leaves_its_buffers_as_they_were() -> None:
    """Each round would otherwise train with others than the same model that is not split."""
    segment = Counting()
    before = copy.deepcopy(segment)
    client = SplitClient(segment, DATA, batch_size=4, device="cpu")
    client.attach(ORDER, None)
    for (name, buffer), (_, expected) in zip(
        segment.named_buffers(), before.named_buffers(), strict=True
    ):
        assert buffer.shape == expected.shape, name
        assert torch.equal(buffer.nan_to_num(7.0), expected.nan_to_num(7.0)), name


class Deleting(Lower):
    """Deletes a buffer after its first use, and keeps one that torch lets nothing change."""

    def __init__(self) -> None:
        super().__init__()
        with torch.inference_mode():
            table = torch.ones(3)
        self.register_buffer("table", table, persistent=False)
        self.register_buffer("spare", torch.zeros(3), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        if hasattr(self, "spare"):
            del self.spare
        with torch.inference_mode():
            self.get_buffer("table").add_(1)
        return super().forward(inputs) + self.get_buffer("table").clone()


def test_buffers_that_torch_lets_nothing_change_are_replaced() -> None:
    """One that is deleted stays so."""
    segment = Deleting()
    client = SplitClient(segment, DATA, batch_size=4, device="cpu")
    assert client.attach(ORDER, None)["width"] == 3
    assert torch.equal(segment.get_buffer("table"), torch.ones(3))
    assert not hasattr(segment, "spare")


def test_weights_without_a_shape_are_refused_at_once() -> None:
    segment = nn.Sequential(nn.LazyLinear(6), nn.Unflatten(1, (2, 3)))
    with pytest.raises(ClientError, match=r"0\.weight has no shape yet .* run one batch through"):
        SplitClient(segment, DATA)
    segment(INPUTS)
    smashed_of(segment)


@pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, INPUTS[:2])])  # type: ignore[no-untyped-call]
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_segment_is_taken_and_its_copy_refused_with_the_remedy(make: Any) -> None:
    """Torch makes weights of the copy that no optimizer takes, and says so of a non-leaf Tensor."""
    segment = make(nn.Sequential(nn.Linear(5, 6), nn.Unflatten(1, (2, 3))))
    described, smashed = smashed_of(segment)
    assert (described["patches"], described["width"]) == (2, 3)
    assert smashed.shape == (4, 2, 3)
    with pytest.raises(ValueError, match=r"segment has weights .* such as 0\.weight: .* each copy"):
        SplitClient(copy.deepcopy(segment), DATA)


def test_weights_of_float16_are_warned_of_once_for_all_clients(
    caplog: pytest.LogCaptureFixture,
) -> None:
    half = nn.Sequential(OrderedDict(first=nn.Linear(5, 6), second=nn.Unflatten(1, (2, 3)))).half()
    SplitClient(copy.deepcopy(half).to(torch.bfloat16), DATA, device="cpu")
    SplitClient(copy.deepcopy(half).requires_grad_(False), DATA, device="cpu")
    assert "float16" not in caplog.text
    for _ in range(3):
        SplitClient(copy.deepcopy(half), DATA, device="cpu")
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("weights of float16 are trained (first.weight, ...): ")
    assert "torch.autocast, with .float() on the output" in warning


def test_state_that_is_no_tensor_is_refused_at_once() -> None:
    class Extra(Lower):
        def get_extra_state(self) -> Any:
            return {"calls": 1}

    with pytest.raises(ClientError, match="state_dict has _extra_state, a dict; only tensors"):
        SplitClient(Extra(), DATA)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("sparse", [Tensor.to_sparse, Tensor.to_sparse_csr])
def test_a_sparse_buffer_is_refused_at_once_if_it_would_be_sent(sparse: Any) -> None:
    """NumPy's and torch's messages name neither the buffer nor a remedy."""
    segment = Lower()
    segment.register_buffer("graph", sparse(torch.eye(3)))
    with pytest.raises(ClientError, match=r"graph is a sparse tensor, .* persistent=False"):
        SplitClient(segment, DATA)
    segment.register_buffer("graph", sparse(torch.eye(3)), persistent=False)
    smashed_of(segment)


def test_a_buffer_that_numpy_lacks_a_type_for_is_refused_at_once() -> None:
    segment = Lower()
    segment.register_buffer("scale", torch.zeros(3).to(torch.float8_e4m3fn))
    with pytest.raises(ClientError, match=r"scale is of torch\.float8_e4m3fn, .* in float32, or"):
        SplitClient(segment, DATA)
    segment.register_buffer("scale", torch.zeros(3).to(torch.float8_e4m3fn), persistent=False)
    smashed_of(segment)


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_a_quantized_segment_is_refused_with_a_remedy_that_it_has() -> None:
    """The advice to return a tensor as extra state was for modules of one's own."""
    quantization: Any = torch.ao.quantization
    segment = quantization.quantize_dynamic(Lower(), {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(ClientError, match=r"of a quantized module, .* floating weights"):
        SplitClient(segment, DATA)


def test_buffers_that_a_budget_does_not_bound_come_back() -> None:
    """A constant with NaN, and a counter above all weights; but no other constant."""
    segment = Lower()
    segment.register_buffer("fill", torch.tensor([torch.nan, 1.0]))
    segment.register_buffer("seen", torch.tensor(2_000_000))
    budget = PrivacyBudget(max_epsilon=50.0, allow_averaging=True)
    client = SplitClient(segment, DATA, batch_size=4, device="cpu", privacy=budget)
    client.attach(ORDER, {**client.weights(), "seen": torch.tensor(3_000_000)})
    with pytest.raises(ClientError, match="the server's lower segment: fill has NaN"):
        client.attach(ORDER, {**client.weights(), "fill": torch.tensor([torch.nan, 2.0])})
