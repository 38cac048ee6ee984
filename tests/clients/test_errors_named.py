"""What a client says of inputs, weights and gradients that fit nothing or are not finite."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from flwr_splitmix.clients import ClientError, SplitClient, UShapeClient
from flwr_splitmix.clients.client import WrappedError
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import DPForward, Hiding, SentBatch
from flwr_splitmix.links import LinkError
from flwr_splitmix.mixers import FullShare
from flwr_splitmix.strategies import PSL
from tests.clients.own_segments import DATA, INPUTS, LABELS, ORDER, Lower, Part, smashed_of


class Converting(Lower):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.float())


class Reciprocal(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return 1 / inputs


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs.sign() + 2) * self.factor / 10


class Failing(Lower):
    def forward(self, inputs: Tensor) -> Tensor:
        raise RuntimeError("no such patient")


def messages_of(inputs: Tensor) -> Any:
    """Return the first messages of a client of the U shape."""
    data: Any = TensorDataset(inputs, LABELS)
    client = UShapeClient(Part(), Part(3, 6), data, batch_size=4, device="cpu")
    client.attach(ORDER, None)
    return client.run("encode", {"number": 0, "progress": 0.0, "gradient": None})["messages"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.uint8, torch.int64])
def test_inputs_of_another_dtype_are_named_with_the_remedy(dtype: torch.dtype) -> None:
    data = TensorDataset(INPUTS.to(dtype), LABELS)
    name = str(dtype).removeprefix("torch.")
    message = rf"inputs are {name}, the lower segment float32: convert .* with \.float\(\)$"
    with pytest.raises(ClientError, match=message):
        smashed_of(Lower(), data)
    _, smashed = smashed_of(Converting(), data)
    assert smashed.dtype == torch.float32


def test_numbers_that_are_not_finite_are_traced_to_data_weights_or_segment() -> None:
    """The server that rejects an upload cannot tell which of the three it is."""
    holes = torch.where(torch.rand(8, 5) < 0.5, torch.nan, INPUTS)
    with pytest.raises(ClientError, match="its data have NaN or infinite numbers: replace them"):
        smashed_of(Lower(), TensorDataset(holes, LABELS))
    diverged = Lower()
    with torch.no_grad():
        diverged.linear.weight[0, 0] = torch.inf
    with pytest.raises(ClientError, match=r"weights of its lower segment are .* has diverged"):
        smashed_of(diverged)
    with pytest.raises(ClientError, match="makes NaN or infinite numbers of finite data"):
        smashed_of(Lower(Reciprocal()), TensorDataset(torch.zeros(8, 5), LABELS))
    with pytest.raises(ClientError, match="its data have NaN or infinite numbers: replace them"):
        messages_of(holes)
    large = Lower(Times(1e38))  # finite, though their sum is not
    assert smashed_of(large)[1].isfinite().all()


class Sum(Lower):
    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.shape[1] != 5:
            raise RuntimeError(f"bad shape: {inputs}")
        return super().forward(inputs)


@pytest.mark.parametrize(
    ("segment", "more"),
    [
        (Lower, r": (addmm: )?mat1 and mat2 shapes cannot be multiplied \(2x7 and 5x6\)$"),
        (Sum, "$"),  # its words may hold data
    ],
)
def test_inputs_of_another_shape_are_named(segment: type[Lower], more: str) -> None:
    """Also with test data alone."""
    wide: Any = TensorDataset(torch.randn(8, 7), LABELS)
    message = r"inputs \(7,\) do not fit the lower segment"
    with pytest.raises(ClientError, match=rf"^{message}"):
        smashed_of(segment(), wide)
    client = SplitClient(segment(), DATA, batch_size=4, test_data=wide, device="cpu")
    client.attach(ORDER, None)
    with pytest.raises(ClientError, match=rf"^test {message}{more}"):
        client.run("encode_test", {"kind": "federated", "start": 0, "stop": 2})


def test_of_shapes_in_others_code_this_sides_log_has_the_whole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server is told no text that may hold data; whoever reads this log has the data."""
    wide: Any = TensorDataset(torch.randn(8, 7), LABELS)
    client = SplitClient(Sum(), wide, batch_size=4, device="cpu")
    with pytest.raises(LinkError, match=r"inputs \(7,\) do not fit the lower segment$"):
        PSL(Part(3, 6), num_classes=3, device="cpu").fit([client], num_rounds=1)
    (failed,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "do not fit the lower segment: bad shape: tensor" in failed.getMessage()
    assert failed.exc_info is not None
    assert "in forward" in caplog.text


def headed(inputs: Tensor, head: nn.Module | None = None, **tests: Any) -> UShapeClient:
    data: Any = TensorDataset(inputs, LABELS)
    tail = Part(3, 6)
    return UShapeClient(head or Part(), tail, data, batch_size=4, device="cpu", **tests)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (INPUTS.double(), r"inputs are float64, the head float32: convert .* with \.float\(\)$"),
        (INPUTS.long().abs(), r"inputs are int64, the head float32: convert .* with \.float\(\)$"),
        (
            torch.randn(8, 7),
            r"inputs \(7,\) do not fit the head: .*mat1 and mat2 shapes .* \(4x7 and 5x6\)$",
        ),
    ],
    ids=["float64", "int64", "wide"],
)
def test_inputs_that_do_not_fit_a_head_are_named_with_the_remedy(
    inputs: Tensor, message: str
) -> None:
    with pytest.raises(ClientError, match=rf"^{message.replace('4x7', '1x7')}"):
        headed(inputs).attach(ORDER, None)
    client = headed(INPUTS, test_data=TensorDataset(inputs, LABELS))
    client.attach(ORDER, None)
    with pytest.raises(ClientError, match=rf"^test {message}"):
        client.run("encode_test", {"kind": "federated", "start": 0, "stop": 4})


