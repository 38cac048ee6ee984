"""The ClientApp: head, tail and texts of a node, from the run configuration."""

from __future__ import annotations

from typing import Any

from flwr.app import Context

from flwr_splitmix import SplitClientApp
from flwr_splitmix.apps.run_config import ConfigError
from flwr_splitmix.clients import MixGuardClient, NaiveMixClient, UShapeClient
from flwr_splitmix.scoring.generation import GenerationScores
from flwr_splitmix.scoring.texts import ClassScores, Scores, TextScores

from language_config import LanguageConfig
from language_model import build_parts
from language_texts import benchmark_set, client_rows, public_set, token_set, tokenizer_of


def client_fn(context: Context) -> UShapeClient:
    """Make the client of one node; called once a run."""
    config = LanguageConfig.read(context.run_config)
    parts = build_parts(config, ("head", "tail"))
    assert parts.head is not None
    assert parts.tail is not None
    tokenizer = tokenizer_of(config)
    if len(tokenizer) > parts.vocab_size:
        raise ConfigError(
            f"run-config: the tokenizer of {config.model!r} has {len(tokenizer)} tokens, but the "
            f"model knows {parts.vocab_size}"
        )
    train, test = client_rows(config, context.node_config)
    benchmark = config.evaluation_kind == "benchmark"
    options: dict[str, Any] = {
        "batch_size": config.batch_size,
        "test_data": token_set(config, test) if len(test) and not benchmark else None,
        "benchmark_data": benchmark_set(config) if benchmark else None,
        "optimizer": config.optimizer(),
        "schedule": config.schedule(),
        "device": config.client_device,
        "scores": scores_of(config, tokenizer),
    }
    own = parts.head, parts.tail, token_set(config, train)
    if config.strategy == "NaiveMixSL":
        return NaiveMixClient(*own, lam=config.lam, **options)
    if config.strategy != "MixGuard":
        return UShapeClient(*own, **options)
    return MixGuardClient(
        *own,
        public_set(config),
        vocab_size=len(tokenizer),
        special_ids=tokenizer.all_special_ids,
        options=config.mixguard(),
        **options,
    )


def scores_of(config: LanguageConfig, tokenizer: Any) -> Scores:
    """Return what an evaluation is scored by."""
    if config.task == "classification":
        return ClassScores
    if not config.generation_scores:
        return TextScores

    def make() -> TextScores:
        return GenerationScores(
            lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)),
            end=tokenizer.eos_token_id,
            max_new_tokens=config.max_new_tokens,
            max_length=config.text_length,
            pad_to=config.pad_to if config.pads_itself else None,
        )

    return make


app = SplitClientApp(client_fn)
