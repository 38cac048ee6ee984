"""Patches that have left marks of their slots in layers before the cut cannot be moved there."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from flwr_splitmix.mixers import NoMixing, Shuffled
from flwr_splitmix.segments import split_vision_model
from flwr_splitmix.segments.vision.feature_maps import SlotFree, split_at_map
from flwr_splitmix.segments.vision.layouts import layout_of
from flwr_splitmix.segments.vision.split_model import LowerSegment, Request
from flwr_splitmix.server.options import check_positions
from flwr_splitmix.strategies import ShuffledPSL

SWIN: dict[str, Any] = {"embed_dim": 16, "num_heads": (1, 2, 4, 8), "depths": (2, 1, 1, 1)}
SMALL: list[tuple[str, dict[str, Any], str]] = [
    ("mixer_s16_224", {}, "stem"),
    ("resmlp_12_224", {}, "stem"),
    ("levit_128s", {}, "stem"),
    ("nest_tiny", {}, "stem"),
    ("swin_tiny_patch4_window7_224", SWIN, "stem"),
    ("swinv2_cr_tiny_224", SWIN, "stem"),
    ("efficientvit_m0", {}, "stem"),
    ("edgenext_xx_small", {"cut_at": "stages.2"}, "stages.0"),
]
"""Models, options that make them small, and their last cut before layers that know the slots."""


@pytest.mark.parametrize(("name", "options", "free"), SMALL)
def test_layers_that_know_the_slots_must_be_above_the_cut_to_have_patches_moved(
    name: str, options: dict[str, Any], free: str
) -> None:
    """Otherwise one patch of a map would tell its slot to who gets them shuffled."""
    options = {"image_size": 64, "cell": 1, **options}
    with pytest.raises(ValueError, match=rf"cut at '{free}' .*no position embeddings .* their slo"):
        split_vision_model(name, positions="upper", **options)
    lower, upper = split_vision_model(name, positions="upper", **{**options, "cut_at": free})
    assert (lower.geometry.positions, upper.unmixed_at) == ("none", "")
    lower, upper = split_vision_model(name, **options)
    assert (lower.geometry.positions, upper.unmixed_at) == ("lower", free)
    assert lower.geometry == upper.geometry
    with pytest.raises(ValueError, match=f"ShuffledPSL moves patches, .* with cut_at='{free}'"):
        check_positions(ShuffledPSL, upper, Shuffled(NoMixing()))


@pytest.mark.parametrize(
    ("name", "free"),
    [
        ("swinv2_tiny_window8_256", "stem"), ("davit_tiny", "stem"), ("gcvit_xxtiny", "stem"),
        ("maxvit_tiny_tf_224", "stem"), ("sequencer2d_s", "stem"), ("tiny_vit_5m_224", "stages.0"),
        ("coatnet_nano_rw_224", "stages.1"), ("coatnext_nano_rw_224", "stages.1"),
        ("efficientformer_l1", "stages.2"), ("efficientformerv2_s0", "stages.1"),
        ("botnet26t_256", "stages.1"), ("halonet26t", "stages.1"),
        ("lambda_resnet26rpt_256", "stages.1"), ("bat_resnext26ts", "stem"),
        # Convolutions, poolings, and attention without positions: every cut.
        ("resnet18", "layer4"), ("convnext_atto", "stages.3"), ("mobilevit_xxs", "stages.4"),
        ("pvt_v2_b0", "stages.3"), ("fastvit_sa12", "stages.3"), ("caformer_s18", "stages.3"),
        ("focalnet_tiny_srf", "layers.3"), ("nextvit_small", "stages.3"),
        # Their position embeddings are above the stem, which is their only cut.
        ("visformer_tiny", "stem"), ("volo_d1_224", "stem"), ("hiera_tiny_224", "stem"),
    ],
)  # fmt: skip
def test_the_last_cut_of_a_family_that_knows_no_slots(name: str, free: str) -> None:
    """Attention, and not the convolutions before it, knows the slots of a hybrid model."""
    with torch.device("meta"):
        model = timm.create_model(name)
    layout = layout_of(type(model))
    assert layout is not None
    assert layout.slot_free(model).cut_at == free


def test_a_model_whose_stem_knows_the_slots_has_no_cut_for_moved_patches() -> None:
    request = Request("a model", None, 3, 2, 6, 1, None, "upper", 1)
    stages: list[tuple[str, nn.Module]] = [("stem", nn.Conv2d(2, 4, 1)), ("head", nn.Flatten())]
    with pytest.raises(
        ValueError, match=r"needs another model: .* a ViT, cut at its embedding, ha"
    ):
        split_at_map(request, stages, 1, slot_free=SlotFree("", 0))


def read_slots(lower: LowerSegment) -> float:
    """Return the share of single patches of noise whose slot a linear probe reads."""
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        training, unseen = (
            lower.eval()(torch.randn(number, *lower.input_shape, generator=draws)).double()
            for number in (128, 32)
        )
    slots = torch.eye(lower.geometry.patches, dtype=torch.float64)

    def rows(patches: Tensor) -> Tensor:
        return torch.cat([patches.flatten(0, 1), torch.ones(patches[..., 0].numel(), 1)], dim=1)

    features = rows(training)
    ridge = features.T @ features + torch.eye(features.shape[1])
    weights = torch.linalg.solve(ridge, features.T @ slots.repeat(len(training), 1))
    guessed = (rows(unseen) @ weights).argmax(dim=1).view(len(unseen), -1)
    return float((guessed == torch.arange(len(slots))).double().mean())


def test_a_patch_tells_its_slot_where_positions_are_said_to_be_below_the_cut() -> None:
    options: dict[str, Any] = {"image_size": 64, "cell": 1, "seed": 0}
    below = split_vision_model("nest_tiny", cut_at="levels.0", **options).lower
    stem = split_vision_model("nest_tiny", cut_at="stem", **options).lower
    assert read_slots(below) > 0.9
    assert read_slots(stem) < 0.05
