"""A size of images or patches that a transformer's embedding cannot compute is told when cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.segments import split_shuffled_edge, split_vision_model
from flwr_splitmix.segments.vision import class_attention, pit
from flwr_splitmix.segments.vision.black_image import check_embedding
from flwr_splitmix.segments.vision.split_model import Request


def request() -> Request:
    return Request("a model", None, 3, 2, 8, 2, None, "lower", 1)


class Embedding(nn.Sequential):
    """Map from images (b, 2, 8, 8) to 16 tokens (b, 16, 4)."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(2, 4, 2, stride=2), nn.BatchNorm2d(4), nn.Flatten(2))

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).mT  # type: ignore[no-any-return, no-untyped-call]


@pytest.mark.parametrize("patch_size", [2, 4])
def test_patches_of_more_than_a_pixel_of_a_map_that_is_not_projected_are_refused(
    patch_size: int,
) -> None:
    """With 2 the first batch would end in an error of sizes 16 and 4; with 4 it is one patch."""
    sizes: dict[str, Any] = {"image_size": 64, "patch_size": patch_size, "depth": 2}
    message = r"embedding makes 16 patches, and it has positions for .*'s map: try patch_size=1$"
    with pytest.raises(ValueError, match=message):
        split_vision_model("vitamin_small_224", **sizes)
    with pytest.raises(ValueError, match=message):
        split_shuffled_edge("vitamin_small_224", method="patch", **sizes)


def test_a_map_that_the_patches_of_a_hybrid_do_not_tile_is_told() -> None:
    """The error of timm says nothing; the app's patch-size of 8 is too large for a small image."""
    with pytest.raises(ValueError, match=r"pixels of its backbone's map: try patch_size=1\)"):
        split_vision_model("vit_small_r26_s32_224", patch_size=8)


@pytest.mark.parametrize(
    ("name", "embedding"),
    [("pit_ti_224", pit.ConvPatches), ("xcit_nano_12_p16_224", class_attention.FirstOfPair)],
)
def test_an_embedding_that_fails_is_told_with_the_remedy(
    name: str, embedding: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Tensor) -> Tensor:
        raise RuntimeError("sizes 16 and 4")

    monkeypatch.setattr(embedding, "forward", fail)
    message = (
        "compute images of 32 x 32 pixels: sizes 16 and 4; try another image_size, .* patch_size"
    )
    with pytest.raises(ValueError, match=message):
        split_vision_model(name, patch_size=8, depth=None)


def test_an_embedding_is_left_as_it_was() -> None:
    embed = Embedding()
    before = {name: value.clone() for name, value in embed.state_dict().items()}
    check_embedding(request(), embed, 16)
    assert all(module.training for module in embed.modules())
    assert all(torch.equal(value, before[name]) for name, value in embed.state_dict().items())


def test_an_embedding_of_another_number_of_patches_is_told_with_both() -> None:
    with pytest.raises(ValueError, match="embedding makes 16 patches, and it has positions for 4;"):
        check_embedding(request(), Embedding(), 4)
