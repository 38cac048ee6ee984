"""Narrow wire formats: their accuracy, their bytes, and further savings by zstd.

The same run is repeated with each pair of formats (smashed data up, gradients down) and several
seeds. Every payload is encoded and decoded by the stream link's own codec, between clients and
server in this process. The run is SFL on Fashion-MNIST: ViT-Tiny with 16 patches, four clients, one
round per epoch.

The bodies of some frames are also compressed with the command zstd at level 3. For comparison, the
benchmark reports the order-0 entropy of the bytes, a lower bound for coders of single bytes.
"""

from __future__ import annotations

import argparse
import copy
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from benchmarks.measure import show, write
from flwr_splitmix import SplitClient, split_vision_model
from flwr_splitmix.data import client_split, load_images
from flwr_splitmix.links.frames.codec import Frame, decode, encode, read_prefix
from flwr_splitmix.links.frames.feedback import Feedback
from flwr_splitmix.links.frames.wire import WireDtype
from flwr_splitmix.links.link import tensor_bytes
from flwr_splitmix.seeding import derive_seed
from flwr_splitmix.strategies import SFL, central_evaluation

MAX_LOST_POINTS = 0.5
"""Target: percentage points of top-1 that a format may lose to float32, on average over seeds."""

CLIENTS, SAMPLED = 4, 10
"""Number of clients; the entropy coder gets one of every `SAMPLED` frames."""


@dataclass(frozen=True)
class Formats:
    """Formats up and down, and whether rounding errors of gradients are fed back."""

    up: WireDtype
    down: WireDtype
    feedback: bool = False

    @property
    def name(self) -> str:
        """Name of the formats."""
        same = "" if self.up == self.down else f"/{self.down}"
        return f"{self.up}{same}{' feedback' if self.feedback else ''}"


FLOAT32 = Formats("float32", "float32")
FORMATS = (
    FLOAT32,
    Formats("int8", "int8"),
    Formats("int8-stochastic", "int8-stochastic"),
    Formats("int8", "int8", feedback=True),
    Formats("int4", "int8"),
    Formats("int4-stochastic", "int8"),
)
"""The first is the reference for the others."""


@dataclass(frozen=True)
class Size:
    """Size of a run: blocks of the model, images of each client, and passes over them."""

    depth: int
    images: int
    batch: int
    epochs: int


SIZE, QUICK = Size(depth=1, images=200, batch=25, epochs=8), Size(1, 20, 10, 2)
WAYS = ("up", "down")


@dataclass
class Travelled:
    """Data that crossed the line in one direction.

    Attributes
    ----------
    tensors, wire
        Bytes of the tensors in memory, and of the frames' bodies.
    bodies
        Some of the bodies.
    """

    tensors: int = 0
    wire: int = 0
    frames: int = 0
    bodies: list[bytes] = field(default_factory=list)


