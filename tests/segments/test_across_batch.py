"""Layers across a batch are recognised in every form, and nothing else is taken for them."""

from __future__ import annotations

import os
import threading

import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.segments import PatchShuffle
from flwr_splitmix.segments.across_batch import mixes_examples, needs_whole_batch

FORMS = [
    nn.BatchNorm1d(4),
    nn.BatchNorm2d(4),
    nn.BatchNorm3d(4),
    nn.SyncBatchNorm(4),
    nn.LazyBatchNorm2d(),
]
OTHERS = [nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, track_running_stats=True)]


class Centred(nn.Module):
    """Normalises over the batch in its own way, and says so."""

    across_batch = True

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images - images.mean(0)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: type(form).__name__)
def test_a_form_is_found_however_deep_it_lies(form: nn.Module) -> None:
    assert needs_whole_batch(nn.Sequential(nn.Identity(), nn.Sequential(form)))


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: type(other).__name__)
def test_what_keeps_examples_apart_is_no_batch_norm(other: nn.Module) -> None:
    assert not needs_whole_batch(nn.Sequential(other))


def test_models_of_timm_with_a_form_of_their_own_are_found() -> None:
    import timm

    assert needs_whole_batch(timm.create_model("efficientnet_b0"))
    assert not needs_whole_batch(timm.create_model("vit_tiny_patch16_224", depth=1))


@pytest.mark.parametrize(
    ("module", "expected"),
    [(nn.BatchNorm2d(4), "BatchNorm"), (nn.GroupNorm(2, 4), ""), (Centred(), "Centred")],
    ids=str,
)
def test_the_answer_is_whether_one_example_moves_the_others(
    module: nn.Module, expected: str
) -> None:
    images = torch.randn(3, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    other = images.clone()
    other[0] *= 10
    moved = not torch.equal(module(images)[1:], module(other)[1:])
    assert needs_whole_batch(module) == expected
    assert moved == bool(expected)


class OfFunctions(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.batch_norm(images, None, None, training=True)


class Unseeded(nn.Module):
    """Draws from the operating system, as secret shuffles do."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images + int.from_bytes(os.urandom(2), "big")


class Recurrent(nn.GRU):
    def forward(self, inputs: Tensor) -> Tensor:  # type: ignore[override]
        states: Tensor = super().forward(inputs)[0]
        return states

    def __init__(self, width: int, **options: bool) -> None:
        super().__init__(width, width, **options)


class Causal(nn.TransformerEncoderLayer):
    """Looks at its example and those before it."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 2, 8)

    def forward(self, inputs: Tensor) -> Tensor:  # type: ignore[override]
        mask = nn.Transformer.generate_square_subsequent_mask(len(inputs), dtype=inputs.dtype)
        return super().forward(inputs, src_mask=mask)


class Difference(nn.Module):
    """Subtracts the example before."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs - torch.cat([0 * inputs[:1], inputs[:-1]])


class Next(nn.Module):
    """Adds a little of the example behind."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + 0.01 * torch.cat([inputs[1:], 0 * inputs[:1]])


class Caching(nn.Module):
    """Makes a table of positions on its first call."""

    def forward(self, inputs: Tensor) -> Tensor:
        if not hasattr(self, "places"):
            self.register_buffer("places", torch.arange(inputs.shape[1])[:, None])
        return inputs + self.get_buffer("places")


class OwnStatistics(nn.Module):
    """Centres by the mean over a dimension, and counts its calls."""

    def __init__(self, by: int = 0) -> None:
        super().__init__()
        self.by = by
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls: Tensor
        self.calls += 1
        return inputs - inputs.mean(self.by, keepdim=True) + self.calls


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.BatchNorm1d(4), True),
        (OfFunctions(), True),
        (nn.TransformerEncoderLayer(4, 2, 8), True),
        (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), False),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout()), False),
        (nn.GroupNorm(2, 4), False),
        (nn.LayerNorm(4).to(torch.bfloat16), False),
        (Unseeded(), False),
        (Recurrent(4), True),
        (Recurrent(4, batch_first=True), False),
        (Causal(4), True),
        (Difference(), True),
        (Next(), True),
        (nn.Sequential(Caching(), Recurrent(4)), True),
        (OwnStatistics(), True),
        (OwnStatistics(by=1), False),
        (PatchShuffle(), False),
        (nn.Sequential(PatchShuffle(), Recurrent(4)), True),
    ],
    ids=str,
)
def test_a_segment_is_asked_itself(module: nn.Module, expected: bool) -> None:
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    inputs = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    drawn, module.training = torch.get_rng_state(), False
    assert bool(mixes_examples(module, inputs)) == expected
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not any(part.training for part in [module])
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("number", [1, 4])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_examples_that_are_all_alike_hide_nothing(number: int, value: float) -> None:
    """Such as four black images at the beginning of the data."""
    images = torch.full((number, 4, 4), value)
    assert mixes_examples(nn.TransformerEncoderLayer(4, 2, 8), images)
    assert mixes_examples(OfFunctions(), images)
    assert not mixes_examples(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), images)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("place", ["bias", "weight"])
def test_weights_of_somebodys_choice_hide_nothing(dtype: torch.dtype, place: str) -> None:
    """A large bias makes every difference small beside the largest output."""
    segment = nn.TransformerEncoderLayer(4, 2, 8, dtype=dtype)
    with torch.no_grad():
        if place == "bias":
            segment.norm2.bias[0] = 1e6
        else:
            segment.norm2.bias.fill_(1e6)
            segment.self_attn.out_proj.weight.fill_(1e-30)
    assert mixes_examples(segment, torch.randn(4, 4, 4, dtype=dtype))


