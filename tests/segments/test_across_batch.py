"""Layers across a batch are recognised in every form, and nothing else is taken for them."""

from __future__ import annotations

import os
import threading

import pytest
import torch
from torch import nn

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
    ],
    ids=str,
)
def test_a_segment_is_asked_itself(module: nn.Module, expected: bool) -> None:
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    inputs = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    drawn, module.training = torch.get_rng_state(), False
    assert mixes_examples(module, inputs) == expected
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not any(part.training for part in [module])
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_one_example_alone_tells_nothing() -> None:
    assert not mixes_examples(OfFunctions(), torch.ones(1, 4, 4))
    assert not mixes_examples(OfFunctions(), torch.ones(3, 4, 4))


def test_a_scripted_batch_norm_is_found() -> None:
    assert needs_whole_batch(torch.jit.script(nn.Sequential(nn.BatchNorm2d(4)))) == "BatchNorm"


def test_a_segment_that_cannot_be_copied_is_told(caplog: pytest.LogCaptureFixture) -> None:
    segment = OfFunctions()
    vars(segment)["lock"] = threading.Lock()
    assert not mixes_examples(segment, torch.arange(12.0).reshape(3, 4))
    assert "names of its layers only, as it cannot be copied: cannot pickle" in caplog.text


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
    """With the first weights it did nothing, and the epsilon of the later ones did not hold."""
    segment = Gated(gate)
    before = {name: value.clone() for name, value in segment.state_dict().items()}
    assert mixes_examples(segment, torch.randn(4, 5))
    assert all(torch.equal(value, before[name]) for name, value in segment.state_dict().items())
