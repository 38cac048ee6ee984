"""Advice on cuts: the costs of each for a client, and the duration of a step on a given network."""

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

_PROBE_BYTES = 32 * 2**20  # bytes sent over the loopback; takes some hundredths of a second
_ROUND_TRIPS = 50
_MIN_SECONDS = 0.15


@dataclass(frozen=True)
class Setting:
    """Network between clients and server, and the computing speed of both.

    Parameters
    ----------
    uplink, downlink
        Bandwidth of one client in bits per second; the server's network is assumed to be no
        bottleneck.
    rtt
        Round-trip time in seconds.
    client_flops, server_flops
        Floating-point operations per second in training; a multiply-add counts as two.
    """

    uplink: float
    downlink: float
    rtt: float
    client_flops: float
    server_flops: float


@dataclass(frozen=True)
class CutCosts:
    """Costs of one cut, and the predicted duration of a step with it.

    Parameters
    ----------
    cut_at
        Name of the cut, as a value of the key `cut-at`.
    client_parameters
        Number of parameters that a client holds.
    client_memory_bytes
        Bytes of weights, gradients, AdamW's moments and a batch's activations.
    client_macs
        Multiply-adds of a client per step: forward and backward pass of a batch.
    uplink_bytes, downlink_bytes
        Bytes that one client sends and receives per step, on average.
    step_s
        Predicted duration of a step in seconds.
    default
        Whether this is the configuration's cut.
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
    """Read a number with a unit, such as "20mbit", "40ms" or "1.5 tflops", in any case.

    Raises
    ------
    ValueError
        If the text is not such a number, the message lists the units; or if it is 0, and no time.
    """
    match = re.fullmatch(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]+)\s*", text.lower())
    if match and match[2] in units and match[1].count(".") < 2:
        value = float(match[1]) * units[match[2]]
        if value > 0 or (units is SECONDS and value == 0):
            return value
        raise ValueError(f"{text!r} is not above 0")
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

    They compute, upload, wait for the server's computation, and download; none of this overlaps.
    Overheads of the programs (frames, scheduling, optimizers) are not included.

    Parameters
    ----------
    client, server
        Costs per sample of the lower and the upper segment.
    batch, mixtures
        Samples per client, and batches that the upper segment gets per step.
    uplink_bytes, downlink_bytes
        Bytes that one client sends and receives per step.
    exchanges
        Round trips per step.
    """
    return (
        2 * batch * client.training_macs / setting.client_flops
        + 2 * batch * mixtures * server.training_macs / setting.server_flops
        + 8 * uplink_bytes / setting.uplink
        + 8 * downlink_bytes / setting.downlink
        + exchanges * setting.rtt
    )


def setting_here(flops: float, **known_values: float) -> Setting:
    """Return the setting of this machine: its loopback's network, and `flops` for both sides.

    Parameters
    ----------
    **known_values
        Values of `Setting`'s fields that are known; they replace measured ones and `flops`.
    """
    unknown = {"uplink", "downlink", "rtt"} - known_values.keys()
    speed, rtt = measure_loopback() if unknown else (0.0, 0.0)
    return replace(Setting(speed, speed, rtt, flops, flops), **known_values)


def measure_flops(module: nn.Module, inputs: Tensor, training_macs: float) -> float:
    """Return the floating-point operations per second in training a module on this machine.

    Parameters
    ----------
    inputs
        A batch, on the module's device.
    training_macs
        Multiply-adds per sample, as `measure_stages` counts them.
    """
    steps = 0
    _train(module, inputs)  # warm-up: the first step is slow
    began = time.perf_counter()
    while (seconds := time.perf_counter() - began) < _MIN_SECONDS or not steps:
        _train(module, inputs)
        steps += 1
    module.zero_grad()
    return 2 * training_macs * len(inputs) * steps / seconds


def _train(module: nn.Module, inputs: Tensor) -> None:
    output = module(inputs)
    if output.requires_grad:
        # Reading the number waits for the accelerator, if there is one.
        output.sum().backward()
        float(output.detach().sum())


def measure_loopback() -> tuple[float, float]:
    """Return (bits per second, seconds per round trip) between two sockets of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        echo = threading.Thread(target=_answer, args=(server,), daemon=True)
        echo.start()
        with socket.create_connection(server.getsockname()[:2]) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            began = time.perf_counter()
            for _ in range(_ROUND_TRIPS):
                line.sendall(b"?")
                line.recv(1)
            rtt = (time.perf_counter() - began) / _ROUND_TRIPS
            block = bytes(2**20)
            began = time.perf_counter()
            for _ in range(_PROBE_BYTES // len(block)):
                line.sendall(block)
            line.shutdown(socket.SHUT_WR)
            while line.recv(1):
                pass
            seconds = time.perf_counter() - began
        echo.join()
    return 8 * _PROBE_BYTES / seconds, rtt


def _answer(server: socket.socket) -> None:
    """Answer one peer's pings, and then read all that it sends."""
    line, _ = server.accept()
    with line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(_ROUND_TRIPS):
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
    """Return the costs of a whole without those of a part of it."""
    mine, others = asdict(whole), asdict(part)
    return StageCosts(**{name: mine[name] - others[name] for name in mine})
