"""Head, trunk and tail one behind the other compute what the whole model does."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    CohereConfig,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
)

from flwr_splitmix.segments.language import LanguageCut, cut_language_model
from flwr_splitmix.segments.language.build import checkpoint_layers
from flwr_splitmix.segments.language.layouts.decoders import LLAMA
from flwr_splitmix.segments.language.layouts.trial import agrees
from tests.segments.language.tiny_models import (
    CASES,
    DECODERS,
    GROUPED,
    LAYERS,
    SIZES,
    TABLES,
    config_of,
    gradients,
    joined,
    logits_of,
    texts,
    whole_model,
)

CUTS = [LanguageCut(0, 0), LanguageCut(1, 1), LanguageCut(3, 0), LanguageCut(0, 3)]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("name", "task"), CASES)
def test_the_parts_equal_the_whole_at_every_cut(name: str, task: str, padded: bool) -> None:
    # A DeBERTa of transformers drawn in bfloat16 has biases in float32, and does not run.
    for dtype in ("float64", "float32", *(["bfloat16"] if name != "deberta" else [])):
        model, batch = whole_model(config_of(name, task), task, dtype), texts(padded)
        expected = logits_of(model, *batch)
        for cut in CUTS if dtype == "float64" else CUTS[1:2]:
            assert torch.equal(joined(cut_language_model(model, cut), *batch), expected), (
                cut, dtype,
            )  # fmt: skip


def split_gradients(model: nn.Module, ids: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """Return the gradients after a step in which only detached tensors cross the cuts."""
    head, trunk, tail = cut_language_model(model, LanguageCut(1, 2)).all_here()
    encoded = head(ids, mask)
    at_trunk = encoded.detach().requires_grad_()
    middle = trunk(at_trunk, mask)
    at_tail = middle.detach().requires_grad_()
    torch.autograd.backward(tail(at_tail, mask).square().sum())
    torch.autograd.backward(middle, at_tail.grad)
    torch.autograd.backward(encoded, at_trunk.grad)
    return gradients(model)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("name", "task"), CASES)
def test_gradients_through_detached_cuts_equal_the_wholes(
    name: str, task: str, checkpointing: bool
) -> None:
    """In training mode: dropout is drawn alike, and checkpointing recomputes it."""
    for padded in (True,) if checkpointing else (False, True):
        model, batch = whole_model(config_of(name, task), task).train(), texts(padded)
        if checkpointing and name == "mpnet":
            with pytest.raises(ValueError, match=r"MPNet.* does not support .*checkpointing"):
                checkpoint_layers(model)
            return
        if checkpointing:
            checkpoint_layers(model)
        torch.manual_seed(1)
        torch.autograd.backward(logits_of(model, *batch).square().sum())
        expected = gradients(model)
        model.zero_grad()
        torch.manual_seed(1)
        split = split_gradients(model, *batch)
        assert expected.keys() == dict(model.named_parameters()).keys()
        assert expected.keys() - split.keys() == TABLES.get(name, set())
        for key, gradient in split.items():
            torch.testing.assert_close(gradient, expected[key], rtol=1e-10, atol=1e-12)


def test_training_leaves_out_the_layers_that_opt_would() -> None:
    config = config_of("opt")
    config.layerdrop = 0.5
    model, batch = whole_model(config).train(), texts(padded=False)
    parts = cut_language_model(model, LanguageCut(1, 2))
    for seed in range(4):
        torch.manual_seed(seed)
        expected = logits_of(model, *batch)
        torch.manual_seed(seed)
        assert torch.equal(joined(parts, *batch), expected)


def test_checkpointing_keeps_only_the_layers_inputs() -> None:
    """Fewer bytes are saved for the backward pass, in the trunk alone."""

    def saved(checkpointing: bool) -> int:
        model = whole_model(config_of("llama")).train()
        if checkpointing:
            checkpoint_layers(model)
        trunk = cut_language_model(model, LanguageCut(1, 1)).trunk
        assert trunk is not None
        total = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal total
            total += tensor.nbytes
            return tensor

        hidden = torch.randn(2, 9, 16, dtype=torch.float64, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            trunk(hidden, None)
        return total

    assert saved(True) < saved(False) / 5


def test_the_parts_share_the_models_weights() -> None:
    model = whole_model(config_of("qwen3"))
    parts = cut_language_model(model, LanguageCut(1, 1))
    whole = {id(weight) for weight in model.parameters()}
    assert {id(w) for part in parts.all_here() for w in part.parameters()} == whole
    assert parts.tied
    head, _, tail = parts.all_here()
    assert head.get_parameter("embedding.embed_tokens.weight") is tail.get_parameter(
        "output.lm_head.weight"
    )
    assert not cut_language_model(whole_model(config_of("llama")), LanguageCut(1, 1)).tied


def test_parts_can_be_copied_and_pickled() -> None:
    for name, task in CASES:
        model, batch = whole_model(config_of(name, task), task), texts()
        parts = cut_language_model(model, LanguageCut(1, 1))
        for again in (copy.deepcopy(parts), pickle.loads(pickle.dumps(parts))):
            assert torch.equal(joined(again, *batch), joined(parts, *batch))


def test_the_facts_of_the_whole() -> None:
    parts = cut_language_model(
        whole_model(config_of("bert", "classification"), "classification"),
        LanguageCut(1, 1),
        parts=("head",),
    )
    assert (parts.width, parts.layers, parts.vocab_size, parts.max_length) == (16, 4, 50, 64)
    assert (parts.kind, parts.task, parts.num_labels) == ("encoder", "classification", 3)
    assert parts.trunk is None
    assert parts.tail is None
    with pytest.raises(ValueError, match="not built: trunk and tail"):
        parts.all_here()


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2"])
def test_padding_changes_no_answer(name: str) -> None:
    """A decoder classifies at a text's last token, wherever the padding begins."""
    model = whole_model(config_of(name, "classification"), "classification")
    parts = cut_language_model(model, LanguageCut(1, 1))
    ids, mask = texts()
    alone = joined(parts, ids[2:, :3], None)
    torch.testing.assert_close(joined(parts, ids, mask)[2:], alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["mistral", "qwen2"])
