"""Advice on cuts: what each costs a client, and how long a step would take on a given network."""

from __future__ import annotations

import re
import socket
import threading
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor, nn

from flwr_splitmix.segments.costs import StageCosts

BITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
FLOPS = {"flops": 1.0, "mflops": 1e6, "gflops": 1e9, "tflops": 1e12}

_PROBE = 32 * 2**20  # bytes over the loopback: some hundredths of a second
_TURNS = 50
_LEAST_SECONDS = 0.15


@dataclass(frozen=True)
class Setting:
    """The network between clients and server, and how fast both compute.

    Parameters
    ----------
    uplink, downlink
        Of one client, bits a second; the server's own network is taken to be no bottleneck.
    rtt
        Seconds of a round trip.
    client_flops, server_flops
        Floating-point operations a second in training; a multiply-add is two.
    """

    uplink: float
    downlink: float
    rtt: float
    client_flops: float
    server_flops: float


@dataclass(frozen=True)
class CutCosts:
    """What one cut costs, and how long a step takes with it.

    Parameters
    ----------
    cut_at
        Its name, as the key `cut-at` takes it.
    client_parameters
        That a client holds.
    client_memory_bytes
        Of weights, gradients, AdamW's moments and a batch's activations.
    client_macs
        Multiply-adds of a client in a step: forward and backward of a batch.
    uplink_bytes, downlink_bytes
        Of one client in a step, on average.
    step_s
        Predicted seconds of a step.
    default
        Whether it is the cut of the configuration.
    """

    cut_at: str
    client_parameters: int
    client_memory_bytes: int
    client_macs: int
    uplink_bytes: int
    downlink_bytes: int
    step_s: float
    default: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the costs by name."""
        return asdict(self)


def quantity(text: str, units: dict[str, float]) -> float:
    """Read a number with a unit, as "20mbit", "40ms" or "1.5 tflops"; upper case is as good.

    Raises
    ------
    ValueError
        If it is none, with the units that there are.
    """
    match = re.fullmatch(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]+)\s*", text.lower())
    if match and match[2] in units and match[1].count(".") < 2:
        value = float(match[1]) * units[match[2]]
        if value > 0 or (units is SECONDS and value == 0):
            return value
    raise ValueError(f"{text!r} is not a number with one of the units {', '.join(units)}")


def predict(
    setting: Setting,
    client: StageCosts,
    server: StageCosts,
    *,
    batch: int,
    mixtures: float,
    uplink_bytes: float,
    downlink_bytes: float,
    exchanges: int = 1,
) -> float:
    """Return the seconds of a step in which all clients work at the same time.

    They compute, upload, wait for the server's own step, and download; nothing of it overlaps. What
    the programs themselves cost (frames, scheduling, optimizers) is not in it.

    Parameters
    ----------
    client, server
        Of the segments, for one sample.
    batch, mixtures
        Samples of a client, and batches that the upper segment gets in a step.
    exchanges
        Round trips in a step.
    """
    return (
        2 * batch * client.training_macs / setting.client_flops
        + 2 * batch * mixtures * server.training_macs / setting.server_flops
        + 8 * uplink_bytes / setting.uplink
        + 8 * downlink_bytes / setting.downlink
        + exchanges * setting.rtt
    )


def setting_here(flops: float, **given: float) -> Setting:
    """Return this machine's setting: its loopback's, with `flops` for both sides.

    Parameters
    ----------
    **given
        What is known already, by the names of `Setting`; it is not measured.
    """
    unknown = {"uplink", "downlink", "rtt"} - given.keys()
    speed, rtt = measure_loopback() if unknown else (0.0, 0.0)
    return replace(Setting(speed, speed, rtt, flops, flops), **given)


def measure_flops(module: nn.Module, inputs: Tensor, training_macs: float) -> float:
    """Return how many floating-point operations a second training of a module makes here.

    Parameters
    ----------
    inputs
        A batch, on the module's device.
    training_macs
        Multiply-adds of one sample, as `measure_stages` counts them.
    """
    steps, began = 0, time.perf_counter()
    _train(module, inputs)  # the first one is slow
    began = time.perf_counter()
    while (seconds := time.perf_counter() - began) < _LEAST_SECONDS or not steps:
        _train(module, inputs)
        steps += 1
    module.zero_grad()
    return 2 * training_macs * len(inputs) * steps / seconds


def _train(module: nn.Module, inputs: Tensor) -> None:
    output = module(inputs)
    if output.requires_grad:
        # The number is read: on an accelerator, that waits for it.
        output.sum().backward()
        float(output.detach().sum())


def measure_loopback() -> tuple[float, float]:
    """Return (bits a second, seconds of a round trip) between two sockets of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        echo = threading.Thread(target=_answer, args=(server,), daemon=True)
        echo.start()
        with socket.create_connection(server.getsockname()[:2]) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            began = time.perf_counter()
            for _ in range(_TURNS):
                line.sendall(b"?")
                line.recv(1)
            rtt = (time.perf_counter() - began) / _TURNS
            block = bytes(2**20)
            began = time.perf_counter()
            for _ in range(_PROBE // len(block)):
                line.sendall(block)
            line.shutdown(socket.SHUT_WR)
            while line.recv(1):
                pass
            seconds = time.perf_counter() - began
        echo.join()
    return 8 * _PROBE / seconds, rtt


def _answer(server: socket.socket) -> None:
    """Answer one peer's turns, and then take in whatever comes."""
    line, _ = server.accept()
    with line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(_TURNS):
            line.recv(1)
            line.sendall(b"!")
        while line.recv(2**20):
            pass


def prefix_sums(costs: list[StageCosts]) -> list[StageCosts]:
    """Return the costs of the first 0, 1, 2, ... stages together."""
    sums = [StageCosts()]
    for stage in costs:
        sums.append(sums[-1] + stage)
    return sums


def rest(whole: StageCosts, part: StageCosts) -> StageCosts:
    """Return the costs of what of a whole is not in a part."""
    mine, others = asdict(whole), asdict(part)
    return StageCosts(**{name: mine[name] - others[name] for name in mine})
