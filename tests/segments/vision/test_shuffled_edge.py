"""Frozen edges: what they compute before the shuffle, that they stay frozen, and hide places."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from flwr_splitmix.segments import Geometry, SplitModel, split_shuffled_edge
from flwr_splitmix.segments.vision.shuffled_edge import Spectrum, side_of_patches

pytestmark = pytest.mark.usefixtures("repeatable")

SEED = 7
METHODS: list[dict[str, Any]] = [
    {"method": "patch"},
    {"method": "batch", "kappa": 0.5},
    {"method": "spectral"},
    {"method": "spectral-pixels"},
]


def split(name: str = "vit_tiny_patch16_224", **options: Any) -> SplitModel:
    usual = {"num_classes": 7, "channels": 2, "image_size": 16, "depth": 3, "seed": SEED}
    return split_shuffled_edge(name, **{"embed_dim": 24, **usual, **options})


def whole(name: str = "vit_tiny_patch16_224") -> nn.Module:
    """Build the model, and take the positions out of it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model: nn.Module = timm.create_model(
            name, num_classes=7, in_chans=2, img_size=16, patch_size=4, depth=3, embed_dim=24
        )
    nn.init.zeros_(model.pos_embed)  # type: ignore[arg-type]
    return model


def in_any_order(tokens: Tensor) -> Tensor:
    """Sort each image's tokens by their sums."""
    order = tokens.sum(dim=2, keepdim=True).argsort(dim=1)
    return tokens.take_along_dim(order, dim=1)


def test_the_edge_is_patch_projection_and_first_block() -> None:
    """A block does not see the order of its tokens, so it may be shuffled out of the comparison."""
    model, images = whole(), torch.randn(3, 2, 16, 16)
    expected = model.blocks[0](model.patch_embed(images))  # type: ignore[index, operator]
    smashed = split(method="patch").lower(images)
    torch.testing.assert_close(in_any_order(smashed), in_any_order(expected))
    assert not torch.allclose(smashed, expected)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"])
def test_the_upper_segment_is_the_rest_of_the_model(name: str) -> None:
    model: Any = whole(name)
    model.patch_embed = nn.Identity()
    tokens = torch.randn(3, 16, 24)
    prefix = [t for t in (model.cls_token, getattr(model, "dist_token", None)) if t is not None]
    expected = torch.cat([*(t.expand(3, -1, -1) for t in prefix), tokens], dim=1)
    for block in model.blocks[1:]:
        expected = block(expected)
    expected = model.forward_head(model.norm(expected))
    assert torch.equal(split(name, method="patch").upper(tokens), expected)


def test_the_spectrum_can_be_inverted() -> None:
    images = torch.randn(2, 3, 8, 12, dtype=torch.float64)
    channels = Spectrum()(images)
    assert channels.shape == (2, 6, 8, 12)
    spectra = torch.complex(channels[:, :3], channels[:, 3:])
    back = torch.fft.ifft2(torch.fft.ifftshift(spectra, dim=(-2, -1)), norm="ortho")
    torch.testing.assert_close(back.real, images)
    torch.testing.assert_close(channels.square().sum(), images.square().sum())


def test_frequency_0_is_in_the_middle() -> None:
    channels = Spectrum()(torch.full((1, 1, 8, 8), 3.0))
    assert channels[0, 0, 4, 4] == pytest.approx(3 * 8)
    assert channels.abs().sum() == pytest.approx(3 * 8)


def test_spectral_patches_are_those_of_the_embedded_images_spectrum() -> None:
    """Algorithm 1 transforms f(x): its 16 patches of 24 numbers are a map of 6 channels, 8 x 8."""
    images = torch.randn(2, 2, 16, 16)
    smashed = split(method="spectral").lower(images)
    assert smashed.shape == (2, 16, 2 * 24)
    embedded: Tensor = whole().patch_embed(images)  # type: ignore[operator]
    whole_map = nn.functional.fold(embedded.mT, (8, 8), kernel_size=2, stride=2)
    spectra = torch.fft.fftshift(torch.fft.fft2(whole_map, norm="ortho"), dim=(-2, -1))
    channels = torch.cat([spectra.real, spectra.imag], dim=1)
    patches = nn.functional.unfold(channels, kernel_size=2, stride=2).mT
    torch.testing.assert_close(in_any_order(smashed), in_any_order(patches))
    assert not torch.allclose(smashed, patches)


@pytest.mark.parametrize(
    ("width", "patch", "side"), [(768, 16, 16), (192, 4, 4), (192, 8, 8), (384, 16, 8), (24, 4, 2)]
)
def test_a_patchs_embedding_is_a_square_of_the_map(width: int, patch: int, side: int) -> None:
    assert side_of_patches(width, patch) == side


