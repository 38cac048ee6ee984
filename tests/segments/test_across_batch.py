"""Layers across a batch are recognised in every form, and nothing else is taken for them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flwr_splitmix.segments.across_batch import needs_whole_batch

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
