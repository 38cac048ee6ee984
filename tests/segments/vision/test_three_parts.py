"""Vision models that are cut in three: head, trunk and tail together equal the whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from flwr_splitmix.segments import split_vision_model, split_vision_parts

SMALL: dict[str, Any] = {"image_size": 32, "patch_size": 8, "depth": 3, "seed": 3}
MIXER: dict[str, Any] = {"image_size": 64, "patch_size": 16, "seed": 3}
MODELS = {
    "vit_tiny_patch16_224": SMALL,
    "deit_tiny_distilled_patch16_224": SMALL,
    "eva02_tiny_patch14_224": SMALL,
    "beit_base_patch16_224": {**SMALL, "embed_dim": 12, "num_heads": 2},
    "cait_xxs24_224": SMALL,
    "xcit_nano_12_p8_224": SMALL,
    "mixer_s32_224": MIXER,
}


@pytest.mark.parametrize("name", MODELS)
def test_the_three_parts_are_the_whole(name: str) -> None:
    sizes = MODELS[name]
    images = torch.randn(2, 1, sizes["image_size"], sizes["image_size"])
    whole = nn.Sequential(*split_vision_model(name, **sizes)).eval()
    head, trunk, tail = (part.eval() for part in split_vision_parts(name, **sizes))
    hidden = head(images)
    mask = torch.ones(hidden.shape[:2])
    assert trunk(hidden, mask).shape == hidden.shape == (2, trunk.max_length, trunk.width)
    assert torch.equal(tail(trunk(hidden, mask), mask), whole(images))


def blocks_of(part: nn.Module) -> list[str]:
    return [name for name, _ in part.named_children() if name.startswith("block")]


def test_cuts_are_where_they_are_asked_for() -> None:
    sizes = {**SMALL, "depth": 6}
    default = split_vision_parts(**sizes)
    assert [len(blocks_of(part)) for part in default] == [1, 4, 1]
    head, trunk, tail = split_vision_parts(**sizes, head_to="blocks.1", trunk_to="blocks.2")
    assert blocks_of(head) == ["block_0", "block_1"]
    assert blocks_of(trunk) == ["block_2"]
    assert blocks_of(tail) == ["block_3", "block_4", "block_5"]
    without_tail_block = split_vision_parts(**sizes, trunk_to="blocks.5").tail
    assert [name for name, _ in without_tail_block.named_children()] == ["head"]


@pytest.mark.parametrize("name", ["resnet18", "pit_ti_224", "lenet5", "vgg11"])
def test_a_model_without_tokens_of_one_shape_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} cannot be cut in three: .* as between the block"):
        split_vision_parts(name, patch_size=8)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"head_to": "embedding"},
            "head_to is 'embedding'; it must be one of blocks.0, blocks.1, block",
        ),
        ({"trunk_to": "blocks.9"}, "trunk_to is 'blocks.9'; it must be one of blocks.0"),
        ({"head_to": "blocks.1", "trunk_to": "blocks.1"}, "not behind head_to, 'blocks.1'"),
        ({"depth": 1}, "cannot be cut in three"),
        ({"num_classes": None}, "num_classes is None; pass num_classes="),
        ({"img_size": 32}, "timm's img_size is image_size here"),
    ],
)
def test_wrong_cuts_are_named_with_the_right_ones(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_vision_parts(**{**SMALL, **wrong})