def test_patches_of_pixels_are_those_of_the_images_own_spectrum() -> None:
    images = torch.randn(2, 2, 16, 16)
    smashed = split(method="spectral-pixels").lower(images)
    assert smashed.shape == (2, 16, 2 * 2 * 4 * 4)
    patches = nn.functional.unfold(Spectrum()(images), kernel_size=4, stride=4).transpose(1, 2)
    assert torch.equal(in_any_order(smashed), in_any_order(patches))
    assert not torch.equal(smashed, patches)


@pytest.mark.parametrize("options", METHODS)
def test_the_edge_is_frozen_in_training_mode_too(options: dict[str, Any]) -> None:
    rates = {"proj_drop_rate": 0.5, "attn_drop_rate": 0.5, "drop_path_rate": 0.5}
    lower, upper = split(**{**options, **rates})
    images = torch.randn(1, 2, 16, 16)  # of one image no patch leaves
    calm = in_any_order(lower.eval()(images))
    torch.testing.assert_close(in_any_order(lower.train()(images)), calm)
    assert lower.training
    assert not any(p.requires_grad for p in lower.parameters())
    assert all(p.requires_grad for p in upper.parameters())
    assert not lower(images).requires_grad


def test_batch_shuffling_exchanges_patches_in_training_mode_only() -> None:
    lower = split(method="batch", kappa=0.5).lower
    edge = split(method="patch").lower
    images = torch.randn(4, 2, 16, 16)
    mixed, alone = (in_any_order(segment.train()(images)) for segment in (lower, edge))
    assert not torch.allclose(mixed, alone, atol=1e-3)
    torch.testing.assert_close(in_any_order(lower.eval()(images)), alone)


@pytest.mark.parametrize("options", METHODS)
def test_logits_do_not_depend_on_the_order(options: dict[str, Any]) -> None:
    """No position is left in either segment, of a patch or of a slot."""
    lower, upper = split(**options)
    images = torch.randn(3, 2, 16, 16)
    smashed = lower.eval()(images)
    upper.eval()
    torch.testing.assert_close(upper(smashed.flip(1)), upper(smashed))
    assert not any("pos" in key for segment in (lower, upper) for key in segment.state_dict())


@pytest.mark.parametrize("options", METHODS)
def test_both_segments_say_how_the_edge_shuffles(options: dict[str, Any]) -> None:
    lower, upper = split(**options)
    expected = {"kappa": 1.0, **options}
    assert lower.edge == upper.edge == expected
    width = {"spectral": 48, "spectral-pixels": 64}.get(options["method"], 24)
    assert lower.geometry == upper.geometry == Geometry(16, width, positions="none")
    assert tuple(lower(torch.randn(2, 2, 16, 16)).shape) == lower.geometry.shape(2)


def test_the_same_seed_freezes_the_same_edge() -> None:
    first, second = (split(method="patch").lower.state_dict() for _ in range(2))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert {t.dtype for t in first.values()} == {torch.float32}
    assert split(method="spectral").lower.state_dict().keys() < first.keys()  # no block
    assert not split(method="spectral-pixels").lower.state_dict()


def test_every_weight_of_the_upper_segment_learns() -> None:
    for options in METHODS:
        lower, upper = split(**options)
        upper(lower(torch.randn(3, 2, 16, 16))).square().sum().backward()
        assert all(p.grad is not None and p.grad.any() for p in upper.parameters())


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        (
            "",
            {"method": "pixel"},
            "method is 'pixel'; it must be one of 'patch', 'batch', 'spectral', 'sp",
        ),
        ("", {"method": "batch", "kappa": 0.0}, "kappa is 0.0; it must be greater than 0 and at"),
        ("", {"method": "batch", "kappa": 1.5}, "kappa is 1.5; it must be greater than 0 and at"),
        ("", {"method": "patch", "kappa": 0.5}, "kappa 0.5 is for the method 'batch' only"),
        ("", {"method": "patch", "depth": 1}, "depth 1 of vit_tiny_patch16_224 is not enough"),
        ("", {"method": "patch", "patch_size": 5}, "patch_size 5 does not divide image_size 16"),
        (
            "vgg16",
            {"method": "patch"},
            "patches of vgg16 cannot be shuffled; .* this one's class is VGG$",
        ),
        (
            "vit_small_patch16_dinov3",
            {"method": "patch"},
            "use a model of timm's class VisionTransformer, such .*; this one's class is Eva$",
        ),
        ("lenet5", {"method": "patch"}, "lenet5 cannot be shuffled; .* deit_tiny_patch16_224$"),
        ("vit_xsmall_patch16_clip_224", {"method": "patch"}, "normalises its tokens before the f"),
    ],
)
def test_errors_say_what_is_possible(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        split(name or "vit_tiny_patch16_224", **options)