def test_sliding_layers_do_not_see_beyond_their_window(name: str) -> None:
    """The tail's layer of the last token attends to three tokens, those of the head to all."""
    model = whole_model(config_of(name))
    tail = cut_language_model(model, LanguageCut(2, 1)).tail
    assert tail is not None
    hidden = torch.randn(1, 9, 16, dtype=torch.float64)
    other = hidden.clone()
    other[:, :6] = torch.randn(1, 6, 16, dtype=torch.float64)
    assert torch.equal(tail(hidden)[:, -1], tail(other)[:, -1])
    other[:, 6] += 1
    assert not torch.equal(tail(hidden)[:, -1], tail(other)[:, -1])


@pytest.mark.parametrize(
    "config",
    [
        MixtralConfig(**GROUPED, num_local_experts=4),
        Olmo2Config(**GROUPED),
        Phi3Config(**GROUPED),
        # They scale the embeddings, the logits or both, or cap the logits.
        GraniteConfig(**GROUPED, embedding_multiplier=2.0, logits_scaling=3.0),
        CohereConfig(**GROUPED, logit_scale=0.5),
        Gemma2Config(**GROUPED, head_dim=8, sliding_window=3, final_logit_softcapping=0.5),
        DeepseekV3Config(
            **SIZES, num_key_value_heads=2, q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4,
            qk_nope_head_dim=4, v_head_dim=4, n_routed_experts=4, num_experts_per_tok=2,
            n_group=1, topk_group=1, moe_intermediate_size=8, first_k_dense_replace=1,
        ),
        # Two kinds of rotations.
        Gemma3TextConfig(**GROUPED, head_dim=8, sliding_window=3),
    ],
    ids=lambda config: config.model_type,
)  # fmt: skip
def test_decoders_that_compute_as_llama_does_need_not_be_listed(config: object) -> None:
    # In float64 Gemma 2's own attention makes NaN of padding.
    model, batch = whole_model(config, dtype="float32"), texts()
    assert torch.equal(
        joined(cut_language_model(model, LanguageCut(1, 1)), *batch), logits_of(model, *batch)
    )


def test_a_model_that_computes_otherwise_is_refused() -> None:
    """Gemma 3 may see texts in both directions."""
    model = whole_model(Gemma3TextConfig(**GROUPED, head_dim=8, use_bidirectional_attention=True))
    with pytest.raises(
        ValueError, match=r"'gemma3_text' cannot be cut .*has Llama's modules, but.*can: llama"
    ):
        cut_language_model(model, LanguageCut(1, 1))


