"""A trunk that is spread computes as before; what a CPU can show of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flwr_splitmix.segments.language import (
    LanguageCut,
    Trunk,
    build_language_parts,
    cut_language_model,
    export,
    place_trunk,
)
from tests.segments.language.tiny_models import DECODERS, config_of, whole_model

SPREAD = {"stack.layers.0": "cpu", "stack.layers.1": "disk", "stack.rotary_emb": "cpu"}


def trunk_of(name: str) -> Trunk:
    trunk = cut_language_model(whole_model(config_of(name)), LanguageCut(1, 1)).trunk
    assert trunk is not None
    return trunk


def hidden_states() -> torch.Tensor:
    return torch.randn(2, 9, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("name", DECODERS)
def test_a_trunk_partly_on_disk_computes_the_same(name: str, tmp_path: Path) -> None:
    trunk, hidden = trunk_of(name), hidden_states()
    expected = trunk(hidden)
    devices = {k: v for k, v in SPREAD.items() if k != "stack.rotary_emb" or name != "gpt2"}
    assert place_trunk(trunk, device_map=devices, offload_folder=tmp_path) is trunk
    assert all(weight.is_meta for weight in trunk.stack.layers[1].parameters())
    assert not any(weight.is_meta for weight in trunk.stack.layers[0].parameters())
    with torch.no_grad():
        assert torch.equal(trunk(hidden), expected)


@pytest.mark.parametrize("device_map", [{"": "cpu"}, "auto", "balanced"])
def test_a_trunk_in_one_place_still_learns(device_map: Any) -> None:
    trunk, hidden = trunk_of("llama"), hidden_states()
    expected = trunk(hidden)
    options = {} if isinstance(device_map, dict) else {"max_memory": {"cpu": "1GiB"}}
    place_trunk(trunk, device_map=device_map, **options)  # type: ignore[arg-type]
    out = trunk(hidden)
    assert torch.equal(out, expected)
    out.sum().backward()
    assert all(weight.grad is not None for weight in trunk.parameters())


def test_a_trunk_is_built_where_it_belongs(tmp_path: Path) -> None:
    model = whole_model(config_of("llama"))
    model.save_pretrained(tmp_path / "model")
    expected = trunk_of("llama")(hidden_states())
    parts = build_language_parts(
        tmp_path / "model", LanguageCut(1, 1), dtype="float64",
        device_map=SPREAD, offload_folder=tmp_path / "offload",
    )  # fmt: skip
    head, trunk, tail = parts.all_here()
    trunk.eval()
    with torch.no_grad():
        assert torch.equal(trunk(hidden_states()), expected)
    assert any(weight.is_meta for weight in trunk.parameters())
    assert not any(weight.is_meta for part in (head, tail) for weight in part.parameters())
    with pytest.raises(ValueError, match="the trunk has weights that are offloaded"):
        export(parts, tmp_path / "out")


def test_parts_go_to_one_device_whole() -> None:
    """The meta device stands for an accelerator."""
    parts = build_language_parts(config_of("qwen3"), LanguageCut(1, 1), device_map="meta")
    head, _, tail = parts.all_here()
    assert all(w.is_meta for part in parts.all_here() for w in part.parameters())
    assert head.get_parameter("embedding.embed_tokens.weight") is tail.get_parameter(
        "output.lm_head.weight"
    )


def test_placements_that_are_not_possible_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs an offload_folder"):
        place_trunk(trunk_of("llama"), device_map=SPREAD)
    with pytest.raises(ValueError, match=r"stack\.layers\.1"):
        place_trunk(trunk_of("llama"), device_map={"stack.layers.0": "cpu"})
    whole_model(config_of("llama")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"stack\.layers\.1"):
        build_language_parts(tmp_path, LanguageCut(1, 1), device_map={"stack.layers.0": "cpu"})
    with pytest.raises(ValueError, match="'everywhere'; it must be 'auto'"):
        place_trunk(trunk_of("llama"), device_map="everywhere")
    with pytest.raises(ValueError, match="max_memory is for"):
        place_trunk(trunk_of("llama"), device_map={"": "cpu"}, max_memory={"cpu": 1})
