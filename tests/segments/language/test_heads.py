"""Heads that do not fit each other are refused when parts are built, not in a run's first round."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from flwr_splitmix.segments.language import LanguageCut, build_language_parts

SIZES: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "default"), [("Qwen3", 32), ("Gemma", 16), ("StableLm", 32), ("Helium", 20)]
)
@pytest.mark.parametrize("part", ["head", "trunk", "tail"])
def test_key_value_heads_that_do_not_divide_the_heads_are_named(
    kind: str, default: int, part: str
) -> None:
    """They may be a configuration's default, of which the first round says: inputs do not fit."""
    config = getattr(transformers, f"{kind}Config")
    message = f"num_attention_heads is 4, num_key_value_heads is {default}.*must divide"
    with pytest.raises(ValueError, match=message):
        build_language_parts(config(**SIZES), LanguageCut(1, 1), parts=(part,))
    fits = config(**SIZES, num_key_value_heads=2, head_dim=8)
    build_language_parts(fits, LanguageCut(1, 1), parts=(part,))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (transformers.GPTJConfig(vocab_size=100, n_embd=32, n_layer=3, n_head=4), "rotary_dim is"),
        (
            transformers.Qwen2Config(**{**SIZES, "hidden_size": 30}, num_key_value_heads=2),
            "hidden_size is 30, num_attention_heads is 4, num_key_value_heads is 2 \\(",
        ),
        (
            transformers.HeliumConfig(**{**SIZES, "hidden_size": 30}, num_key_value_heads=2),
            "hidden_size is 30.*head_dim is 128 \\(",
        ),
    ],
    ids=["rotated dimensions", "odd width of a head", "output of the heads"],
)
def test_other_shapes_within_layers_are_named_too(config: Any, message: str) -> None:
    with pytest.raises(
        ValueError, match=f"cannot be computed with this configuration: .*{message}"
    ):
        build_language_parts(config, LanguageCut(1, 1))


def test_without_a_layer_in_a_part_there_is_nothing_to_try() -> None:
    config = transformers.Qwen3Config(**SIZES)
    assert build_language_parts(config, LanguageCut(0, 1), parts=("head",)).head is not None
