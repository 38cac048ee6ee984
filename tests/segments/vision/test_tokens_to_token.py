"""Tokens-to-token: its numbers, its windows, and the frozen edges that embed with it."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.optimizers import adamw
from flwr_splitmix.runs.export.predict import load_segments
from flwr_splitmix.runs.export.vision import write_vision
from flwr_splitmix.segments import Geometry, SplitModel, split_shuffled_edge
from flwr_splitmix.segments.costs import measure, measure_stages
from flwr_splitmix.segments.vision.tokens_to_token import TokenLayer, TokensToToken

pytestmark = pytest.mark.usefixtures("repeatable")

WINDOWS = {4: [(3, 2, 1)] * 2, 8: [(3, 2, 1)] * 3, 16: [(7, 4, 2), (3, 2, 1), (3, 2, 1)]}
"""Side, stride and padding of each soft split."""

REACH = {4: (3, 3), 8: (7, 7), 16: (14, 16)}
"""How many pixels a token sees before and behind the first of its patch, by rows and columns."""

T2T: dict[str, Any] = {"embedding": "tokens-to-token"}


def split(**options: Any) -> SplitModel:
    usual: dict[str, Any] = {"num_classes": 7, "channels": 2, "image_size": 16, "depth": 3}
    small = {"embed_dim": 24, "num_heads": 3, "seed": 7}
    return split_shuffled_edge(**{"method": "patch", **usual, **small, **options})


def embedding(channels: int, width: int, patch: int) -> TokensToToken:
    """Return an embedding whose every weight differs from an untrained one's."""
    module = TokensToToken(channels, width, patch).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return module


def windows_by_hand(maps: Tensor, side: int, stride: int, padding: int) -> list[Tensor]:
    """Return the windows of a map (C, rows, columns), row by row, one number at a time."""
    channels, rows, columns = maps.shape
    windows = []
    for top, left in itertools.product(range(0, rows, stride), range(0, columns, stride)):
        numbers = []
        for channel, down, right in itertools.product(range(channels), range(side), range(side)):
            y, x = top - padding + down, left - padding + right
            inside = 0 <= y < rows and 0 <= x < columns
            numbers.append(float(maps[channel, y, x]) if inside else 0.0)
        windows.append(torch.tensor(numbers, dtype=torch.float64))
    return windows


def normed(vector: Tensor, norm: Any) -> Tensor:
    centred = vector - vector.mean()
    scaled: Tensor = centred / (centred.square().mean() + norm.eps).sqrt() * norm.weight + norm.bias
    return scaled


def layer_by_hand(layer: Any, windows: list[Tensor]) -> list[Tensor]:
    """Return the tokens of windows: attention, then the MLP, one token at a time."""
    triples = [(layer.qkv.weight @ normed(window, layer.norm)).split(64) for window in windows]
    norm, first, _, second = layer.mlp
    tokens = []
    for query, _, value in triples:
        scores = [math.exp(float(query @ key) / 8) for _, key, _ in triples]  # 8 is 64 ** 0.5
        parts = [score * other for score, (_, _, other) in zip(scores, triples, strict=True)]
        mixed = sum(parts, torch.zeros(64, dtype=torch.float64)) / sum(scores)
        token = value + layer.attended.weight @ mixed + layer.attended.bias
        inner = first.weight @ normed(token, norm) + first.bias
        bent = 0.5 * inner * (1 + torch.erf(inner / math.sqrt(2)))
        tokens.append(token + second.weight @ bent + second.bias)
    return tokens


@pytest.mark.parametrize(("size", "patch"), [(8, 4), (16, 8), (32, 16), (12, 4)])
@torch.no_grad()
def test_the_tokens_are_those_of_loops_over_windows(size: int, patch: int) -> None:
    module, image = embedding(2, 5, patch), torch.randn(2, size, size, dtype=torch.float64)
    maps, shapes = image, WINDOWS[patch]
    for layer, shape in zip(module.layers, shapes, strict=False):
        tokens = layer_by_hand(layer, windows_by_hand(maps, *shape))
        side = math.isqrt(len(tokens))
        maps = torch.stack(tokens, dim=1).reshape(64, side, side)
    last = windows_by_hand(maps, *shapes[-1])
    expected = torch.stack([module.projection(window) for window in last])
    torch.testing.assert_close(module(image[None])[0], expected)
    other = torch.randn_like(image)
    torch.testing.assert_close(module(torch.stack([other, image]))[1], expected)


