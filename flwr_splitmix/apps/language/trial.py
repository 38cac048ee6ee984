"""A trial of a hiding that watches layers on a run's model, before any client has begun."""

from __future__ import annotations

import logging

import torch

from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.language.config import SMALL, LanguageConfig
from flwr_splitmix.apps.language.hiding import hiding_of
from flwr_splitmix.apps.language.model import build_parts, small_model
from flwr_splitmix.clients import TextSet, UShapeClient
from flwr_splitmix.clients.client import Order
from flwr_splitmix.extras import MissingExtraError
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.hiding.unfit import UnfitError
from flwr_splitmix.seeding import seeded_draws
from flwr_splitmix.segments.language.layouts.trial import SMALL as SIZES
from flwr_splitmix.segments.language.layouts.trial import shrunk
from flwr_splitmix.segments.language.sources import open_source

log = logging.getLogger("flwr.splitmix")

TEXTS, TOKENS = 3, 5
"""Numbers of made-up texts, and of tokens in each."""


def try_layers(config: LanguageConfig) -> None:
    """Begin a client's round with made-up texts, if the run's hiding watches layers.

    The client has head and tail of a copy of the model with a few thousand weights and all its
    kinds of layers, on the CPU. Where such a copy cannot be made or run, the log says so, and the
    clients try their own. So they do without a package that a server does not need, as Opacus.

    Raises
    ------
    ConfigError
        If a layer of the model is unfit, as if gradients of single texts are not known of it.
    """
    if not config.hides_by.watches_layers:
        return
    try:
        client = _small_client(config, hiding_of(config))
        client.attach(Order(0, config.seed, 1, 1), None)
    except UnfitError as error:
        raise ConfigError(
            f"run-config: strategy is {config.strategy!r}, but model {config.model!r} cannot be "
            f"trained by it, as by USplitSL: {error}"
        ) from error
    except MissingExtraError:
        return
    except Exception as error:  # whatever a model raises whose configuration has been changed
        log.info(
            "whether %s can be trained by %s is found out by the clients: a small copy of it could "
            "not be tried (%s)",
            config.model,
            config.strategy,
            type(error).__name__,
        )
        log.debug("the trial of a small copy", exc_info=True)


def _small_client(config: LanguageConfig, hiding: Hiding) -> UShapeClient:
    source, _ = open_source(small_model(config) if config.model == SMALL else config.model)
    parts = build_parts(config, ("head", "tail"), source=shrunk(source, source.num_hidden_layers))
    assert parts.head is not None
    assert parts.tail is not None
    with seeded_draws(torch.device("cpu"), config.seed):
        tokens = torch.randint(SIZES["vocab_size"], (TEXTS, TOKENS)).tolist()
    labels = tokens if config.task == "generation" else [0] * TEXTS
    size = min(config.batch_size, TEXTS)
    return UShapeClient(
        parts.head,
        parts.tail,
        TextSet(tokens, labels=labels),
        batch_size=size,
        hiding=hiding,
        learns=config.learns,
        device="cpu",
    )