@pytest.mark.parametrize("ids", [[[1, 2, 3, 4], [1, 2, 3, 5]], [[7, 7, 7, 7]], [[0, 0, 0, 0]]])
def test_ids_are_replaced_by_ids_of_the_table(ids: list[list[int]]) -> None:
    table = nn.Embedding(8, 4)
    assert mixes_examples(nn.Sequential(table, Recurrent(4)), torch.tensor(ids))
    apart = nn.Sequential(table, Recurrent(4, batch_first=True))
    assert not mixes_examples(apart, torch.tensor(ids))


class Categories(nn.Module):
    """Looks up the first number of each example, which is one of three classes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 4)
        self.rest = Recurrent(4)

    def forward(self, inputs: Tensor) -> Tensor:
        looked: Tensor = self.rest(self.table(inputs[:, :1].long()) + inputs[:, 1:, None])
        return looked


def test_a_number_that_is_an_index_stays_in_its_range(caplog: pytest.LogCaptureFixture) -> None:
    inputs = torch.cat([torch.tensor([[0.0], [2.0], [1.0]]), 100 * torch.rand(3, 5)], 1)
    assert mixes_examples(Categories(), inputs)
    assert not caplog.records


def test_experts_that_round_otherwise_with_other_examples_do_not_mix_them() -> None:
    class Experts(nn.Module):
        """Runs each token through one of two layers, alone or with whichever others come there."""

        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))

        def forward(self, inputs: Tensor) -> Tensor:
            tokens = inputs.flatten(0, 1)
            outputs = torch.zeros_like(tokens)
            chosen = (tokens[:, 0] > 0.5).long()
            for number, expert in enumerate(self.experts):
                outputs[chosen == number] = expert(tokens[chosen == number])
            return outputs.view_as(inputs)

    for size in (4, 32):
        for seed in range(5):
            inputs = torch.rand(size, 2, 64, generator=torch.Generator().manual_seed(seed))
            assert not mixes_examples(Experts(), inputs)


def test_a_scripted_batch_norm_is_found() -> None:
    assert needs_whole_batch(torch.jit.script(nn.Sequential(nn.BatchNorm2d(4)))) == "BatchNorm"


def test_a_segment_that_cannot_be_copied_is_told(caplog: pytest.LogCaptureFixture) -> None:
    segment = OfFunctions()
    vars(segment)["lock"] = threading.Lock()
    assert mixes_examples(segment, torch.arange(12.0).reshape(3, 4)) is None
    assert "may miss that it does: cannot pickle" in caplog.text


def test_outputs_that_differ_from_call_to_call_are_told(caplog: pytest.LogCaptureFixture) -> None:
    assert mixes_examples(Unseeded(), torch.arange(12.0).reshape(3, 4)) is None
    assert "with random weights, its outputs differ from call to call" in caplog.text


class Logarithmic(nn.Module):
    """Has no outputs for most weights."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((4, 4), 2.0))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.scale.log()


def test_a_segment_that_random_weights_do_not_suit_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert not mixes_examples(Logarithmic(), torch.randn(4, 3, 4))
    assert "with random weights, its outputs are NaN or infinite" in caplog.text
    assert mixes_examples(nn.Sequential(Logarithmic(), Recurrent(4)), torch.randn(4, 3, 4))


class OnlyHalves(nn.Module):
    """Computes in bfloat16, whatever comes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4, dtype=torch.bfloat16)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.linear(inputs.bfloat16())
        return outputs - outputs.mean(0)


def test_a_segment_that_computes_in_halves_alone_is_tried(caplog: pytest.LogCaptureFixture) -> None:
    assert mixes_examples(OnlyHalves(), torch.randn(4, 3, 4))
    assert not caplog.records


class Gated(nn.Module):
    """Attention over the batch behind a gate, as with ReZero and LayerScale."""

    def __init__(self, gate: float) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 6)
        self.gate = nn.Parameter(torch.tensor(gate))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.linear(inputs)
        return hidden + self.gate * (torch.softmax(hidden @ hidden.mT, 1) @ hidden)


@pytest.mark.parametrize("gate", [0.0, 1e-6, 1.0])
def test_a_branch_that_training_opens_is_found(gate: float) -> None:
    """With the first weights it does nothing; the epsilon of later ones would not hold."""
    segment = Gated(gate)
    before = {name: value.clone() for name, value in segment.state_dict().items()}
    assert mixes_examples(segment, torch.randn(4, 5))
    assert all(torch.equal(value, before[name]) for name, value in segment.state_dict().items())


class ComplexGated(nn.Module):
    """Mixes a batch by a complex gate, or by the imaginary part of its inputs."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.project = nn.Linear(4, 4)
        self.gate = nn.Parameter(torch.zeros(1, dtype=kind))

    def forward(self, rows: Tensor) -> Tensor:
        others = rows - rows.mean(0)
        opened = others.imag if self.gate.dtype == torch.float32 else others.real
        out: Tensor = self.project((rows.real + self.gate * opened).real)
        return out


@pytest.mark.parametrize("kind", [torch.float32, torch.complex64])
def test_complex_weights_and_imaginary_parts_are_tried(kind: torch.dtype) -> None:
    rows = torch.randn(6, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    assert mixes_examples(ComplexGated(kind), rows)
