"""The language ClientApp: head, tail and texts of a node, from the run configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context
from torch import nn

from flwr_splitmix.apps.language.config import LanguageConfig
from flwr_splitmix.apps.language.hiding import hiding_sources
from flwr_splitmix.apps.language.model import build_parts, check_vocabulary
from flwr_splitmix.apps.language.texts import (
    benchmark_set,
    client_rows,
    run_test_set,
    tokenizer_of,
    training_set,
)
from flwr_splitmix.clients import UShapeClient
from flwr_splitmix.data.examples import ExampleSet
from flwr_splitmix.hiding.making import make_hiding
from flwr_splitmix.scoring.generation import GenerationScores
from flwr_splitmix.scoring.texts import ClassScores, Scores, TextScores
from flwr_splitmix.strategies import USHAPE_STRATEGIES


def client_fn(context: Context) -> UShapeClient:
    """Make the client of one node.

    It is called once per run in a simulation, and once per round on a SuperNode.

    Raises
    ------
    ConfigError, ClientError, DataError, ValueError
        If configuration, model, texts or device are unsuitable.
    """
    config = LanguageConfig.read(context.run_config)
    parts = build_parts(config, ("head", "tail"))
    assert parts.head is not None
    assert parts.tail is not None
    tokenizer = tokenizer_of(config)
    check_vocabulary(config, tokenizer, parts)
    train, test = client_rows(config, context.node_config)
    benchmark = config.evaluation_kind == "benchmark"
    return make_client(
        config.strategy,
        parts.head,
        parts.tail,
        training_set(config, train),
        sources=hiding_sources(config),
        batch_size=config.batch_size,
        test_data=run_test_set(config, test) if len(test) and not benchmark else None,
        benchmark_data=benchmark_set(config) if benchmark else None,
        optimizer=config.optimizer(),
        schedule=config.schedule(),
        learns=config.learns,
        device=config.client_device,
        scores=scores_of(config, tokenizer),
    )


def make_client(
    method: str,
    head: nn.Module,
    tail: nn.Module,
    data: ExampleSet,
    *,
    sources: Mapping[str, Callable[[], Any]],
    **options: Any,
) -> UShapeClient:
    """Make the client for a method of the U shape.

    Parameters
    ----------
    method
        A key of `USHAPE_STRATEGIES`.
    sources
        Functions that return arguments of the constructor of the method's hiding, by name.
    head, tail, data, **options
        As for `UShapeClient`.

    Raises
    ------
    ClientError, DataError, ValueError
        If there are no texts, or an option is outside its range.
    """
    hiding = make_hiding(USHAPE_STRATEGIES[method].hiding, sources)
    return UShapeClient(head, tail, data, hiding=hiding, **options)


def scores_of(config: LanguageConfig, tokenizer: Any) -> Scores:
    """Return the factory of an evaluation's scores."""
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
