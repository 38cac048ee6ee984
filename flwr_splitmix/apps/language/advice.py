"""Advice on the cuts of a language model: the costs of every size of head and tail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from flwr_splitmix.apps.checking.report import Advice
from flwr_splitmix.apps.language.config import SMALL, LanguageConfig
from flwr_splitmix.apps.language.model import small_model
from flwr_splitmix.apps.ushape.advice import PARTS, Part, costs_of_pairs, tensors_each_way
from flwr_splitmix.links.frames.wire import WireDtype, wire_bytes
from flwr_splitmix.segments.advice import (
    Setting,
    measure_flops,
    prefix_sums,
    rest,
    setting_here,
)
from flwr_splitmix.segments.costs import StageCosts
from flwr_splitmix.segments.language import LanguageParts
from flwr_splitmix.segments.language.build import open_skeleton
from flwr_splitmix.segments.language.costs import layer_costs

_PROBE = 256  # side of the square matrices that measure a device's speed


def open_run_model(config: LanguageConfig) -> tuple[Any, LanguageParts]:
    """Return the run's model without weights, and its parts.

    Raises
    ------
    ValueError
        If there is no such model, or it cannot be cut as configured.
    """
    source = small_model(config) if config.model == SMALL else config.model
    return open_skeleton(
        source, config.cut, task=config.task, num_labels=config.num_labels, dtype=config.dtype
    )


def advise(
    config: LanguageConfig,
    model: Any,
    parts: LanguageParts,
    tokens: int,
    clients: int,
    preset: Mapping[str, float],
) -> Advice:
    """Return the costs of each cut of the run's model.

    Parameters
    ----------
    model, parts
        From `open_run_model`; what the run freezes of the embedding is frozen in them.
    tokens
        Number of tokens of the longest texts that cross the cuts.
    clients
        Number of clients per round.
    preset
        Known values of network and speeds, by the names of `Setting`.
    """
    costs, options = _stage_costs(config, model, parts, tokens), config.own_options()
    below = {part: prefix_sums(costs[part]) for part in PARTS}
    flops = 0.0 if {"client_flops", "server_flops"} <= preset.keys() else _flops_here()
    setting = setting_here(flops, **preset)
    up, down = traffic_of(config, tokens, parts.width)
    calibration = ""
    if config.hides_by.calibrates(options) and not options.get("refine_only"):
        calibration = f"; the calibration of {config.strategy} comes before the first step"
    cuts = costs_of_pairs(
        setting,
        {part: sums[1:-1] for part, sums in below.items()},
        rest(below["tail"][-1], _counted_twice(costs["head"][0], model, parts)),
        least=0,
        chosen=(config.head_layers, config.tail_layers),
        learns=config.learns,
        batch=config.batch_size,
        mixtures=clients * config.hides_by.messages_per_batch(options),
        uplink_bytes=up,
        downlink_bytes=down,
    )
    return Advice(
        setting,
        cuts,
        measured=[name for name in Setting.__annotations__ if name not in preset],
        notes=[
            f"bytes and times are those of batches whose longest text has {tokens} tokens"
            + calibration
        ],
    )


def traffic_of(config: LanguageConfig, tokens: int, width: int) -> tuple[int, int]:
    """Return the bytes (up, down) of a client per step, averaged over steps.

    A client sends the messages with their mask, and the gradients of the trunk's answers; it
    receives the answers, and the gradients of the messages (`tensors_each_way`). A refinement by
    public texts also sends the hidden states and the messages of public texts, and receives the
    answers to both.
    """
    options = config.own_options()
    messages = config.hides_by.messages_per_batch(options)
    text, back = (
        _text_bytes(config, tokens, width, wire)
        for wire in (config.wire_dtype, config.wire_dtype_down or config.wire_dtype)
    )
    each = tensors_each_way(config.learns) * messages
    up = each * text + config.batch_size * tokens
    down = each * back
    every = options.get("refine_every", 0) if config.hides_by.calibrates(options) else 0
    if every:
        refined = (messages + 1) * text + config.batch_size * tokens
        up += refined // every
        down += (messages + 1) * back // every
    return up, down


def _text_bytes(config: LanguageConfig, tokens: int, width: int, wire: WireDtype) -> int:
    """Return the bytes of a batch's hidden states in a wire format."""
    shape, dtype = (config.batch_size, tokens, width), getattr(torch, config.dtype)
    return wire_bytes(torch.empty(shape, dtype=dtype, device="meta"), wire)


def _stage_costs(
    config: LanguageConfig, model: Any, parts: LanguageParts, tokens: int
) -> dict[Part, list[StageCosts]]:
    """Return the costs of embedding, layers and output, trained as in each part of the run."""
    if config.learns == "tail":
        # As in the run, and with it an output layer of the same weights. Layers are left as they
        # are: each but the first is in the tail of some pair of cuts.
        assert parts.head is not None
        parts.head.embedding.requires_grad_(False)
    costs = {adapted: layer_costs(model, tokens, adapted=adapted) for adapted in (False, True)}
    return {part: costs[part in config.adapted] for part in PARTS}


def _counted_twice(embedding: StageCosts, model: Any, parts: LanguageParts) -> StageCosts:
    """Return the costs of the weights that both embedding and output layer have, if they are one.

    Each of the two stages counts them.
    """
    shared = parts.vocab_size * parts.width if parts.tied else 0
    return StageCosts(
        parameters=shared,
        trainable=min(shared, embedding.trainable),
        parameter_bytes=shared * model.dtype.itemsize,
    )


def _flops_here() -> float:
    """Return this machine's FLOP/s in a matrix product, forward and backward."""
    layer = torch.nn.Linear(_PROBE, _PROBE, bias=False)
    inputs = torch.zeros(_PROBE, _PROBE, requires_grad=True)
    return measure_flops(layer, inputs, 3 * _PROBE * _PROBE)
