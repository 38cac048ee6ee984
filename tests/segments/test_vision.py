"""A model that is cut equals the whole that timm builds, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import nn

from flwr_splitmix.segments import Geometry, SplitModel, split_vision_model

SEED = 11
DEPTH = 2
MODELS = {
    # name: prefix tokens
    "vit_tiny_patch16_224": 1,
    "deit_tiny_patch16_224": 1,
    "deit_tiny_distilled_patch16_224": 2,
    "vit_wee_patch16_reg1_gap_256": 1,  # a register and no class token
    "vit_small_patch14_reg4_dinov2": 5,  # class token and registers, without position embeddings
    "vit_xsmall_patch16_clip_224": 1,  # a norm before the blocks
}


def whole(name: str, **options: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model: nn.Module = timm.create_model(
            name, num_classes=7, in_chans=1, img_size=16, patch_size=4, depth=DEPTH, **options
        )
    return model


def split(name: str, cut_at: str = "embedding", **options: Any) -> SplitModel:
    usual = {"num_classes": 7, "channels": 1, "image_size": 16, "patch_size": 4, "depth": DEPTH}
    return split_vision_model(name, cut_at=cut_at, seed=SEED, **{**usual, **options})


def run(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    result: torch.Tensor = model(images)
    return result


@pytest.mark.parametrize("name", MODELS)
def test_upper_of_lower_equals_the_whole_at_every_cut(name: str) -> None:
    reference = whole(name).eval()
    images = torch.randn(3, 1, 16, 16)
    for dtype in (torch.float32, torch.float64):
        expected = reference.to(dtype)(images.to(dtype))
        for cut_at in ("embedding", "blocks.0", "blocks.1"):
            lower, upper = split(name, cut_at)
            pair = nn.Sequential(lower, upper).to(dtype).eval()
            assert torch.equal(pair(images.to(dtype)), expected), (cut_at, dtype)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"])
def test_dropout_is_drawn_as_in_the_whole(name: str) -> None:
    rates = {"drop_rate": 0.2, "pos_drop_rate": 0.2, "attn_drop_rate": 0.2, "drop_path_rate": 0.2}
    images = torch.randn(3, 1, 16, 16)
    expected = run(whole(name, **rates).train(), images)
    for cut_at in ("embedding", "blocks.0"):
        pair = nn.Sequential(*split(name, cut_at, **rates)).train()
        assert torch.equal(run(pair, images), expected), cut_at


@pytest.mark.parametrize(("name", "prefix"), MODELS.items())
def test_the_geometry_is_that_of_the_smashed_data(name: str, prefix: int) -> None:
    for cut_at, expected in (("embedding", 0), ("blocks.0", prefix)):
        lower, upper = split(name, cut_at)
        geometry = lower.geometry
        assert geometry == upper.geometry
        assert (geometry.patches, geometry.prefix) == (16, expected)
        assert tuple(lower(torch.randn(2, 1, 16, 16)).shape) == geometry.shape(2)


@pytest.mark.parametrize("name", MODELS)
def test_every_weight_is_in_one_segment(name: str) -> None:
    """The class token is the server's when the cut is at the embedding, the client's after it."""
    total = sum(p.numel() for p in whole(name).parameters())
    for cut_at in ("embedding", "blocks.0"):
        lower, upper = split(name, cut_at)
        own, other = (sum(p.numel() for p in s.parameters()) for s in (lower, upper))
        assert own + other == total


def test_the_class_token_belongs_to_the_upper_segment() -> None:
    lower, upper = split("vit_tiny_patch16_224")
    assert not any("tokens" in name for name, _ in lower.named_parameters())
    assert "prefix.tokens" in dict(upper.named_parameters())


def test_seeds_make_weights_and_leave_the_generator_alone() -> None:
    torch.manual_seed(4)
    expected = torch.rand(1)
    torch.manual_seed(4)
    first, second = split("vit_tiny_patch16_224"), split("vit_tiny_patch16_224")
    assert torch.equal(torch.rand(1), expected)
    for name, tensor in first.lower.state_dict().items():
        assert torch.equal(tensor, second.lower.state_dict()[name])


def test_the_default_is_the_papers_model() -> None:
    lower, upper = split_vision_model(seed=0)
    assert lower.geometry == Geometry(patches=64, width=192)
    assert upper.num_classes == 10
    assert sum(name.startswith("block_") for name, _ in upper.named_children()) == 6


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("vit_tinny_patch16_224", {}, "did you mean vit_tiny_patch16_224"),
        ("swin_tiny_patch4_window7_224", {}, "cannot be cut; allowed are models such as vit_tiny"),
        ("resnet18", {}, "not of timm's VisionTransformer family"),
        (
            "vit_tiny_patch16_224",
            {"cut_at": "blocks.2"},
            r"has no cut 'blocks.2'; allowed are embedding, blocks.0, blocks.1",
        ),
        ("vit_tiny_patch16_224", {"patch_size": 5}, "patch_size 5 does not divide image_size 16"),
        ("vit_tiny_patch16_224", {"patch_drop_rate": 0.5}, "drops or resizes patches itself"),
        ("vit_tiny_patch16_224", {"dynamic_img_size": True}, "drops or resizes patches itself"),
    ],
)
def test_errors_say_what_is_possible(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        split(name, **options)


def test_images_of_another_shape_are_refused_with_both_shapes() -> None:
    lower, _ = split("vit_tiny_patch16_224")
    with pytest.raises(ValueError, match=r"shape \(1, 28, 28\), the lower segment expects \(1, 16"):
        lower(torch.zeros(2, 1, 28, 28))
