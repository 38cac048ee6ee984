"""A PiT that is cut equals the whole that timm builds, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from flwr_splitmix.segments import SplitModel, split_vision_model
from tests.segments.vision.passes import logits_and_gradient

SEED = 3
SMALL = {"base_dims": (8, 8, 8)}
CUTS = ("embedding", "transformers.0", "transformers.1", "transformers.2")
NAMES = {"pit_ti_224": 1, "pit_ti_distilled_224": 2}


def whole(name: str, **options: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model: nn.Module = timm.create_model(
            name, num_classes=7, in_chans=1, img_size=16,
            **{"patch_size": 2, "stride": 2, **SMALL, **options},
        )  # fmt: skip
    return model


def split(name: str, **options: Any) -> SplitModel:
    return split_vision_model(
        name, num_classes=7, image_size=16, seed=SEED, **{"patch_size": 2, **SMALL, **options}
    )


class Link(nn.Module):
    """Hands tokens on in one memory layout, as links do."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens.contiguous()


@pytest.mark.parametrize("name", NAMES)
def test_upper_of_lower_equals_the_whole_at_every_cut(name: str) -> None:
    rates = {"drop_rate": 0.2, "pos_drop_rate": 0.2, "attn_drop_rate": 0.2, "drop_path_rate": 0.2}
    images = torch.randn(3, 1, 16, 16)
    for mode in (False, True):
        expected = logits_and_gradient(whole(name, **rates).train(mode), images)
        for cut_at in CUTS:
            lower, upper = split(name, cut_at=cut_at, **rates)
            pair = nn.Sequential(lower, Link(), upper).train(mode)
            for ours, theirs in zip(logits_and_gradient(pair, images), expected, strict=True):
                assert torch.equal(ours, theirs), (cut_at, mode)


def test_positions_in_the_upper_segment_are_added_by_slot() -> None:
    images = torch.randn(3, 1, 16, 16)
    lower, upper = split("pit_ti_224", positions="upper")
    assert lower.geometry.positions == "upper"
    assert torch.equal(upper(lower(images)), whole("pit_ti_224")(images))
    assert "positions.pos_embed" in dict(upper.named_parameters())
    assert not any("pos_embed" in key for key in lower.state_dict())


@pytest.mark.parametrize(("name", "prefix"), NAMES.items())
def test_the_geometry_is_that_of_the_smashed_data(name: str, prefix: int) -> None:
    grids = {"embedding": (8, 8), "transformers.0": (8, 8), "transformers.1": (4, 4)}
    for cut_at, grid in grids.items():
        lower, upper = split(name, cut_at=cut_at)
        geometry = lower.geometry
        assert geometry == upper.geometry
        assert geometry.grid == grid
        assert geometry.prefix == (0 if cut_at == "embedding" else prefix)
        assert tuple(lower(torch.randn(2, 1, 16, 16)).shape) == geometry.shape(2)


def test_patches_may_overlap() -> None:
    images = torch.randn(2, 1, 16, 16)
    lower, upper = split("pit_ti_224", patch_size=4, stride=2)
    assert lower.geometry.grid == (7, 7)
    assert torch.equal(upper(lower(images)), whole("pit_ti_224", patch_size=4, stride=2)(images))


def test_the_default_is_the_papers_model() -> None:
    lower, upper = split_vision_model("pit_ti_224", seed=0)
    assert (lower.geometry.grid, lower.geometry.width) == ((8, 8), 64)
    stages = [module for name, module in upper.named_children() if name.startswith("transformer_")]
    assert [len(stage.blocks) for stage in stages] == [2, 6, 4]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"cut_at": "blocks.0"},
            "has no cut 'blocks.0'; available: embedding, transformers.0, transformers.1",
        ),
        ({"patch_size": 3}, "patch_size 3 does not divide image_size 16"),
        (
            {"cut_at": "transformers.0", "positions": "upper"},
            "positions 'upper' needs the cut at 'embedding', not at 'transformers.0'",
        ),
    ],
)
def test_errors_say_what_is_possible(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        split("pit_ti_224", **options)
