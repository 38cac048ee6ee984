"""The segments, put together again, are timm's own model with the trained weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from flwr_splitmix.segments import split_shuffled_edge, split_vision_model
from flwr_splitmix.segments.vision.whole import whole_model

TINY: dict[str, Any] = {"image_size": 16, "patch_size": 4, "depth": 2, "num_classes": 3}
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("vit_tiny_patch16_224", TINY),
    ("vit_tiny_patch16_224", {**TINY, "positions": "upper", "channels": 3}),
    ("vit_tiny_patch16_224", {**TINY, "cut_at": "blocks.0"}),
    ("deit_tiny_distilled_patch16_224", TINY),
    ("vit_little_patch16_reg4_gap_256", TINY),
    ("vit_small_patch16_dinov3", {**TINY, "cut_at": "blocks.0"}),
    ("eva02_tiny_patch14_224", TINY),
    ("beit_base_patch16_224", {**TINY, "cut_at": "blocks.0"}),
    ("vit_small_patch16_rope_mixed_224", {**TINY, "cut_at": "blocks.0"}),
    ("cait_xxs24_224", {**TINY, "cut_at": "blocks.0"}),
    ("xcit_nano_12_p16_224", {"image_size": 32, "patch_size": 8, "depth": 2}),
    ("pit_ti_224", {"image_size": 32, "patch_size": 4}),
    ("pit_ti_distilled_224", {"image_size": 32, "patch_size": 4, "cut_at": "transformers.0"}),
    ("resnet18", {"image_size": 32}),
    ("resnet26d", {"image_size": 32, "cut_at": "stem"}),
    ("resnetv2_18", {"image_size": 32}),
    ("regnety_002", {"image_size": 32}),
    ("mobilenetv2_035", {"image_size": 32, "cut_at": "stem"}),
    ("mobilenetv3_small_050", {"image_size": 32}),
    ("test_convnext", {"image_size": 32, "cut_at": "stages.1"}),
    ("mobileone_s0", {"image_size": 32}),
    ("densenet121", {"image_size": 32}),
    ("rexnet_100", {"image_size": 32}),
    ("pvt_v2_b0", {"image_size": 32}),
    ("coatnet_nano_rw_224", {"image_size": 32}),
    ("levit_128s", {"image_size": 32}),
    ("volo_d1_224", {"image_size": 32}),
    ("twins_svt_small", {"image_size": 32, "embed_dims": (16, 32, 64, 64)}),
    ("hiera_tiny_224", {"image_size": 32, "embed_dim": 32}),
    ("swin_tiny_patch4_window7_224", {"image_size": 32, "embed_dim": 24}),
    ("vgg11_bn", {"image_size": 224, "mlp_ratio": 1 / 512}),
]


@torch.no_grad()
def trained(name: str, **arguments: Any) -> Any:
    """Return segments whose whole state differs from an untrained model's."""
    segments = split_vision_model(name, seed=1, **arguments)
    generator = torch.Generator().manual_seed(2)
    for segment in segments:
        for value in segment.state_dict().values():
            if value.is_floating_point():
                value.add_(0.02 * torch.rand(value.shape, generator=generator))
        segment.eval()
    return segments


@pytest.mark.parametrize(("name", "arguments"), MODELS, ids=str)
@torch.no_grad()
def test_timms_model_computes_what_the_segments_do(name: str, arguments: dict[str, Any]) -> None:
    segments = trained(name, **arguments)
    images = torch.randn(2, *segments.lower.input_shape)
    whole = whole_model(segments, name, **arguments)
    assert type(whole.module).__module__.startswith("timm.")
    expected = segments.upper(segments.lower(images))
    torch.testing.assert_close(whole.module(images), expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(expected[0], expected[1])


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("lenet5", {}, "timm has no lenet5"),
        ("vgg11", {}, "at this image size its classifier is not that of timm's vgg11"),
    ],
)
def test_what_timm_has_not_is_said(name: str, arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        whole_model(split_vision_model(name, seed=0, **arguments), name, **arguments)


@pytest.mark.parametrize("method", ["patch", "spectral"])
def test_a_shuffled_edge_is_no_model_of_timm(method: Any) -> None:
    segments = split_shuffled_edge(method=method, seed=0, **TINY)
    with pytest.raises(ValueError, match="its edge shuffles tokens"):
        whole_model(segments, "vit_tiny_patch16_224", method=method, **TINY)


def test_a_model_that_computes_otherwise_is_not_handed_out() -> None:
    segments = trained("vit_tiny_patch16_224", **TINY)
    segments.upper.block_0 = nn.Sequential(segments.upper.block_0)
    with pytest.raises(ValueError, match="other weights"):
        whole_model(segments, "vit_tiny_patch16_224", **TINY)
    segments = trained("vit_tiny_patch16_224", **TINY)
    segments.upper.block_0.register_forward_hook(lambda module, inputs, output: output.cumsum(-1))
    with pytest.raises(ValueError, match="computes otherwise"):
        whole_model(segments, "vit_tiny_patch16_224", **TINY)
