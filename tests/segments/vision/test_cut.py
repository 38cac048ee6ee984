"""A model that is cut equals the whole that timm builds, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import nn

from flwr_splitmix.segments import Geometry, SplitModel, split_vision_model
from flwr_splitmix.strategies import ShuffledCutMixSL

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
    "vit_small_patch16_dinov3": 5,  # rotary positions in the blocks, and no others
    "eva02_tiny_patch14_224": 1,  # rotary positions and embeddings
    "vit_pe_core_tiny_patch16_384": 1,  # pooling by attention
    "vit_small_patch16_lingbot": 5,
    "vit_small_patch16_rope_mixed_224": 1,  # each block learns its own rotary positions
    "beit_base_patch16_224": 1,  # relative positions in each block
    "test_vit": 1,  # resizes its patches unless it is told not to
    "test_vit2": 1,  # so does this, with a register and no class token
}


ANGLES = ("vit_small_patch16_dinov3", "vit_small_patch16_lingbot")
"""Models whose rotary positions timm computes anew in float64; a segment's are of float32."""


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
            rounded = name in ANGLES and dtype == torch.float64
            tolerance = 1e-6 if rounded else 0.0
            torch.testing.assert_close(
                pair(images.to(dtype)), expected, rtol=tolerance, atol=tolerance
            )


@pytest.mark.parametrize("name", MODELS)
def test_positions_in_the_upper_segment_equal_the_whole_too(name: str) -> None:
    images = torch.randn(3, 1, 16, 16)
    lower, upper = split(name, positions="upper")
    reference: Any = whole(name)
    assert lower.geometry.positions == ("none" if reference.pos_embed is None else "upper")
    assert torch.equal(upper(lower(images)), reference(images))


def test_positions_in_the_upper_segment_belong_to_slots() -> None:
    """Swapped patches get each other's place; the lower segment knows none."""
    images = torch.randn(2, 1, 16, 16)
    swapped = images.clone()
    swapped[:, :, :4, :4], swapped[:, :, 12:, 8:12] = images[:, :, 12:, 8:12], images[:, :, :4, :4]
    lower, upper = split("vit_tiny_patch16_224", positions="upper")
    order = torch.arange(16)
    order[0], order[14] = 14, 0
    assert torch.equal(lower(swapped), lower(images)[:, order])
    assert torch.equal(upper(lower(images)[:, order]), whole("vit_tiny_patch16_224")(swapped))
    assert not any("pos_embed" in key for key in lower.state_dict())