class ShiftedLlama(LlamaForCausalLM):  # type: ignore[no-untyped-call]
    """A model that adds to the embeddings, with weights that start at zero."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.shift = nn.Parameter(torch.zeros(config.hidden_size))

    def forward(self, input_ids: Tensor, **options: Any) -> Any:
        embedded = self.model.embed_tokens(input_ids) + self.shift
        return super().forward(inputs_embeds=embedded, **options)


def test_a_trial_finds_what_a_model_does_differently() -> None:
    config = config_of("llama")
    assert agrees(LlamaForCausalLM(config), LLAMA)
    assert not agrees(ShiftedLlama(config), LLAMA)


def test_a_part_keeps_the_modes_of_the_model() -> None:
    model = whole_model(config_of("llama")).eval()
    parts = cut_language_model(model, LanguageCut(1, 1)).all_here()
    assert not any(module.training for part in parts for module in part.modules())
    model.train().model.layers[1].eval()
    _, trunk, _ = cut_language_model(model, LanguageCut(1, 1)).all_here()
    assert [layer.training for layer in (trunk, *trunk.stack.layers)] == [True, False, True]


def test_a_part_can_move_to_another_device_alone() -> None:
    """The meta device stands for an accelerator."""
    model, (ids, mask) = whole_model(config_of("llama")), texts()
    head, trunk, _ = cut_language_model(model, LanguageCut(1, 1)).all_here()
    expected = head(ids, mask)
    trunk.to("meta")
    assert torch.equal(head(ids, mask), expected)
    assert trunk(expected.to("meta"), None).is_meta


def test_models_without_an_output_layer_are_refused() -> None:
    for model in (LlamaModel(config_of("llama")), BertForMaskedLM(config_of("bert"))):
        with pytest.raises(ValueError, match=f"{type(model).__name__} has no output layer"):
            cut_language_model(model, LanguageCut(1, 1))


def test_an_encoder_that_predicts_the_next_token_is_refused() -> None:
    for name in ("bert", "roberta"):
        with pytest.raises(ValueError, match=f"'{name}' cannot be cut for generation"):
            cut_language_model(whole_model(config_of(name)), LanguageCut(1, 1))


def test_an_encoder_turned_decoder_is_refused() -> None:
    model = whole_model(BertConfig(**SIZES, is_decoder=True), "classification")
    with pytest.raises(ValueError, match="'bert' cannot be cut"):
        cut_language_model(model, LanguageCut(1, 1))


def test_cuts_that_leave_no_trunk_are_refused() -> None:
    model = whole_model(config_of("llama"))
    for head, tail in ((LAYERS, 0), (2, 2), (9, 9)):
        with pytest.raises(ValueError, match=f"{head} layers.* {tail} in the tail.*has {LAYERS}"):
            cut_language_model(model, LanguageCut(head, tail))
    with pytest.raises(ValueError, match="-1 in the tail"):
        LanguageCut(1, -1)
    with pytest.raises(ValueError, match=r"body.*head, trunk, tail"):
        cut_language_model(model, LanguageCut(1, 1), parts=("body",))


@pytest.mark.parametrize("name", [*DECODERS])
def test_inputs_of_another_shape_are_refused(name: str) -> None:
    head, trunk, tail = cut_language_model(
        whole_model(config_of(name)), LanguageCut(1, 1)
    ).all_here()
    ids, mask = texts()
    with pytest.raises(ValueError, match=r"torch\.int32"):
        head(ids.int(), mask)
    with pytest.raises(ValueError, match=r"mask has shape \(3, 8\).*\(3, 9\)"):
        head(ids, texts(tokens=8)[1])
    for part in (trunk, tail):
        with pytest.raises(ValueError, match=r"\(3, 9, 5\).*16"):
            part(torch.randn(3, 9, 5), mask)


@pytest.mark.parametrize(
    ("name", "task"),
    [(name, "generation") for name in ("gpt2", "opt", "gptj", "mpt")]
    + [
        (name, "classification")
        for name in ("bert", "roberta", "electra", "distilbert", "deberta", "mpnet")
    ],
)
def test_texts_longer_than_the_positions_are_refused(name: str, task: str) -> None:
    parts = cut_language_model(whole_model(config_of(name, task), task), LanguageCut(1, 1))
    head, trunk, _ = parts.all_here()
    assert parts.max_length == trunk.max_length == 64
    assert head(torch.ones(1, 64, dtype=torch.int64)).shape == (1, 64, 16)
    with pytest.raises(ValueError, match=r"65 tokens.*64"):
        head(torch.ones(1, 65, dtype=torch.int64))
