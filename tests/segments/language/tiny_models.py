"""Models of a few thousand weights, one of each family, and texts for them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BloomConfig,
    DebertaConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    FalconConfig,
    GPT2Config,
    GPTBigCodeConfig,
    GPTJConfig,
    GPTNeoConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    ModernBertConfig,
    MPNetConfig,
    MptConfig,
    NomicBertConfig,
    OPTConfig,
    PhiConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    RobertaConfig,
)

from flwr_splitmix.segments.language import LanguageParts

VOCABULARY, LAYERS, LABELS = 50, 4, 3
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": LAYERS, "num_attention_heads": 2, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1,
}  # fmt: skip
GROUPED = {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2}
ROPE = {
    "rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip

CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**GROUPED, rope_parameters=ROPE, attention_dropout=0.2),
    "mistral": MistralConfig(**GROUPED, sliding_window=3),
    # Layers 0 and 1 attend to all tokens, 2 and 3 to three.
    "qwen2": Qwen2Config(
        **GROUPED, use_sliding_window=True, sliding_window=3, max_window_layers=2
    ),
    "qwen3": Qwen3Config(**GROUPED, head_dim=8, tie_word_embeddings=True),
    "qwen3_moe": Qwen3MoeConfig(
        **GROUPED, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8
    ),
    "gpt2": GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=LAYERS, n_head=2, n_positions=64,
        pad_token_id=0, bos_token_id=1, eos_token_id=1,
    ),
    "gpt_bigcode": GPTBigCodeConfig(
        vocab_size=VOCABULARY, n_embd=16, n_layer=LAYERS, n_head=2, n_positions=64,
        pad_token_id=0, bos_token_id=1, eos_token_id=1,
    ),
    "gpt_neo": GPTNeoConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_layers=LAYERS, num_heads=2,
        attention_types=[[["global", "local"], 2]], window_size=3, max_position_embeddings=64,
        pad_token_id=0, bos_token_id=1, eos_token_id=1, attention_dropout=0.2, embed_dropout=0.1,
    ),
    "gpt_neox": GPTNeoXConfig(
        **SIZES, hidden_dropout=0.1,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    ),
    # Like the model of 350 million weights: narrow embeddings, norms behind the layers' parts.
    "opt": OPTConfig(
        vocab_size=VOCABULARY, hidden_size=16, ffn_dim=24, num_hidden_layers=LAYERS,
        num_attention_heads=2, word_embed_proj_dim=8, do_layer_norm_before=False,
        max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=1,
    ),
    "gptj": GPTJConfig(
        vocab_size=VOCABULARY, n_embd=16, n_layer=LAYERS, n_head=2, n_positions=64, rotary_dim=4,
        pad_token_id=0, bos_token_id=1, eos_token_id=1, embd_pdrop=0.1, attn_pdrop=0.2,
    ),
    "bloom": BloomConfig(
        vocab_size=VOCABULARY, hidden_size=16, n_layer=LAYERS, n_head=2, pad_token_id=0,
        bos_token_id=1, eos_token_id=1, hidden_dropout=0.1, attention_dropout=0.2,
    ),
    "mpt": MptConfig(
        vocab_size=VOCABULARY, d_model=16, n_layers=LAYERS, n_heads=2, max_seq_len=64,
        pad_token_id=0, bos_token_id=1, eos_token_id=1, attn_config={"clip_qkv": 2.0},
    ),
    "falcon": FalconConfig(
        **SIZES, num_kv_heads=1, new_decoder_architecture=True, hidden_dropout=0.1,
    ),
    # The form of Falcon-RW.
    "falcon_alibi": FalconConfig(
        **SIZES, alibi=True, multi_query=False, parallel_attn=False, bias=True,
        attention_dropout=0.1,
    ),
    "phi": PhiConfig(**SIZES, embd_pdrop=0.1, resid_pdrop=0.1),
    "bert": BertConfig(**SIZES),
    "roberta": RobertaConfig(**{**SIZES, "max_position_embeddings": 66, "pad_token_id": 1}),
    "electra": ElectraConfig(**SIZES, embedding_size=8),
    "distilbert": DistilBertConfig(
        vocab_size=VOCABULARY, dim=16, hidden_dim=24, n_layers=LAYERS, n_heads=2,
        max_position_embeddings=64, pad_token_id=0,
    ),
    "deberta": DebertaConfig(**{
        **SIZES, "relative_attention": True, "pos_att_type": "c2p|p2c", "type_vocab_size": 0,
        "max_relative_positions": 6,
    }),
    # Version 3, with the convolution of version 2.
    "deberta-v2": DebertaV2Config(**{
        **SIZES, "relative_attention": True, "pos_att_type": "p2c|c2p", "position_buckets": 4,
        "share_att_key": True, "norm_rel_ebd": "layer_norm", "position_biased_input": False,
        "conv_kernel_size": 3, "embedding_size": 8, "pooler_dropout": 0.1,
    }),
    "mpnet": MPNetConfig(**{**SIZES, "max_position_embeddings": 66, "pad_token_id": 1}),
    "nomic_bert": NomicBertConfig(**SIZES),
    "modernbert": ModernBertConfig(
        **SIZES, local_attention=4, layer_types=[*["sliding_attention", "full_attention"] * 2],
        classifier_pooling="mean", cls_token_id=1, sep_token_id=1, embedding_dropout=0.1,
    ),
}  # fmt: skip
ENCODERS = (
    "bert", "roberta", "electra", "distilbert", "deberta", "deberta-v2", "mpnet", "nomic_bert",
    "modernbert",
)  # fmt: skip
DECODERS = [name for name in CONFIGS if name not in ENCODERS]
CASES = [(name, "generation") for name in DECODERS] + [
    (name, "classification") for name in ("llama", "qwen3", "gpt2", "opt", "mpt", *ENCODERS)
]
"""(family, task)."""
TABLES = {
    "deberta": {"deberta.encoder.rel_embeddings.weight"},
    "deberta-v2": {
        f"deberta.encoder.{name}"
        for name in ("rel_embeddings.weight", "LayerNorm.weight", "LayerNorm.bias")
    },
    "mpnet": {"mpnet.encoder.relative_attention_bias.weight"},
}
"""Weights that all layers read: parts do not train them."""

AUTO: dict[str, Any] = {
    "generation": AutoModelForCausalLM,
    "classification": AutoModelForSequenceClassification,
}


def config_of(name: str, task: str = "generation") -> Any:
    config = copy.deepcopy(CONFIGS[name])
    config.num_labels = LABELS if task == "classification" else 2
    return config


def whole_model(
    config: Any, task: str = "generation", dtype: str = "float64", scale: float = 0.2
) -> Any:
    """Return a model with weights large enough that every one of them matters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = AUTO[task].from_config(
            copy.deepcopy(config), dtype=getattr(torch, dtype), experts_implementation="eager"
        )
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight), alpha=scale)
    return model.eval()


