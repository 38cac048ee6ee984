"""A CaiT or an XCiT that is cut equals the whole that timm builds, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import nn

from flwr_splitmix.segments import SplitModel, split_vision_model
from tests.segments.vision.passes import logits_and_gradient

SEED = 13
SIZES: dict[str, Any] = {"patch_size": 8, "depth": 2}
NAMES = ("cait_xxs24_224", "xcit_nano_12_p16_224")


def whole(name: str, **options: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model: nn.Module = timm.create_model(
            name, num_classes=7, in_chans=1, img_size=32, **{**SIZES, **options}
        )
    return model


def split(name: str, **options: Any) -> SplitModel:
    return split_vision_model(name, num_classes=7, seed=SEED, **{**SIZES, **options})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("training", [False, True])
def test_upper_of_lower_equals_the_whole_at_every_cut(name: str, training: bool) -> None:
    rates = {"drop_rate": 0.2, "pos_drop_rate": 0.2, "attn_drop_rate": 0.2, "drop_path_rate": 0.2}
    images = torch.randn(3, 1, 32, 32)
    expected = logits_and_gradient(whole(name, **rates).train(training), images)
    cuts: list[dict[str, str]] = [{"cut_at": at} for at in ("embedding", "blocks.0", "blocks.1")]
    for cut in [*cuts, {"positions": "upper"}]:
        pair = nn.Sequential(*split(name, **cut, **rates)).train(training)
        for ours, theirs in zip(logits_and_gradient(pair, images), expected, strict=True):
            assert torch.equal(ours, theirs), cut


@pytest.mark.parametrize("name", NAMES)
def test_no_cut_has_a_prefix(name: str) -> None:
    """The class token joins the patches in the upper segment, so that masks choose patches only."""
    for cut_at in ("embedding", "blocks.1"):
        lower, upper = split(name, cut_at=cut_at)
        assert lower.geometry == upper.geometry
        assert (lower.geometry.prefix, lower.geometry.grid) == (0, (4, 4))
        assert tuple(lower(torch.randn(2, 1, 32, 32)).shape) == lower.geometry.shape(2)
        assert any("cls_token" in weight for weight, _ in upper.named_parameters())


@pytest.mark.parametrize("name", NAMES)
def test_positions_can_be_the_upper_segments(name: str) -> None:
    lower, upper = split(name, positions="upper")
    assert lower.geometry.positions == "upper"
    assert any(weight.startswith("positions.") for weight, _ in upper.named_parameters())
    assert not any("positions" in weight for weight, _ in lower.named_parameters())


def test_blocks_that_convolve_over_the_grid_know_places_without_embeddings() -> None:
    cuts = [split(NAMES[1], use_pos_embed=False, cut_at=at) for at in ("embedding", "blocks.0")]
    assert [lower.geometry.positions for lower, _ in cuts] == ["none", "lower"]


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        (NAMES[1], {"patch_size": 4}, "xcit_nano_12_p16_224 has patches of 8 or 16 pixels; patch_"),
        (NAMES[0], {"patch_size": 5}, "patch_size 5 does not divide image_size 32"),
        (NAMES[0], {"pretrained": True}, "pass depth=None"),
        (NAMES[0], {"cut_at": "blocks.2"}, "available: embedding, blocks.0, blocks.1"),
    ],
)
def test_errors_say_what_is_possible(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        split(name, **options)
