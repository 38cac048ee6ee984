"""Advice on the cut of a vision model: the costs of every cut, and the bytes of every method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flwr_splitmix.apps.checking.report import Advice, MethodBytes
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.data import images_of
from flwr_splitmix.apps.vision.model import segments_of
from flwr_splitmix.device import pick_device
from flwr_splitmix.links.frames.wire import WireDtype, wire_bytes
from flwr_splitmix.methods import METHODS
from flwr_splitmix.mixers import Mixer, SmashedShape
from flwr_splitmix.observers.metrics import LABEL_BYTES
from flwr_splitmix.segments import Geometry
from flwr_splitmix.segments.advice import (
    CutCosts,
    Setting,
    measure_flops,
    predict,
    prefix_sums,
    rest,
    setting_here,
)
from flwr_splitmix.segments.costs import StageCosts, measure_stages
from flwr_splitmix.segments.vision.cut import open_vision_model
from flwr_splitmix.segments.vision.split_model import Request
from flwr_splitmix.strategies import SplitStrategy
from flwr_splitmix.strategies.vision_cut import edge_of

AVERAGED_STEPS = 24
"""Number of steps over which the bytes of random masks are averaged."""

_PROBE = 8  # samples per batch in measuring a device's speed


@dataclass(frozen=True)
class Traffic:
    """Average traffic of one client per step.

    Parameters
    ----------
    up, down
        Bytes of tensors that the client sends and receives.
    mixtures
        Batches that the upper segment gets from all clients.
    """

    up: float
    down: float
    mixtures: float


def advise(config: VisionConfig, clients: int, preset: Mapping[str, float]) -> Advice:
    """Return the costs of each cut of the run's model, and the traffic of each method.

    Parameters
    ----------
    clients
        Number of clients per round.
    preset
        Known values of network and speeds, by the names of `Setting`.

    Raises
    ------
    ConfigError, DataError, ValueError
        If there is no such model or data, or the method does not support the number of clients.
    """
    stages, places, chosen, geometries = _model_of(config)
    images = images_of(config).train
    costs = measure_stages(stages, torch.zeros(2, *images.shape))
    below = prefix_sums(costs)
    setting = setting_of(config, stages, below[-1], images.shape, preset)
    strategy = config.trial()
    cuts = []
    for name, at in places.items():
        traffic = traffic_of(strategy.mixer, _shape(config, geometries[name]), clients, config)
        client, server = below[at], rest(below[-1], below[at])
        cuts.append(
            CutCosts(
                cut_at=name,
                client_parameters=client.parameters,
                client_memory_bytes=client.memory(config.batch_size),
                client_macs=round(config.batch_size * client.training_macs),
                uplink_bytes=round(traffic.up),
                downlink_bytes=round(traffic.down),
                step_s=_step(config, setting, client, server, traffic),
                default=name == chosen,
            )
        )
    at = places[chosen]
    return Advice(
        setting=setting,
        cuts=cuts,
        methods=_methods(config, clients, setting, below[at], rest(below[-1], below[at])),
        measured=[name for name in Setting.__annotations__ if name not in preset],
    )


def _model_of(
    config: VisionConfig,
) -> tuple[list[nn.Module], dict[str, int], str, dict[str, Geometry]]:
    """Return the model's stages, the cuts that the strategy allows, and their geometries."""
    strategy = config.trial()
    if edge_of(strategy):  # such a strategy has only its own cut
        lower, upper = segments_of(config)
        stages = [*lower.children(), *upper.children()]
        return stages, {"": len(lower)}, "", {"": lower.geometry}
    images = images_of(config)
    request = Request(
        name=config.model,
        cut_at=config.cut_at,
        num_classes=len(images.classes),
        channels=images.train.shape[0],
        image_size=config.image_size,
        patch_size=config.patch_size,
        depth=config.depth or None,
        positions=strategy.mixer.positions or "lower",
        cell=config.cell,
    )
    model = open_vision_model(request)
    places, geometries = {}, {}
    for name, at in model.cuts.items():
        try:
            geometries[name] = model.split(at).lower.geometry
        except ValueError:  # not allowed by the strategy or the size of the cells
            continue
        places[name] = at
    return [m for _, m in model.stages], places, config.cut_at or model.default, geometries


def _shape(config: VisionConfig, geometry: Geometry) -> SmashedShape:
    return SmashedShape(
        config.batch_size,
        geometry.patches,
        geometry.width,
        geometry.prefix,
        geometry.grid,
        len(images_of(config).classes),
    )


