"""Check of a vision run in the U shape before it starts: model, noise, advice on the cuts."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from flwr_splitmix.apps.findings import remark_memory
from flwr_splitmix.apps.report import Advice, Report
from flwr_splitmix.apps.ushape_advice import costs_of_pair, tensors_each_way
from flwr_splitmix.apps.ushape_noise import Charges, remark_spending
from flwr_splitmix.apps.vision.advice import setting_of
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.data import images_of, sizes_of_clients
from flwr_splitmix.apps.vision.ushape import make_strategy, open_model, parts_of, try_client
from flwr_splitmix.links.frames.wire import WireDtype, wire_bytes
from flwr_splitmix.segments.advice import Setting, prefix_sums, rest
from flwr_splitmix.segments.costs import measure_stages
from flwr_splitmix.server.participants import size_of_draw


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
    remark_memory(report, _clients(config, report.nodes) * numbers, smaller)
    try_client(config)


def remark_noise(config: VisionConfig, report: Report) -> None:
    """Remark what the image that spends most will have spent, if the clients keep ledgers."""
    hiding = config.hiding()
    if not hiding.accounts:
        return
    if not report.nodes_known and not config.samples_per_client:
        report.remarks.append(
            "this run's epsilon depends on how many images each client has, and so on the number "
            "of SuperNodes: `splitmix check --nodes` says it"
        )
        return
    sizes = [config.samples_per_client]
    if report.nodes_known:
        sizes = sizes_of_clients(config, report.nodes)
    charges = Charges.of(
        hiding,
        head_learns=config.learns == "all",
        returns=config.learns == "all",
        averaged=config.averages,
        padded=False,
        tested=1 if config.evaluation_kind == "federated" else 0,
    )
    remark_spending(config, charges, sizes, report, record="image")


def advise(config: VisionConfig, nodes: int, given: Mapping[str, float]) -> Advice:
    """Return the costs of each pair of cuts of the run's model.

    Parameters
    ----------
    nodes
        Number of SuperNodes.
    given
        Known values of network and speeds, by the names of `Setting`.
    """
    classes, images = len(images_of(config).classes), images_of(config).train
    model = open_model(config, classes, images.shape[0], pretrained=False)
    stages = [stage for _, stage in model.stages]
    below = prefix_sums(measure_stages(stages, torch.zeros(2, *images.shape)))
    whole = below[-1]
    setting = setting_of(config, stages, whole, images.shape, given)
    names, usable = [*model.cuts], model.cuts_in_three()
    layers, least = len(names) - 1, names.index(usable[0])
    up, down = (
        tensors_each_way(config.learns) * _bytes(config, wire)
        for wire in (config.wire_dtype, config.wire_dtype_down or config.wire_dtype)
    )
    cuts = []
    for head in range(least, layers):
        for tail in range(layers - head):
            trunk = rest(below[model.cuts[names[layers - tail]]], below[model.cuts[names[head]]])
            client = rest(whole, trunk)
            cuts.append(
                costs_of_pair(
                    setting,
                    (head, tail),
                    client,
                    trunk,
                    chosen=(config.head_layers, config.tail_layers),
                    memory_bytes=client.memory(config.batch_size),
                    batch=config.batch_size,
                    mixtures=_clients(config, nodes),
                    uplink_bytes=up,
                    downlink_bytes=down,
                )
            )
    measured = [name for name in Setting.__annotations__ if name not in given]
    return Advice(setting, cuts, measured=measured)


def _clients(config: VisionConfig, nodes: int) -> int:
    return min(size_of_draw(nodes, config.min_nodes or 1, config.fraction_train), nodes)


def _bytes(config: VisionConfig, wire: WireDtype) -> int:
    """Return the bytes of a batch's hidden states in a wire format."""
    geometry = parts_of(config).head.geometry
    shape = config.batch_size, geometry.tokens, geometry.width
    return wire_bytes(torch.empty(shape, device="meta"), wire)
