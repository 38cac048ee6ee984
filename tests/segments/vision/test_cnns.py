"""VGG, LeNet-5 and families in stages (ResNet, MobileNet, Swin, ...): cut, they equal the whole."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from timm.layers.classifier import ClassifierHead
from torch import Tensor, nn
from torch.nn import functional as F

from flwr_splitmix.segments import LowerSegment, SplitModel, split_vision_model
from flwr_splitmix.segments.vision.cut import open_vision_model
from flwr_splitmix.segments.vision.split_model import Request
from tests.segments.vision.passes import logits_and_gradient

SEED = 5
SWIN: dict[str, Any] = {"embed_dim": 32, "num_heads": (1, 2, 4, 8)}
NO_PATHS: dict[str, Any] = {"drop_path_rate": None}  # such models drop none
STAGED: list[tuple[str, str, dict[str, Any]]] = [
    *(("resnet18", cut_at, {}) for cut_at in ("stem", "layer1", "layer4")),
    ("resnet14t", "layer1", {"stem_width": 16}),  # three convolutions in its stem, bottlenecks
    ("seresnet18", "layer4", {}),
    ("resnetv2_18", "stages.0", {}),
    *(("regnety_002", cut_at, {}) for cut_at in ("stem", "s1", "s4")),
    *(("mobilenetv2_035", cut_at, {}) for cut_at in ("stem", "blocks.1", "blocks.6")),
    ("efficientnet_lite0", "blocks.1", {}),
    ("test_efficientnet_ln", "blocks.1", {}),  # its maps are channels-last in memory
    *(("mobilenetv3_small_050", cut_at, {}) for cut_at in ("stem", "blocks.0", "blocks.5")),
    ("mobilenetv4_conv_small_035", "blocks.0", {}),
    *(("test_convnext", cut_at, {}) for cut_at in ("stem", "stages.0", "stages.3")),
    ("mobilevit_xxs", "stages.1", {}),
    ("mobileone_s0", "stages.0", {}),
    *(("densenet121", f"features.{at}", NO_PATHS) for at in ("denseblock1", "transition3")),
    *(
        (name, "", NO_PATHS)
        for name in (
            "ghostnet_050",
            "repghostnet_050",
            "repvit_m0_9",
            "dla46_c",
            "legacy_seresnet18",
            "efficientvit_m0",
            "shvit_s1",
            "resmlp_12_224",
        )
    ),
    *(
        (name, "", {})
        for name in (
            "cs3darknet_focus_s",
            "ese_vovnet19b_slim_dw",
            "hgnetv2_b0",
            "edgenext_xx_small",
            "poolformer_s12",
            "test_nfnet",
            "fastvit_t8",
            "starnet_s050",
            "fasternet_t0",
            "rexnet_100",
            "pvt_v2_b0",
        )
    ),
    ("efficientvit_b0", "stages.3", NO_PATHS),  # its class is not in its entry point's annotation
    ("swiftformer_xs", "", {}),
    ("mambaout_femto", "stages.2", {}),  # its maps are channels-last
    ("levit_128s", "stages.1", {}),  # its stages are of tokens
    # The rest of these does not run in a row: what is above the cut is timm's own forward pass.
    ("hrnet_w18_small", "layer1", NO_PATHS),
    ("vit_relpos_small_patch16_224", "stem", {"embed_dim": 64, "num_heads": 2}),
    ("convit_tiny", "stem", {"embed_dim": 16, "num_heads": 4}),
    ("samvit_base_patch16", "stem", {"embed_dim": 64, "num_heads": 2}),  # channels-last, too
    # Their embeddings return the size of the grid, too, or take more than images.
    ("twins_svt_small", "stem", {"embed_dims": (16, 32, 64, 64), "num_heads": (1, 1, 2, 2)}),
    ("mvitv2_tiny", "stem", {}),
    ("hiera_tiny_224", "stem", {"embed_dim": 32}),
    ("coatnet_nano_rw_224", "stages.0", {}),  # built for one size of images
    *(("swin_tiny_patch4_window7_224", at, SWIN) for at in ("stem", "layers.0", "layers.3")),
    ("swinv2_tiny_window8_256", "layers.0", SWIN),
]
"""Models, their cuts, and options that make them small."""

SIZED = ("coatnet", "efficientvit_m0", "levit", "resmlp", "mvitv2", "hiera")
"""Beginnings of names of models that timm builds for one size of images."""

PATCHED = ("swin", "vit_relpos", "convit", "samvit", "twins")
"""The same for one size of images and of patches."""


def assert_same(pair: SplitModel, whole: nn.Module, images: Tensor) -> None:
    """Compare logits and gradients in training mode, then both again in evaluation mode."""
    joined = nn.Sequential(*pair)
    for mode in (True, False):
        ours, theirs = (
            logits_and_gradient(joined.train(mode), images),
            logits_and_gradient(whole.train(mode), images),
        )
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


def whole_vgg(name: str, pair: SplitModel, **options: Any) -> nn.Module:
    """Build timm's VGG with the small classifier and the segments' weights."""
    model: nn.Module = timm.create_model(name, in_chans=1, mlp_ratio=1 / 4096, **options)
    model.pre_logits = nn.Identity()
    model.head = ClassifierHead(512, 7, pool_type="avg", **options)
    states = {**pair.lower.state_dict(), **pair.upper.state_dict()}
    model.load_state_dict({k.replace("features_", "features."): t for k, t in states.items()})
    return model


@pytest.mark.parametrize(
    ("name", "cut_at"),
    [("vgg11", "features.0"), ("vgg11", "features.4"), ("vgg11_bn", "features.6"), ("vgg16", "")],
)
def test_a_vgg(name: str, cut_at: str) -> None:
    pair = split_vision_model(name, cut_at=cut_at, num_classes=7, seed=SEED, drop_rate=0.3)
    whole = whole_vgg(name, pair, drop_rate=0.3)
    assert_same(pair, whole, torch.randn(3, 1, 32, 32))


@pytest.mark.parametrize(("name", "cut_at", "small"), STAGED, ids=str)
def test_a_model_in_stages(name: str, cut_at: str, small: dict[str, Any]) -> None:
    options: dict[str, Any] = {"drop_rate": 0.3, "drop_path_rate": 0.2, **small}
    if name.startswith("resnetv2"):
        del options["drop_path_rate"]  # timm's own gives a stage of it two of its arguments
    sizes: dict[str, Any] = {"img_size": 32} if name.startswith((*SIZED, *PATCHED)) else {}
    if name.startswith(PATCHED):
        sizes["patch_size"] = 4
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        whole = timm.create_model(name, num_classes=7, in_chans=1, **options, **sizes)
    pair = split_vision_model(name, cut_at=cut_at, num_classes=7, cell=1, seed=SEED, **options)
    assert_same(pair, whole, torch.randn(3, 1, 32, 32))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("lcnetv2_small", 64), ("selecsls42", 64), ("dpn48b", 64), ("cspnext_tiny", 64),
        ("lowformer_b0", 64), ("iformer_t", 64), ("legacy_xception", 64), ("inception_v3", 128),
        ("efficientformerv2_s0", 224), ("cpubone_b0_bfrobust", 64), ("efficientvim_m1", 64),
    ],
)  # fmt: skip
def test_a_larger_model_computes_what_it_did_before_it_was_cut(
    name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one model, as most of the time goes into drawing weights."""
    images = torch.randn(1, 1, size, size)
    whole = timm.create_model(name, num_classes=7, in_chans=1).eval()
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: whole)
    with torch.no_grad():
        logits = whole(images)
        pair = split_vision_model(name, num_classes=7, image_size=size, cell=1)
        assert torch.equal(nn.Sequential(*pair).eval()(images), logits)


