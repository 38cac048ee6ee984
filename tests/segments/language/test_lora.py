"""Adapters on one part: what they change, what they freeze, and what merging leaves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import Phi3Config

from flwr_splitmix.segments.language import (
    LanguageCut,
    LanguageParts,
    add_lora,
    cut_language_model,
    merge_lora,
    trainable_state,
)
from tests.segments.language.tiny_models import (
    CASES,
    CONFIGS,
    ENCODERS,
    GROUPED,
    config_of,
    joined,
    logits_of,
    texts,
    whole_model,
)

TARGETS = {
    "gpt2": {"c_attn"},
    "gpt_neox": {"query_key_value"},
    "gpt_bigcode": {"c_attn"},
    **{name: {"query_key_value"} for name in ("bloom", "falcon", "falcon_alibi")},
    "mpt": {"Wqkv"},
    **{name: {"query", "value"} for name in ("bert", "roberta", "electra")},
    "distilbert": {"q_lin", "v_lin"},
    "deberta": {"in_proj"},
    "deberta-v2": {"query_proj", "value_proj"},
    "mpnet": {"q", "v"},
    "modernbert": {"Wqkv"},
}


def cut(name: str, task: str = "generation") -> tuple[Any, LanguageParts]:
    model = whole_model(config_of(name, task), task)
    return model, cut_language_model(model, LanguageCut(1, 1))


def train(part: nn.Module) -> None:
    """Move the weights that are trained, so that adapters do something."""
    with torch.no_grad():
        for weight in trainable_state(part).values():
            weight.add_(torch.randn_like(weight), alpha=0.3)


@pytest.mark.parametrize(("name", "task"), CASES)
def test_adapters_change_nothing_until_trained_and_merging_keeps_what_they_learnt(
    name: str, task: str
) -> None:
    model, parts = cut(name, task)
    batch = texts()
    expected = logits_of(model, *batch)
    names = [set(part.state_dict()) for part in parts.all_here()]
    for part in parts.all_here():
        add_lora(part, rank=2, alpha=4)
    torch.testing.assert_close(joined(parts, *batch), expected, rtol=1e-12, atol=1e-12)
    for part in parts.all_here():
        train(part)
    learnt = joined(parts, *batch)
    assert not torch.allclose(learnt, expected, atol=1e-3)
    for part in parts.all_here():
        merge_lora(part)
        assert all(weight.requires_grad for weight in part.parameters())
    assert [set(part.state_dict()) for part in parts.all_here()] == names
    torch.testing.assert_close(joined(parts, *batch), learnt, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(logits_of(model, *batch), learnt, rtol=1e-10, atol=1e-10)


@pytest.mark.filterwarnings("error:fan_in_fan_out")
@pytest.mark.parametrize("name", CONFIGS)
def test_only_the_adapters_of_one_part_are_trained(name: str) -> None:
    task = "classification" if name in ENCODERS else "generation"
    _, parts = cut(name, task)
    head, trunk, tail = parts.all_here()
    before = {key: value.clone() for key, value in trunk.state_dict().items()}
    add_lora(trunk, rank=2)
    state = trainable_state(trunk)
    targets = TARGETS.get(name, {"q_proj", "v_proj"})
    assert {key.split(".lora_")[0].split(".")[-1] for key in state} == targets
    assert len(state) == 2 * 2 * len(targets)  # A and B, of two layers
    assert all(len(value) == 2 for key, value in state.items() if "lora_A" in key)
    torch.autograd.backward(joined(parts, *texts()).sum())
    with_gradient = {key for key, w in trunk.named_parameters() if w.grad is not None}
    assert with_gradient == set(state)
    for part in (head, tail):
        assert trainable_state(part).keys() == dict(part.named_parameters()).keys()
    frozen = {key.replace("base_layer.", ""): value for key, value in trunk.state_dict().items()}
    assert all(torch.equal(frozen[key], value) for key, value in before.items())


def test_a_model_whose_queries_and_values_are_one_layer_is_adapted_there() -> None:
    trunk = cut_language_model(whole_model(Phi3Config(**GROUPED)), LanguageCut(1, 1)).trunk
    assert trunk is not None
    add_lora(trunk, rank=2)
    assert {key.split(".lora_")[0].split(".")[-1] for key in trainable_state(trunk)} == {"qkv_proj"}


def test_what_one_part_learnt_can_be_put_into_another() -> None:
    (_, first), (_, second) = cut("llama"), cut("llama")
    for parts in (first, second):
        for part in parts.all_here():
            add_lora(part, rank=2)
    for trained, other in zip(first.all_here(), second.all_here(), strict=True):
        train(trained)
        other.load_state_dict(trainable_state(trained), strict=False)
    batch = texts()
    assert torch.equal(joined(first, *batch), joined(second, *batch))


def test_adapters_start_as_the_seed_says() -> None:
    states = []
    for seed in (1, 1, 2):
        trunk = cut("llama")[1].trunk
        assert trunk is not None
        add_lora(trunk, seed=seed)
        states.append(trainable_state(trunk))
    keys = [key for key in states[0] if "lora_A" in key]
    assert all(torch.equal(states[0][key], states[1][key]) for key in keys)
    assert not any(torch.equal(states[0][key], states[2][key]) for key in keys)


def test_adapters_of_a_part_in_bfloat16_are_in_bfloat16() -> None:
    model = whole_model(config_of("llama"), dtype="bfloat16")
    trunk = cut_language_model(model, LanguageCut(1, 1)).trunk
    assert trunk is not None
    add_lora(trunk, rank=2)
    assert {tensor.dtype for tensor in trainable_state(trunk).values()} == {torch.bfloat16}


def test_dropout_is_off_in_evaluation() -> None:
    _, parts = cut("llama")
    trunk = parts.all_here()[1]
    add_lora(trunk, rank=2, dropout=0.5)
    train(trunk)
    batch = texts()
    assert torch.equal(joined(parts, *batch), joined(parts, *batch))
    trunk.train()
    assert not torch.equal(joined(parts, *batch), joined(parts, *batch))


def test_a_tied_output_layer_freezes_with_the_embedding() -> None:
    head, _, tail = cut("qwen3")[1].all_here()
    add_lora(head, rank=2)
    assert not tail.get_parameter("output.lm_head.weight").requires_grad


def test_adapters_that_are_not_possible_are_refused() -> None:
    head, trunk, tail = cut("llama")[1].all_here()
    with pytest.raises(ValueError, match=r"no layer named c_attn to adapt; it has .*q_proj"):
        add_lora(trunk, targets=["c_attn"])
    with pytest.raises(ValueError, match="rank is 0"):
        add_lora(head, rank=0)
    with pytest.raises(ValueError, match=r"dropout 1\.0"):
        add_lora(tail, dropout=1.0)
    add_lora(tail)
    with pytest.raises(ValueError, match="the tail has adapters already"):
        add_lora(tail)
    bare = cut_language_model(whole_model(config_of("llama")), LanguageCut(0, 1)).head
    assert bare is not None
    with pytest.raises(ValueError, match="head has no layer named q_proj, v_proj"):
        add_lora(bare)
