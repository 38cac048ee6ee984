"""Check of a vision run in the U shape before it starts: model, noise, advice on the cuts."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from flwr_splitmix.apps.checking.findings import remark_memory
from flwr_splitmix.apps.checking.report import Advice, Report
from flwr_splitmix.apps.ushape.advice import PARTS, costs_of_pairs, tensors_each_way
from flwr_splitmix.apps.ushape.noise import remark_not_accounted, remark_spending
from flwr_splitmix.apps.vision.advice import setting_of
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.data import images_of, sizes_of_clients
from flwr_splitmix.apps.vision.ushape import make_strategy, open_model, parts_of, try_client
from flwr_splitmix.hiding.charges import PlannedClient
from flwr_splitmix.links.frames.wire import wire_bytes
from flwr_splitmix.segments.advice import Setting, prefix_sums
from flwr_splitmix.segments.costs import measure_stages
from flwr_splitmix.server.nodes.participants import size_of_draw


def check_model(config: VisionConfig, report: Report) -> None:
    """Check model, strategy and a client.

    Raises
    ------
    ConfigError, ClientError, ValueError
        If one of them is unsuitable.
    """
    parts = parts_of(config)
    make_strategy(config, None)
    counts = [sum(p.numel() for p in part.parameters()) for part in parts]
    head, _, tail = counts
    report.facts["model"] = (
        f"{config.model}, {head + tail:,} of {sum(counts):,} parameters at the clients: {head:,} "
        f"in the head, {tail:,} in the tail"
    )
    geometry = parts.head.geometry
    report.facts["hidden states"] = f"{geometry} for each image"
    numbers = config.batch_size * geometry.tokens * geometry.width
    smaller = "a smaller batch-size or image-size"
    remark_memory(report, _messages(config, report.nodes) * numbers, smaller)
    try_client(config)


def remark_noise(config: VisionConfig, report: Report) -> None:
    """Remark what the image that spends most will have spent, if the clients keep ledgers."""
    remark_not_accounted(config.strategy, report)
    hiding = config.hiding()
    if not hiding.accounts:
        return
    if not report.nodes_known and not config.samples_per_client:
        report.remarks.append(
            "this run's epsilon depends on how many images each client has, and so on the number "
            "of SuperNodes: `splitmix check --nodes` reports it"
        )
        return
    sizes = [config.samples_per_client]
    if report.nodes_known:
        sizes = sizes_of_clients(config, report.nodes)
    planned = PlannedClient(
        batch_size=config.batch_size,
        head_learns=config.learns == "all",
        returns=config.learns == "all",
        averaged=config.averages,
        padded=False,
        scored=config.evaluation_over_link != "none",
        tested=1 if config.evaluation_kind == "federated" else 0,
    )
    remark_spending(config, hiding, planned, sizes, report, record="image")


def advise(config: VisionConfig, nodes: int, preset: Mapping[str, float]) -> Advice:
    """Return the costs of each pair of cuts of the run's model.

    Parameters
    ----------
    nodes
        Number of SuperNodes.
    preset
        Known values of network and speeds, by the names of `Setting`.
    """
    classes, images = len(images_of(config).classes), images_of(config).train
    model = open_model(config, classes, images.shape[0], pretrained=False)
    stages = [stage for _, stage in model.stages]
    below = prefix_sums(measure_stages(stages, torch.zeros(2, *images.shape)))
    setting = setting_of(config, stages, below[-1], images.shape, preset)
    up, down = _traffic(config)
    cuts = costs_of_pairs(
        setting,
        {part: [below[at] for at in model.cuts.values()] for part in PARTS},
        below[-1],
        least=[*model.cuts].index(model.cuts_in_three()[0]),
        chosen=(config.head_layers, config.tail_layers),
        learns=config.learns,
        batch=config.batch_size,
        mixtures=_messages(config, nodes),
        uplink_bytes=up,
        downlink_bytes=down,
    )
    measured = [name for name in Setting.__annotations__ if name not in preset]
    return Advice(setting, cuts, measured=measured)


def _messages(config: VisionConfig, nodes: int) -> int:
    """Return how many messages the clients of a step send together."""
    clients = min(size_of_draw(nodes, config.min_nodes or 1, config.fraction_train), nodes)
    return clients * config.messages_per_batch


def _traffic(config: VisionConfig) -> tuple[int, int]:
    """Return the bytes (up, down) of a client per step: tensors of messages, and up their mask."""
    geometry = parts_of(config).head.geometry
    batch = torch.empty(config.batch_size, geometry.tokens, geometry.width, device="meta")
    up, down = (
        tensors_each_way(config.learns) * config.messages_per_batch * wire_bytes(batch, wire)
        for wire in (config.wire_dtype, config.wire_dtype_down or config.wire_dtype)
    )
    return up + config.batch_size * geometry.tokens, down
