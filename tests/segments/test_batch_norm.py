"""BatchNorm is recognised in every form, and nothing else is taken for it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flwr_splitmix.segments.batch_norm import has_batch_norm

FORMS = [
    nn.BatchNorm1d(4),
    nn.BatchNorm2d(4),
    nn.BatchNorm3d(4),
    nn.SyncBatchNorm(4),
    nn.LazyBatchNorm2d(),
]
OTHERS = [nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, track_running_stats=True)]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: type(form).__name__)
def test_a_form_is_found_however_deep_it_lies(form: nn.Module) -> None:
    assert has_batch_norm(nn.Sequential(nn.Identity(), nn.Sequential(form)))


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: type(other).__name__)
def test_what_keeps_examples_apart_is_no_batch_norm(other: nn.Module) -> None:
    assert not has_batch_norm(nn.Sequential(other))


def test_models_of_timm_with_a_form_of_their_own_are_found() -> None:
    import timm

    assert has_batch_norm(timm.create_model("efficientnet_b0"))
    assert not has_batch_norm(timm.create_model("vit_tiny_patch16_224", depth=1))


@pytest.mark.parametrize(
    ("module", "expected"), [(nn.BatchNorm2d(4), True), (nn.GroupNorm(2, 4), False)], ids=str
)
def test_the_answer_is_whether_one_example_moves_the_others(
    module: nn.Module, expected: bool
) -> None:
    images = torch.randn(3, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    other = images.clone()
    other[0] *= 10
    moved = not torch.equal(module(images)[1:], module(other)[1:])
    assert has_batch_norm(module) == moved == expected