@pytest.mark.parametrize(
    "name",
    [
        "inception_v4", "inception_resnet_v2", "nest_tiny", "efficientformer_l1", "sequencer2d_s",
        "gcvit_xxtiny", "nasnetalarge", "pnasnet5large", "visformer_tiny", "swinv2_cr_tiny_224",
    ],
)  # fmt: skip
def test_the_parts_of_a_large_model_are_all_of_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its layout names parts that it has, and leaves no weight out; built without values."""
    request = Request(name, None, 7, 1, 64, 4, None, "lower", 1)
    with torch.device("meta"):
        whole = timm.create_model(name, num_classes=7, in_chans=1)
        weights = set(whole.parameters())
        monkeypatch.setattr(timm, "create_model", lambda *_, **__: whole)
        opened = open_vision_model(request)
    assert opened.default in opened.cuts
    assert {p for _, module in opened.stages for p in module.parameters()} == weights


@pytest.mark.parametrize("name", ["resmlp_12_224", "levit_128s"])
def test_tokens_cross_as_they_are(name: str) -> None:
    """A cell would join neighbours; after the stem, layers have used the places of tokens."""
    options: dict[str, Any] = {"image_size": 64, "cell": 3}
    opened = [
        split_vision_model(name, cut_at="stem", **options),
        split_vision_model(name, **options),
    ]
    images = torch.randn(2, 1, 64, 64)
    for (lower, _), positions in zip(opened, ("none", "lower"), strict=True):
        assert (lower.geometry.grid, lower.geometry.positions) == ((4, 4), positions)
        assert tuple(lower(images).shape) == lower.geometry.shape(2)


def test_a_model_with_a_part_that_its_family_lacks_is_refused() -> None:
    """Its stem has three convolutions; two of them would be left out without a word."""
    with pytest.raises(ValueError, match="densenetblur121d cannot be cut: it has a part that"):
        split_vision_model("densenetblur121d", image_size=64)


@pytest.mark.parametrize("cut_at", ["conv1", "pool1", "conv2", "pool2"])
def test_a_lenet5(cut_at: str) -> None:
    images = torch.randn(3, 1, 32, 32)
    pair = split_vision_model("lenet5", cut_at=cut_at, cell=1, seed=SEED)
    assert sum(p.numel() for segment in pair for p in segment.parameters()) == 61_706
    states: dict[str, Tensor] = {**pair.lower.state_dict(), **pair.upper.state_dict()}

    def weights(layer: str, suffix: str = ".0") -> tuple[Tensor, Tensor]:
        return states[f"{layer}{suffix}.weight"], states[f"{layer}{suffix}.bias"]

    x = F.avg_pool2d(torch.tanh(F.conv2d(images, *weights("conv1"))), 2)
    x = F.avg_pool2d(torch.tanh(F.conv2d(x, *weights("conv2"))), 2).flatten(1)
    x = torch.tanh(F.linear(torch.tanh(F.linear(x, *weights("fc1"))), *weights("fc2")))
    assert torch.equal(pair.upper(pair.lower(images)), F.linear(x, *weights("fc3", "")))


@pytest.mark.parametrize(
    ("name", "map_shape", "cell"),
    [
        ("vgg16", (64, 16, 16), 2),
        ("vgg16_bn", (64, 16, 16), 4),
        ("vgg11", (128, 16, 16), 8),  # its first pooling comes before its second convolution
        ("resnet18", (64, 8, 8), 2),
        ("regnety_002", (24, 8, 8), 2),
        ("mobilenetv2_100", (24, 8, 8), 2),
        ("mobilenetv3_small_100", (16, 8, 8), 4),
        ("convnext_atto", (40, 8, 8), 2),
        ("mobilevit_xxs", (24, 8, 8), 1),
        ("swin_tiny_patch4_window7_224", (96, 4, 4), 2),
        ("lenet5", (16, 10, 10), 5),
    ],
)
def test_the_default_cut_and_its_cells(
    name: str, map_shape: tuple[int, int, int], cell: int
) -> None:
    lower, upper = split_vision_model(name, cell=cell, depth=None, patch_size=8)
    channels, height, width = map_shape
    geometry = lower.geometry
    assert geometry == upper.geometry
    assert geometry.grid == (height // cell, width // cell)
    assert (geometry.width, geometry.prefix) == (channels * cell**2, 0)
    assert tuple(lower(torch.randn(2, 1, 32, 32)).shape) == geometry.shape(2)


def test_vgg16_has_the_papers_64_patches_and_no_giant_classifier() -> None:
    lower, upper = split_vision_model("vgg16", channels=3)
    assert (lower.geometry.patches, lower.geometry.width) == (64, 256)
    total = sum(p.numel() for segment in (lower, upper) for p in segment.parameters())
    assert total == 14_719_818


def test_a_vgg_for_224_pixels_keeps_its_own_classifier() -> None:
    _, upper = split_vision_model("vgg11", image_size=224, mlp_ratio=1 / 64)
    assert "pre_logits.fc1.weight" in dict(upper.named_parameters())


@pytest.mark.parametrize("name", ["vgg11_bn", "resnet18"])
def test_a_lower_segment_holds_what_can_travel(name: str) -> None:
    state = split_vision_model(name).lower.state_dict()
    assert {t.dtype for t in state.values()} == {torch.float32, torch.int64}


def test_the_positions_of_a_cnn_are_in_neither_segment() -> None:
    geometry = split_vision_model("lenet5", positions="upper").lower.geometry
    assert geometry.positions == "none"


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("vgg11", {"cut_at": "embedding"}, "has no cut 'embedding'; available: features.0, feat"),
        ("vgg11", {"image_size": 16}, "image_size 16 is too small, at least 32 is needed"),
        ("resnet18", {"cut_at": "layer5"}, "available: stem, layer1, layer2, layer3, layer4"),
        ("resnet18", {"cell": 3}, "cell 3 does not divide the 8 x 8 map .* one of 1, 2, 4, 8"),
        ("mobilenetv2_100", {"cut_at": "layer1"}, "available: stem, blocks.0, blocks.1, blocks.2"),
        ("halonet26t", {}, "halonet26t does not compute images of 32 x 32 pixels; try another"),
        ("swin_tiny_patch4_window7_224", {"patch_size": 5}, "patch_size 5 does not divide image"),
        ("lenet5", {"cut_at": "conv3"}, "available: conv1, pool1, conv2, pool2"),
        ("lenet5", {"image_size": 15}, "too small for lenet5, at least 16 is needed"),
        ("lenet5", {"num_classes": None}, "num_classes is None; pass num_classes=, the number"),
        ("resnet18", {"cut": "layer1"}, "resnet18 has no option 'cut' .the cut's name is cut_at"),
        ("lenet5", {"pretrained": True}, "lenet5 is not timm's and takes no option pretrained"),
    ],
)
def test_errors_say_what_is_possible(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        split_vision_model(name, **options)


def test_images_of_another_shape_are_refused_with_both_shapes() -> None:
    lower: LowerSegment = split_vision_model("lenet5").lower
    with pytest.raises(ValueError, match=r"shape \(1, 28, 28\), the lower segment expects \(1, 32"):
        lower(torch.zeros(2, 1, 28, 28))


@pytest.mark.parametrize("size", [16, 28, 33])
def test_lenet5_takes_images_of_other_sizes(size: int) -> None:
    lower, upper = split_vision_model("lenet5", image_size=size, cell=1)
    assert upper(lower(torch.randn(2, 1, size, size))).shape == (2, 10)


def test_a_size_that_a_model_cannot_compute_is_told() -> None:
    """MViTv2 looks relative positions up beyond its tables, which ends in an IndexError."""
    with pytest.raises(ValueError, match="does not compute images of 72 x 72 pixels: index"):
        split_vision_model("mvitv2_tiny", image_size=72)