def texts(padded: bool = True, tokens: int = 9) -> tuple[Tensor, Tensor | None]:
    """Return ids (3, tokens) and their mask, None without padding."""
    draw = torch.Generator().manual_seed(3)
    ids = torch.randint(2, VOCABULARY, (3, tokens), generator=draw)
    if not padded:
        return ids, None
    mask = torch.ones_like(ids)
    mask[1, 6:] = mask[2, 3:] = 0
    return ids * mask, mask


def logits_of(model: Any, ids: Tensor, mask: Tensor | None) -> Tensor:
    """Return the whole model's logits."""
    options: dict[str, Any] = {}
    if model.config.model_type not in ENCODERS:
        options["use_cache"] = False
    if model.config.model_type == "opt":  # it puts all padding at one place, which no token sees
        options["position_ids"] = torch.arange(ids.shape[1])[None]
    logits: Tensor = model(input_ids=ids, attention_mask=mask, **options).logits
    return logits


def joined(parts: LanguageParts, ids: Tensor, mask: Tensor | None) -> Tensor:
    """Return the logits of the three parts one behind the other."""
    head, trunk, tail = parts.all_here()
    logits: Tensor = tail(trunk(head(ids, mask), mask), mask)
    return logits


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {
        name: weight.grad.clone()
        for name, weight in module.named_parameters()
        if weight.grad is not None
    }