class NarrowedClient(SplitClient):
    """A client whose calls and replies pass through the codec, as they would over a stream."""

    def __init__(
        self, formats: Formats, travelled: Mapping[str, Travelled], *of_client: Any
    ) -> None:
        lower, data, batch = of_client
        super().__init__(lower, data, batch_size=batch, device="cpu")
        self.formats = formats
        self.travelled = travelled
        self.feedback: Feedback | None = None
        self.begun = (0, 0)
        self.number = 0

    def run(self, method: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Run one exchange, with arguments and reply passed through the codec."""
        order = self.order
        place = (order.client, order.server_round)
        if place != self.begun:  # each round has a line of its own
            self.begun, self.number = place, 0
            self.feedback = Feedback(self.formats.down) if self.formats.feedback else None
        self.number += 1
        if self.feedback is not None:
            arguments = self.feedback.correct(self.number, arguments)
        call = Frame("call", self.number, method, arguments)
        down = derive_seed(order.seed, "wire down", *place)
        reply = super().run(method, self._cross("down", self.formats.down, call, down))
        frame = Frame("reply", self.number, payload=reply)
        up = derive_seed(order.seed, "wire up", *place)
        return self._cross("up", self.formats.up, frame, up)

    def _cross(self, way: str, wire: WireDtype, frame: Frame, seed: int) -> dict[str, Any]:
        data = encode(frame, wire, seed=seed)
        arrived = decode(data)
        sums = self.travelled[way]
        sums.tensors += tensor_bytes(frame.payload)
        sums.wire += arrived.body_bytes
        sums.frames += bool(arrived.body_bytes)
        if arrived.body_bytes and sums.frames % SAMPLED == 0:
            sums.bodies.append(data[len(data) - read_prefix(data)[1] :])
        return dict(arrived.payload)


def train(formats: Formats, size: Size, seed: int, source: str) -> dict[str, Any]:
    """Train and test once.

    Returns
    -------
    Top-1 in percent, and seconds; for each direction, "up" and "down", the bytes on the wire
    relative to those of the tensors, and the fractions that zstd and entropy would leave of them.
    """
    images = load_images(source)
    lower, upper = split_vision_model(
        "vit_tiny_patch16_224", patch_size=8, depth=size.depth, seed=seed
    )
    travelled = {"up": Travelled(), "down": Travelled()}
    clients = []
    for index in range(CLIENTS):
        client_data, _ = client_split(images, index, CLIENTS, seed=seed, samples=size.images)
        clients.append(
            NarrowedClient(formats, travelled, copy.deepcopy(lower), client_data, size.batch)
        )
    strategy = SFL(upper, seed=seed, device="cpu", evaluate_every=size.epochs)
    tested = central_evaluation(strategy.upper, lower, images.test)
    began = time.perf_counter()
    result = strategy.fit(clients, size.epochs, evaluate_fn=tested)
    seconds = time.perf_counter() - began
    accuracy = result.evaluate_metrics_serverapp[size.epochs]["accuracy"]
    assert isinstance(accuracy, float)
    return {
        "top1": 100 * accuracy,
        "seconds": seconds,
        **{way: coded(sums) for way, sums in travelled.items()},
    }


def coded(travelled: Travelled) -> dict[str, float]:
    """Return the bytes on the wire over the tensors', and the fractions that coders would leave."""
    whole = b"".join(travelled.bodies)
    counts = np.bincount(np.frombuffer(whole, np.uint8), minlength=256)
    shares = counts[counts > 0] / len(whole)
    fractions = {"entropy": float(-(shares * np.log2(shares)).sum()) / 8}
    if (zstd := shutil.which("zstd")) is not None:
        # Frames are compressed one by one, as each must be readable on arrival.
        command = [zstd, "-3", "-c"]
        frames = [
            subprocess.run(command, input=body, capture_output=True, check=True).stdout
            for body in travelled.bodies
        ]
        fractions["zstd"] = sum(map(len, frames)) / len(whole)
    return {"wire_over_tensors": travelled.wire / travelled.tensors, **fractions}


def measure(formats: Sequence[Formats], size: Size, seeds: int, source: str) -> dict[str, Any]:
    """Train with every pair of formats and every seed; see the keys of the result."""
    runs = {f.name: [train(f, size, seed, source) for seed in range(seeds)] for f in formats}
    whole = [run["top1"] for run in runs[FLOAT32.name]]
    rows: dict[str, dict[str, Any]] = {}
    for name, format_runs in runs.items():
        top1 = [run["top1"] for run in format_runs]
        gaps = [a - b for a, b in zip(top1, whole, strict=True)]
        rows[name] = {
            "top1": fmean(top1),
            "top1_by_seed": top1,
            "points": fmean(gaps),
            "points_by_seed": gaps,
            **{
                way: {key: fmean(r[way][key] for r in format_runs) for key in format_runs[0][way]}
                for way in WAYS
            },
            "seconds": fmean(run["seconds"] for run in format_runs),
        }
    return {
        "formats": rows,
        "targets": {
            name: {"at_least": -MAX_LOST_POINTS, "met": row["points"] >= -MAX_LOST_POINTS}
            for name, row in rows.items()
            if name != FLOAT32.name
        },
        "settings": {
            **asdict(size),
            "clients": CLIENTS,
            "seeds": seeds,
            "source": Path(source).name,
            "zstd": shutil.which("zstd") is not None,
            "command": " ".join(sys.orig_argv[1:]),
        },
    }


def print_table(figures: dict[str, Any]) -> None:
    rows = []
    for name, row in figures["formats"].items():
        parts = ("wire_over_tensors", "entropy", "zstd")
        ways = [" / ".join(f"{row[w][k]:.3f}" for k in parts if k in row[w]) for w in WAYS]
        rows.append([name, f"{row['top1']:.2f}", f"{row['points']:+.2f}", *ways])
    title = "Formats; up and down: bytes over float32's, what entropy and zstd would leave of them"
    show(title, ("", "top-1 %", "points", *WAYS), rows)
    for name, target in figures["targets"].items():
        print(f"{name}, target >= {target['at_least']:g}: {'met' if target['met'] else 'not met'}")
    if not figures["settings"]["zstd"]:
        print("zstd was not tried: the command is not installed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="a few steps: is it alive?")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=SIZE.epochs)
    parser.add_argument("--data", default="fashion-mnist-small", help="as load_images takes it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = QUICK if options.quick else replace(SIZE, epochs=options.epochs)
    seeds = 1 if options.quick else options.seeds
    figures = measure(FORMATS, size, seeds, options.data)
    print_table(figures)
    write(options.out, figures)


if __name__ == "__main__":
    main()
