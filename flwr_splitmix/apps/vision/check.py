"""Check of a vision run before it starts: data, model, cut, clients."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import numpy as np
import torch

from flwr_splitmix.apps.checking.findings import (
    check_devices,
    check_enough,
    check_link,
    describe_clients,
    remark_memory,
    remark_plaintext,
    remark_warmup,
)
from flwr_splitmix.apps.checking.parts import Checks
from flwr_splitmix.apps.checking.report import Report
from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.vision import ushape_check
from flwr_splitmix.apps.vision.advice import advise
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.data import images_of, sizes_of_clients
from flwr_splitmix.apps.vision.few_patches import remark_few_patches
from flwr_splitmix.apps.vision.first_round import (
    check_number,
    check_plan,
    first_plan,
    in_a_round,
)
from flwr_splitmix.apps.vision.inputs import check_inputs
from flwr_splitmix.apps.vision.model import segments_of
from flwr_splitmix.apps.vision.noise_cost import remark_noise
from flwr_splitmix.apps.vision.server import make_strategy
from flwr_splitmix.runs import Run
from flwr_splitmix.segments import SplitModel
from flwr_splitmix.segments.across_batch import needs_whole_batch
from flwr_splitmix.segments.batch_norm import enough_values
from flwr_splitmix.segments.spreading import spreading_tokens
from flwr_splitmix.segments.vision.split_model import LowerSegment
from flwr_splitmix.server.intake.descriptions import MAX_SMASHED
from flwr_splitmix.strategies import SplitStrategy
from flwr_splitmix.words import counted, have, listed


def check(checks: Checks) -> None:
    """Check a run configuration and report the findings."""
    report = checks.report
    try:
        config = VisionConfig.read(checks.values)
    except ConfigError as error:
        report.problems.append(str(error))
        return

    report.facts |= {"strategy": config.strategy, "model": config.model}
    remark_warmup(config, report)
    checks.run(check_link, config, report)
    checks.run(remark_plaintext, config, report, config.link_via)
    if not checks.run(_check_data, config, report):
        return
    check_model = ushape_check.check_model if config.ushape else _check_model
    check_noise = ushape_check.remark_noise if config.ushape else _check_noise
    devices = {"device": config.device, "client_device": config.client_device}
    clients = checks.run(_check_clients, config, report)
    model = checks.run(check_devices, **devices) and checks.run(check_model, config, report)
    usable = clients and model and checks.run(check_noise, config, report)
    if usable and checks.setting is not None:
        checks.run(_advise, config, report, checks.setting)


def _check_data(config: VisionConfig, report: Report) -> None:
    images = images_of(config)
    if config.resume:
        check_inputs(Run.open(config.resume, home=config.home), config)
    channels, side, _ = images.train.shape
    kinds = "labels, several of which an image may have" if images.multi_label else "classes"
    report.facts["data"] = (
        f"{images.name}: {len(images.train)} training and "
        f"{counted(len(images.test), 'test image')} of {len(images.classes)} {kinds}, {side} x "
        f"{side} x {channels}"
    )
    for kind, part in (("training", images.train), ("test", images.test)):
        counts = (
            part.labels.sum(0)
            if part.multi_label
            else np.bincount(part.labels, minlength=len(images.classes))
        )
        empty = [images.classes[label] for label in np.flatnonzero(counts == 0)]
        if empty:
            classes, them = ("class", "it") if len(empty) == 1 else ("classes", "them")
            report.remarks.append(
                f"the {kind} images have none of the {classes} {listed(map(repr, empty))}: "
                f"{'the model cannot learn' if kind == 'training' else 'nothing tests'} {them}"
                f"; put some there, or remove the {classes} from dataset"
            )


def _check_clients(config: VisionConfig, report: Report) -> None:
    if not report.nodes_known:
        return
    check_enough(config.min_nodes, report.nodes)
    sizes = sizes_of_clients(config, report.nodes)
    empty = describe_clients(report, sizes, config.batch_size, "training images")
    if config.ushape:  # one client is enough
        return
    strategy = _trial(config)
    check_number(strategy, report.nodes)
    try:
        strategy.check_clients(min(in_a_round(strategy, report.nodes), report.nodes - len(empty)))
    except ValueError as error:
        raise ValueError(
            f"{error}: {len(empty)} of the {counted(report.nodes, 'client')} "
            f"{have(len(empty))} no training data; a larger partition-alpha, "
            "or fewer SuperNodes, gives every client some"
        ) from None


def _check_model(config: VisionConfig, report: Report) -> None:
    segments = segments_of(config)
    strategy = make_strategy(config, segments.upper, None)
    counts = [sum(p.numel() for p in part.parameters()) for part in segments]
    report.facts["model"] = (
        f"{config.model}, {counts[0]:,} of {sum(counts):,} parameters at the clients"
    )
    report.facts["smashed data"] = f"{segments.lower.geometry} for each image"
    numbers = config.batch_size * math.prod(segments.lower.geometry.shape(1))
    smaller = "a smaller batch-size or image-size"
    if numbers > MAX_SMASHED:
        raise ValueError(
            f"a batch's smashed data have {numbers:,} numbers; at most {MAX_SMASHED:,} can travel: "
            f"{smaller} has fewer"
        )
    remark_memory(report, in_a_round(strategy, report.nodes) * numbers, smaller)
    if config.batch_size == 1 and needs_whole_batch(segments.upper):
        _try_one_image(segments)
    clients = in_a_round(strategy, report.nodes)
    try:
        strategy.check_clients(clients)
    except ValueError:  # reported by the check of the clients
        return
    check_plan(strategy, config, segments.lower.geometry, clients)
    plan = first_plan(strategy, config, segments.lower.geometry, clients)
    remark_few_patches(config, plan, report)
    if any(share.masked for share in plan.shares(0) if share is not None):
        _remark_spreading(segments.lower, report)


def _remark_spreading(lower: LowerSegment, report: Report) -> None:
    """Warn if masks hide no patch, as layers before the cut let it spread."""
    number = spreading_tokens(lower, torch.zeros(1, *lower.input_shape))
    if number is None:
        report.remarks.append(
            "it could not be determined whether layers before the cut let a patch spread, so "
            "that masks hide none; nodes with allow-spreading=false refuse such a cut"
        )
    elif number:
        report.remarks.append(
            f"layers before the cut let a patch spread: at least {number} of "
            f"{lower.geometry.tokens} tokens "
            "tell of parts of an image of which others tell, too, so that the masks hide no patch, "
            "and weights that a server has crafted send those that are left out; cut a ViT at its "
            "embedding, or do not count on the masks"
        )


def _check_noise(config: VisionConfig, report: Report) -> None:
    sizes = sizes_of_clients(config, report.nodes) if report.nodes_known else []
    remark_noise(config, segments_of(config), _trial(config), sizes, report)


def _try_one_image(segments: SplitModel) -> None:
    """Raise ConfigError if batch normalisation cannot be trained on one image at a time."""
    image = torch.zeros(1, *segments.lower.input_shape)
    try:
        with torch.no_grad(), enough_values("upper segment"):
            copy.deepcopy(segments.upper).train()(segments.lower.eval()(image))
    except ValueError as error:
        raise ConfigError(f"run-config: batch-size is 1, but {error}") from None


def _advise(config: VisionConfig, report: Report, setting: Mapping[str, float]) -> None:
    if config.ushape:
        report.advice = ushape_check.advise(config, report.nodes, setting)
        return
    clients = min(in_a_round(_trial(config), report.nodes), report.nodes)
    report.advice = advise(config, clients, setting)


def _trial(config: VisionConfig) -> SplitStrategy:
    """Make the strategy without a model, but with the run's `min_nodes` and `fraction_train`."""
    return config.trial(min_nodes=config.min_nodes or None, fraction_train=config.fraction_train)