@pytest.mark.parametrize(
    ("size", "patch"),
    [(16, 4), (16, 8), (16, 16), (28, 4), (32, 4), (32, 8), (32, 16), (224, 8), (224, 16)],
)
def test_there_is_one_token_for_each_patch(size: int, patch: int) -> None:
    with torch.device("meta"):
        tokens = TokensToToken(3, 40, patch)(torch.empty(2, 3, size, size))
    assert tuple(tokens.shape) == (2, (size // patch) ** 2, 40)


@pytest.mark.parametrize(("size", "patch"), [(28, 4), (32, 4), (32, 8), (64, 16)])
@torch.no_grad()
def test_without_attention_a_pixel_moves_the_tokens_in_whose_windows_it_is(
    size: int, patch: int
) -> None:
    module, side = embedding(1, 6, patch), size // patch
    for layer in module.layers:
        assert isinstance(layer, TokenLayer)
        nn.init.zeros_(layer.attended.weight)
    image = torch.randn(1, 1, size, size, dtype=torch.float64)
    before, after = REACH[patch]
    plain = module(image)
    for y, x in [(0, 0), (size - 1, size - 1), (5, size // 2), (size // 2 - 1, 9), (8, 0)]:
        changed = image.clone()
        changed[0, 0, y, x] += 1
        moved = (module(changed) - plain)[0].abs().amax(1) > 1e-12
        at = range(0, size, patch)
        expected = [
            top - before <= y <= top + after and left - before <= x <= left + after
            for top in at
            for left in at
        ]
        assert moved.tolist() == expected, (y, x)
        assert moved[(y // patch) * side + x // patch]  # its own patch's, row by row


@torch.no_grad()
def test_with_attention_a_pixel_moves_all_tokens() -> None:
    module, image = embedding(1, 6, 8), torch.randn(1, 1, 32, 32, dtype=torch.float64)
    changed = image.clone()
    changed[0, 0, 0, 0] += 1
    assert ((module(changed) - module(image)).abs().amax(2) > 1e-12).all()


def test_initial_weights_are_small_and_biases_zero() -> None:
    module = TokensToToken(3, 384, 16)
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif parameter.ndim == 2:
            assert float(parameter.detach().std()) == pytest.approx(0.02, rel=0.05), name
            assert float(parameter.detach().abs().max()) < 2, name


def test_its_parameters_are_those_of_the_papers_layers() -> None:
    """At the width of T2T-ViT-24, 512: two layers on windows of 147 and 576, one projection."""
    layers = sum(2 * w + 192 * w + 3 * 64 * 64 + 3 * 64 + 128 for w in (3 * 7 * 7, 64 * 3 * 3))
    count = sum(p.numel() for p in TokensToToken(3, 512, 16).parameters())
    assert count == layers + 576 * 512 + 512 == 460_902


@pytest.mark.parametrize(
    ("size", "patch", "tokens"), [(32, 4, [256]), (32, 8, [256, 64]), (64, 16, [256, 64])]
)
def test_multiply_adds_are_counted_with_attention(size: int, patch: int, tokens: list[int]) -> None:
    images, final = torch.zeros(2, 2, size, size), (size // patch) ** 2
    widths = [2 * WINDOWS[patch][0][0] ** 2, 576, 576]
    expected = sum(
        n * (192 * window + 3 * 64 * 64) + 2 * n * n * 64
        for n, window in zip(tokens, widths, strict=False)
    )
    expected += final * 576 * 24
    lower = split(**T2T, image_size=size, patch_size=patch).lower
    first, shuffle, block = measure_stages(list(lower.children()), images)
    assert first.forward_macs == first.training_macs == expected
    assert shuffle.forward_macs == 0
    assert first.trainable == first.activation_bytes_per_sample == 0
    costs = measure(lower, images, adamw(), averages=False)
    assert costs.forward_macs == costs.training_macs == expected + block.forward_macs


def test_the_edge_is_tokens_to_token_and_the_first_block() -> None:
    lower, images = split(**T2T).lower.eval(), torch.randn(3, 2, 16, 16)
    stages: Any = dict(lower.named_children())
    assert list(stages) == ["embedding", "shuffle", "block_0"]
    expected = stages["block_0"](stages["embedding"](images))
    smashed = lower(images)
    assert lower.geometry == Geometry(16, 24, positions="none")
    # A block does not see the order of its tokens.
    torch.testing.assert_close(smashed.sum(1), expected.sum(1), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(smashed, expected)


@pytest.mark.parametrize("options", [{"method": "patch"}, {"method": "batch", "kappa": 0.5}])
def test_it_is_frozen_and_the_upper_segment_learns(options: dict[str, Any]) -> None:
    lower, upper = split(**T2T, **options)
    assert not any(p.requires_grad for p in lower.parameters())
    images = torch.randn(3, 2, 16, 16)
    upper(lower(images)).square().sum().backward()
    assert all(p.grad is None for p in lower.parameters())
    assert all(p.grad is not None and p.grad.any() for p in upper.parameters())
    assert lower.edge == upper.edge == {"kappa": 1.0, **options, **T2T}


def same(one: Any, other: Any) -> bool:
    """Return whether two modules have equal weights under equal names."""
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_a_seed_has_its_weights_and_those_beside_the_embedding_are_the_plain_ones() -> None:
    seeded, again, plain, other = split(**T2T), split(**T2T), split(), split(**{**T2T, "seed": 8})
    assert same(seeded.lower, again.lower)
    assert same(seeded.upper, again.upper)
    assert same(seeded.lower.block_0, plain.lower.block_0)
    assert same(seeded.upper, plain.upper)
    assert not same(seeded.lower.embedding, other.lower.embedding)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"patch_size": 2}, "patch_size is 2; the embedding 'tokens-to-token' allows 4, 8, 16"),
        ({"patch_size": 5}, "patch_size 5 does not divide image_size 16"),
        ({"method": "spectral"}, r"'tokens-to-token' is for .*'spectral' has ViT's patch embed"),
        ({"method": "spectral-pixels"}, r"is for the methods 'patch' and 'batch'.*section V-A"),
        ({"pretrained": True}, "'tokens-to-token' has no pretrained weights in timm; allowed with"),
        ({"embedding": "t2t"}, "embedding is 't2t'; it must be one of 'patch', 'tokens-to-token'"),
    ],
)
def test_errors_say_what_is_possible(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        split(**{**T2T, **options})


def test_an_export_is_read_back_with_its_embedding(tmp_path: Path) -> None:
    sizes = {"num_classes": 3, "channels": 1, "image_size": 16, "patch_size": 4, "depth": 2}
    call = {"name": "vit_tiny_patch16_224", "method": "batch", "kappa": 0.5, **T2T, **sizes}
    segments = split_shuffled_edge(**call, seed=3)
    none = dict.fromkeys(("client", "accuracy", "epsilon"))
    counts = dict.fromkeys(("round", "rounds", "clients", "parts", "seed"), 1)
    words = dict.fromkeys(("model", "run", "dataset", "partition"), "toy")
    steps = {"channels": 1, "stored_size": [16, 16], "image_size": 16, "mean": [0.5], "std": [0.5]}
    facts = {
        **none, **counts, **words, "versions": {}, "strategy": "BatchShuffleSL",
        "averaged": False,
        "classes": ["a", "b", "c"], "preprocessing": steps,
        "segments": {"made_by": "split_shuffled_edge", "arguments": call},
    }  # fmt: skip
    written = write_vision(tmp_path / "model", segments, facts, onnx=False, force=False)
    assert written["timm_lacks"] == "its edge shuffles tokens, which no model of timm does"
    lower, upper = load_segments(tmp_path / "model")
    images = torch.randn(2, 1, 16, 16)
    torch.testing.assert_close(upper(lower(images)), segments.upper(segments.lower(images)))
