"""The ClientApp's part: head, tail and texts of a node, from the run configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flwr.app import Context
from torch import nn
from torch.utils.data import Dataset

from flwr_splitmix.apps.language.config import LanguageConfig
from flwr_splitmix.apps.language.model import build_parts
from flwr_splitmix.apps.language.texts import (
    benchmark_set,
    client_rows,
    public_set,
    token_set,
    tokenizer_of,
)
from flwr_splitmix.apps.run_config import ConfigError
from flwr_splitmix.clients import MixGuardClient, NaiveMixClient, UShapeClient
from flwr_splitmix.data.batches import Example
from flwr_splitmix.hiding.mixguard import MixGuardOptions
from flwr_splitmix.scoring.generation import GenerationScores
from flwr_splitmix.scoring.texts import ClassScores, Scores, TextScores


def client_fn(context: Context) -> UShapeClient:
    """Make the client of one node; called once a run in a simulation, once a round on a SuperNode.

    Raises
    ------
    ConfigError, ClientError, DataError, ValueError
        If configuration, model, texts or device do not allow it.
    """
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
    return make_client(
        config.strategy,
        parts.head,
        parts.tail,
        token_set(config, train),
        lam=config.lam,
        mixguard=config.mixguard,
        public=lambda: public_set(config),
        vocab_size=len(tokenizer),
        special_ids=tokenizer.all_special_ids,
        batch_size=config.batch_size,
        test_data=token_set(config, test) if len(test) and not benchmark else None,
        benchmark_data=benchmark_set(config) if benchmark else None,
        optimizer=config.optimizer(),
        schedule=config.schedule(),
        device=config.client_device,
        scores=scores_of(config, tokenizer),
    )


def make_client(
    method: str,
    head: nn.Module,
    tail: nn.Module,
    data: Dataset[Example],
    *,
    lam: float,
    mixguard: Callable[[], MixGuardOptions],
    public: Callable[[], Dataset[Example]],
    vocab_size: int,
    special_ids: Sequence[int],
    **options: Any,
) -> UShapeClient:
    """Make the client that a method of the U shape goes with.

    Parameters
    ----------
    method
        A name of `USHAPE_STRATEGIES`.
    lam
        Of naive mixing.
    mixguard, public
        MixGuard's options and public texts; called for it only.
    vocab_size, special_ids
        Of the tokenizer; see `MixGuardClient`.
    head, tail, data, **options
        As `UShapeClient`.

    Raises
    ------
    ClientError, DataError, ValueError
        If there are no texts, or an option is outside its range.
    """
    if method == "NaiveMixSL":
        return NaiveMixClient(head, tail, data, lam=lam, **options)
    if method != "MixGuard":
        return UShapeClient(head, tail, data, **options)
    return MixGuardClient(
        head,
        tail,
        data,
        public(),
        vocab_size=vocab_size,
        special_ids=special_ids,
        options=mixguard(),
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