def test_where_an_epsilon_is_kept_the_server_is_not_told_shapes() -> None:
    """They are a record's."""
    wide = TensorDataset(torch.randn(8, 7), LABELS)
    client = headed(INPUTS, test_data=wide, hiding=DPForward())
    client.attach(ORDER, None)
    with pytest.raises(WrappedError) as error:
        client.run("encode_test", {"kind": "federated", "start": 0, "stop": 4})
    assert str(error.value) == "test inputs do not fit the head; the log of its node says more"
    assert re.search(r"^test inputs \(7,\) do not fit the head: (addmm: )?mat1", error.value.whole)


class Growing(Dataset[Any]):
    """Its later inputs are of another type."""

    def __len__(self) -> int:
        return 8

    def batch(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        inputs = INPUTS[indices]
        return inputs if len(indices) == 1 else inputs.double(), LABELS[indices]


class Mixed(Part):
    """A head of texts that computes in two types."""

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        hidden = super().forward(inputs.double() if self.training else inputs.float(), mask)
        return hidden.expand(-1, inputs.shape[1], -1)


def test_inputs_of_a_step_that_do_not_fit_the_head_are_named() -> None:
    client = UShapeClient(Part(), Part(3, 6), Growing(), batch_size=4, device="cpu")
    client.attach(ORDER, None)
    with pytest.raises(ClientError, match=r"^inputs are float64, the head float32: convert"):
        client.run("encode", {"number": 0, "progress": 0.0, "gradient": None})
    ids = headed(INPUTS.long().abs(), Mixed())
    ids.attach(ORDER, None)
    with pytest.raises(RuntimeError, match="got Double and Float"):  # no float is the remedy
        ids.run("encode", {"number": 0, "progress": 0.0, "gradient": None})


def test_an_error_of_ones_own_obfuscate_is_not_taken_for_the_heads() -> None:
    class Own(Hiding):
        def obfuscate(self, batch: MaskedBatch) -> SentBatch:
            sent = super().obfuscate(batch)
            return replace(sent, messages=[sent.messages[0] @ torch.ones(7, 7)])

    client = UShapeClient(Part(), Part(3, 6), DATA, batch_size=4, hiding=Own(), device="cpu")
    client.attach(ORDER, None)
    with pytest.raises(RuntimeError, match=r"^(mm: )?mat1 and mat2 shapes"):
        client.run("encode", {"number": 0, "progress": 0.0, "gradient": None})


def test_test_images_of_another_size_are_named() -> None:
    segment = Lower(nn.Sequential(nn.Flatten(), nn.Linear(4, 5)), input_shape=(1, 2, 2))
    images: Any = TensorDataset(torch.randn(8, 1, 2, 2), LABELS)
    large: Any = TensorDataset(torch.randn(8, 1, 3, 3), LABELS)
    client = SplitClient(segment, images, batch_size=4, test_data=large, device="cpu")
    client.attach(ORDER, None)
    with pytest.raises(ClientError, match=r"images have shape \(1, 3, 3\), the lower segment exp"):
        client.run("encode_test", {"kind": "federated", "start": 0, "stop": 2})


class Bounded(Lower):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).tanh()


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_an_infinite_input_behind_finite_smashed_data_costs_the_step_and_is_named(
    micro_batches: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the weights would become NaN, which looks like training that diverged."""
    holes = torch.where(torch.arange(40).view(8, 5) == 7, torch.inf, INPUTS)
    client = SplitClient(Bounded(), TensorDataset(holes, LABELS), batch_size=8, device="cpu")
    other = SplitClient(Bounded(), DATA, batch_size=8, device="cpu")
    upper = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    options: Any = {"micro_batches": micro_batches, "server_update": "sum", "device": "cpu"}
    strategy = PSL(upper, num_classes=3, **options)
    strategy.fit([client, other], 1)
    assert strategy.rows[0]["clients_failed"] == 1
    assert "its data have NaN or infinite numbers: replace them" in caplog.text
    assert all(bool(weight.isfinite().all()) for weight in client.segment.parameters())


class Root(Lower):
    def forward(self, inputs: Tensor) -> Tensor:
        return (0 * super().forward(inputs)).sqrt()


def test_a_gradient_that_is_not_finite_costs_the_step() -> None:
    client = SplitClient(Root(), DATA, batch_size=8, device="cpu")
    client.attach(ORDER, None)
    plan = [FullShare().to_wire()]
    arguments: dict[str, Any] = {"progress": 0.0, "gradient": None, "plan": plan}
    smashed = client.run("step", {"number": 0, **arguments})["smashed"][0]
    arguments["gradient"] = [torch.ones_like(smashed)]
    with pytest.raises(ClientError, match="the gradient of its lower segment has NaN or infinite"):
        client.run("step", {"number": 1, **arguments})
    assert client.steps == 0


def test_other_errors_of_a_segment_are_its_own() -> None:
    """Only a client's own words reach a server: a segment's message might hold data."""
    with pytest.raises(RuntimeError, match="no such patient"):
        smashed_of(Failing(), TensorDataset(INPUTS.double(), LABELS))