def traffic_of(mixer: Mixer, shape: SmashedShape, clients: int, config: VisionConfig) -> Traffic:
    """Return a client's traffic per step, averaged over clients and `AVERAGED_STEPS` plans.

    Raises
    ------
    ValueError
        If the mixer has no plan for this number of clients or these patches.
    """
    mixer.check_clients(clients)
    rng = np.random.default_rng(config.seed)
    gradient = torch.zeros(shape.size)
    up = down = mixtures = 0.0
    hard = LABEL_BYTES * (shape.classes if images_of(config).multi_label else 1)
    for _ in range(AVERAGED_STEPS):
        plan = mixer.plan(range(clients), shape, rng)
        mixtures += len(plan.groups)
        for client in range(clients):
            shares = [share for share in plan.shares(client) if share is not None]
            soft = [share for share in shares if share.label_kind == "soft"]
            up += sum(_bytes(share.upload_shape(shape.size), config.wire_dtype) for share in shares)
            up += 4 * len(soft) * shape.batch * shape.classes or hard * shape.batch
            learning = [share for share in shares if share.learns]
            wire = config.wire_dtype_down or config.wire_dtype
            down += sum(_bytes(share.pick(gradient).shape, wire) for share in learning)
    number = AVERAGED_STEPS * clients
    return Traffic(up / number, down / number, mixtures / AVERAGED_STEPS)


def _bytes(shape: Sequence[int], wire: WireDtype) -> int:
    return wire_bytes(torch.empty(shape, device="meta"), wire)


def _step(
    config: VisionConfig,
    setting: Setting,
    client: StageCosts,
    server: StageCosts,
    traffic: Traffic,
) -> float:
    return predict(
        setting,
        client,
        server,
        batch=config.batch_size,
        mixtures=traffic.mixtures,
        uplink_bytes=traffic.up,
        downlink_bytes=traffic.down,
    )


def setting_of(
    config: VisionConfig,
    stages: Sequence[nn.Module],
    whole: StageCosts,
    shape: tuple[int, int, int],
    preset: Mapping[str, float],
) -> Setting:
    """Return the network and the speeds; those not given are measured."""
    speeds: dict[str, float] = {}
    measured: dict[torch.device, float] = {}
    for name, device_name in (
        ("client_flops", config.client_device),
        ("server_flops", config.device),
    ):
        if name in preset:
            continue
        device = pick_device(device_name)
        if device not in measured:
            model = nn.Sequential(*stages).to(device)
            inputs: Tensor = torch.zeros(_PROBE, *shape, device=device)
            measured[device] = measure_flops(model, inputs, whole.training_macs)
        speeds[name] = measured[device]
    return setting_here(0.0, **speeds, **preset)


def _methods(
    config: VisionConfig,
    clients: int,
    setting: Setting,
    client: StageCosts,
    server: StageCosts,
) -> list[MethodBytes]:
    """Return the traffic of the methods of the L shape at the configuration's cut."""
    geometry = segments_of(config).lower.geometry
    traffic_by_name: dict[str, Traffic] = {}
    for method in METHODS:
        if method.shape != "L" or "labels" in method.needs:
            continue  # frozen edges have their own cut
        try:
            strategy = _strategy(config, method.name, noisy="noise" in method.needs)
            traffic = traffic_of(strategy.mixer, _shape(config, geometry), clients, config)
        except ValueError:  # not possible with these options or this number of clients
            continue
        traffic_by_name |= dict.fromkeys(method.names, traffic)
    if "PSL" not in traffic_by_name:
        return []
    psl = traffic_by_name["PSL"]
    alike: dict[tuple[int, int, int], list[str]] = {}
    for name, traffic in traffic_by_name.items():
        key = (round(traffic.up), round(traffic.down), round(traffic.mixtures))
        alike.setdefault(key, []).append(name)
    return [
        MethodBytes(
            strategies=names,
            uplink_bytes=up,
            downlink_bytes=down,
            uplink_share=up / psl.up,
            downlink_share=down / psl.down if psl.down else 0.0,
            step_s=_step(config, setting, client, server, traffic_by_name[names[0]]),
        )
        for (up, down, _), names in alike.items()
    ]


def _strategy(config: VisionConfig, name: str, *, noisy: bool) -> SplitStrategy:
    changed: dict[str, Any] = {"strategy": name}
    if noisy and config.noise is None:
        changed |= {"sigma_s": 1.0, "sigma_y": 1.0}  # the bytes do not depend on the values
    return config.model_copy(update=changed).trial()
