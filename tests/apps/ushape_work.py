"""The multiply-adds of a step in the U shape, counted while a client and a trunk take it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from flwr_splitmix.clients import Order, UShapeClient
from flwr_splitmix.events import Messages
from flwr_splitmix.server.segments.trunk import TrainedTrunk

UNHURRIED = {
    "uplink": float("inf"), "downlink": float("inf"), "rtt": 0.0, "client_flops": float("inf"),
}  # fmt: skip
"""A setting in which only the server's computing takes time."""


def macs_of_step(client: UShapeClient, trunk: TrainedTrunk) -> tuple[float, float]:
    """Take a step and return the multiply-adds of client and trunk; the client sends one message.

    Attention is counted in its products of matrices; torch counts no fused kernel of the CPU.
    """
    client.attach(Order(0, 0, 1, 1), None)
    work = {"client": 0.0, "trunk": 0.0}

    @contextmanager
    def counted(part: str) -> Iterator[None]:
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            yield
        work[part] += counter.get_total_flops() / 2

    with counted("client"):
        reply: dict[str, Any] = client.encode(number=0, progress=0.0, gradient=None)
    with counted("trunk"):
        outputs = trunk.forward({0: Messages(reply["messages"], reply["mask"])}, seed=0)[0]
    with counted("client"):
        returned = client.decode(number=0, outputs=outputs)["gradients"]
    with counted("trunk"):
        owed = trunk.learn({0: returned} if returned else {}, 0.0, 1)
    with counted("client"):
        client.encode(number=1, progress=1.0, gradient=owed.get(0), last=True)
    return work["client"], work["trunk"]