def test_a_model_without_position_embeddings_says_so() -> None:
    for positions in ("lower", "upper"):
        pair = split("vit_tiny_patch16_224", pos_embed="none", positions=positions)
        assert pair.lower.geometry.positions == "none"


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("beit_base_patch16_224", {"use_shared_rel_pos_bias": True}, "share trainable positions"),
        ("vit_small_patch16_dinov3", {"rope_shift_coords": 0.1}, "positions at random, .* leave"),
        ("eva02_tiny_patch14_224", {"patch_drop_rate": 0.1}, "leave out patch_drop_rate"),
        ("eva02_tiny_patch14_224", {"dynamic_img_size": True}, "leave out dynamic_img_size"),
    ],
)
def test_a_transformer_whose_parts_are_not_apart_is_refused(
    name: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        split(name, **options)


def test_gradients_equal_the_wholes() -> None:
    images, model = torch.randn(3, 1, 16, 16), whole("vit_tiny_patch16_224")
    model(images).square().sum().backward()
    expected = dict(model.named_parameters())

    def gradient(parameter: nn.Parameter) -> torch.Tensor:
        assert parameter.grad is not None
        return parameter.grad

    for positions in ("lower", "upper"):
        lower, upper = split("vit_tiny_patch16_224", positions=positions)
        upper(lower(images)).square().sum().backward()
        projection = gradient(lower.get_parameter("embedding.patch_embed.proj.weight"))
        assert torch.equal(projection, gradient(expected["patch_embed.proj.weight"]))
        holder, key = {
            "lower": (lower, "embedding.pos_embed"), "upper": (upper, "positions.pos_embed"),
        }[positions]  # fmt: skip
        slots = gradient(expected["pos_embed"])[:, 1:]
        assert torch.equal(gradient(holder.get_parameter(key)), slots)


@pytest.mark.parametrize("cut_at", [None, ""])
def test_no_cut_named_is_the_familys_own(cut_at: str | None) -> None:
    pair = split_vision_model(cut_at=cut_at, image_size=16, depth=1)
    assert [name for name, _ in pair.lower.named_children()] == ["embedding"]


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
        lower_size, upper_size = (sum(p.numel() for p in s.parameters()) for s in (lower, upper))
        assert lower_size + upper_size == total


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
    assert lower.geometry == Geometry(patches=64, width=192, grid=(8, 8))
    assert upper.num_classes == 10
    assert sum(name.startswith("block_") for name, _ in upper.named_children()) == 6


@pytest.mark.parametrize(
    ("model", "options", "sentence"),
    [
        ("vit_tinny_patch16_224", {}, "did you mean vit_tiny_patch16_224"),
        (
            "tnt_s_patch16_224",
            {},
            "cut: the parts of timm's TNT are .*; use a model such as vit",
        ),
        ("lenet", {}, "did you mean lenet5"),
        ("nothing", {}, r"Allowed are timm's vit_\*, .*, maxvit\*, and lenet5"),
        ("vit_tiny_patch16_224", {"positions": "above"}, "it must be 'lower' or 'upper'"),
        (
            "vit_tiny_patch16_224",
            {"cut_at": "blocks.0", "positions": "upper"},
            "positions 'upper' needs the cut at 'embedding', not at 'blocks.0'",
        ),
        (
            "vit_tiny_patch16_224",
            {"cut_at": "blocks.2"},
            r"has no cut 'blocks.2'; available: embedding, blocks.0, blocks.1",
        ),
        ("vit_tiny_patch16_224", {"patch_size": 5}, "patch_size 5 does not divide image_size 16"),
        ("vit_small_r26_s32_224", {"image_size": 64, "patch_size": 16}, "sizes may do"),
        ("vit_tiny_patch16_224", {"patch_drop_rate": 0.5}, "masked: leave out patch_drop_rate"),
        ("vit_tiny_patch16_224", {"dynamic_img_size": True}, "masked: leave out dynamic_img_size"),
    ],
)
def test_errors_say_what_is_possible(model: str, options: dict[str, Any], sentence: str) -> None:
    """A parameter `name` would be a model that an older timm must have, or the test is skipped."""
    with pytest.raises(ValueError, match=sentence):
        split(model, **options)


def test_images_of_another_shape_are_refused_with_both_shapes() -> None:
    lower, _ = split("vit_tiny_patch16_224")
    with pytest.raises(ValueError, match=r"shape \(1, 28, 28\), the lower segment expects \(1, 16"):
        lower(torch.zeros(2, 1, 28, 28))


def test_pretrained_weights_are_of_the_models_own_depth() -> None:
    """The default of `depth` must not keep six of twelve trained blocks, without a word."""
    with pytest.raises(ValueError, match=r"pretrained weights are those of .*: pass depth=None"):
        split_vision_model("vit_tiny_patch16_224", pretrained=True)


@pytest.mark.parametrize("name", ["beit_base_patch16_224", "vit_small_patch16_dinov3"])
def test_patches_behind_a_block_that_knows_their_places_are_not_moved(name: str) -> None:
    """The lower segment's tokens depend on where their patch was, though nothing is added."""
    cuts = {
        at: split_vision_model(
            name, num_classes=10, image_size=32, patch_size=8, depth=2, cut_at=at
        ).upper
        for at in ("embedding", "blocks.0")
    }
    assert [upper.geometry.positions for upper in cuts.values()] == ["none", "lower"]
    ShuffledCutMixSL(cuts["embedding"], device="cpu")
    with pytest.raises(ValueError, match="ShuffledCutMixSL moves patches"):
        ShuffledCutMixSL(cuts["blocks.0"], device="cpu")
