"""Which models can be cut, beyond the listed ones; what is said of the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    GptOssConfig,
    LlamaConfig,
    Starcoder2Config,
)

from flwr_splitmix.segments.language import LanguageCut, cut_language_model
from flwr_splitmix.segments.language.build import open_skeleton
from tests.segments.language.tiny_models import GROUPED, joined, logits_of, texts, whole_model

ONE_EACH = LanguageCut(1, 1)


@pytest.mark.parametrize(
    "config",
    [
        AutoConfig.for_model("llama", **GROUPED, sliding_window=3),
        AutoConfig.for_model("olmo2", **GROUPED, sliding_window=3),
        # It has two kinds of layers, sinks and experts, and no "sdpa".
        GptOssConfig(
            **{**GROUPED, "num_hidden_layers": 4}, head_dim=8, sliding_window=3,
            num_local_experts=4, num_experts_per_tok=2,
        ),
    ],
    ids=lambda config: config.model_type,
)  # fmt: skip
def test_a_window_counts_where_the_model_reads_it(config: Any) -> None:
    model, batch = whole_model(config), texts()
    assert torch.equal(
        joined(cut_language_model(model, ONE_EACH), *batch), logits_of(model, *batch)
    )
    open_skeleton(config, ONE_EACH, task="generation", num_labels=2, dtype="float32")


def test_a_dropout_that_no_part_has_is_found() -> None:
    """Starcoder2 drops embeddings, which the head does not."""
    model = whole_model(Starcoder2Config(**GROUPED, embedding_dropout=0.1))
    with pytest.raises(ValueError, match=r"'starcoder2' cannot be cut"):
        cut_language_model(model, ONE_EACH)
    config = Starcoder2Config(**GROUPED, embedding_dropout=0.0, residual_dropout=0.3)
    model, batch = whole_model(config).train(), texts()
    parts = cut_language_model(model, ONE_EACH)
    torch.manual_seed(1)
    expected = logits_of(model, *batch)
    torch.manual_seed(1)
    assert torch.equal(joined(parts, *batch), expected)


@pytest.mark.parametrize(
    ("name", "task", "why"),
    [
        ("albert", "classification", "all its layers are one set of weights"),
        ("t5", "classification", "each layer of its decoder reads what its encoder returns"),
        ("mbart", "generation", "each layer of its decoder reads what its encoder returns"),
        ("deberta-v2", "generation", "it is an encoder"),
        ("mamba", "generation", "carry a state from token to token"),
        ("granite", "classification", "transformers has no such model"),
        ("xlnet", "generation", "no layout of this package has its modules"),
        # Their configuration cannot be made small.
        ("gemma4_text", "generation", ""), ("cwm", "generation", ""),
        # Of their configuration transformers makes no model for texts alone.
        ("qwen3_5", "generation", ""), ("llama4", "generation", ""), ("emu3", "generation", ""),
        ("dbrx", "generation", ""),
    ],
)  # fmt: skip
def test_another_model_is_refused_with_the_reason_and_those_that_are_not(
    name: str, task: Any, why: str
) -> None:
    config = AutoConfig.for_model(name)
    message = (
        f"type .{name}. cannot be cut for {task}: .*{why}.*; these types can: ll.*Llama does, "
    )
    with pytest.raises(ValueError, match=message):
        open_skeleton(config, ONE_EACH, task=task, num_labels=2, dtype="float32")


def test_a_listed_model_with_a_wrong_configuration_is_not_said_to_be_another() -> None:
    config = LlamaConfig(**GROUPED, hidden_act="nothing")
    with pytest.raises(ValueError, match=r"no model of type 'llama' .* configuration .*'nothing'"):
        open_skeleton(config, ONE_EACH, task="generation", num_labels=2, dtype="float32")
