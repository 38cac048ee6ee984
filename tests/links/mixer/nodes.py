"""Nodes of a round at a mixer, played by sessions; the test plays the server."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import Any

import torch

from flwr_splitmix.links.link import LinkError, Outcome
from flwr_splitmix.links.mixer.channel import MixerChannel
from flwr_splitmix.links.stream.session import Session
from flwr_splitmix.links.ticket import Ticket
from flwr_splitmix.mixer_process.process import MixerServer
from flwr_splitmix.mixers import PatchCutMix
from flwr_splitmix.mixers.described import describe
from tests.waiting import wait_for

OPENING: dict[str, Any] = {
    "mixing": describe(PatchCutMix(min_patches=1)),
    "ledger": None,
    "classes": 3,
    "dtype": "float64",
    "geometry": None,
    "steps-per-round": 2,
    "epochs-per-round": 1,
    "round": 1,
    "seed": 7,
    "nodes": {"0": 100, "1": 101},
    "wire-dtype": "keep",
    "wire-feedback": False,
    "step-timeout": 60.0,
    "reattach-timeout": 1.0,
}

DESCRIPTION = {
    "num-examples": 8, "batch-size": 2, "patches": 6, "width": 3, "prefix": 0, "state-round": 0,
    "given-weights": "those of the run", "given-orders": "those of the round",
    "allow-training": True,
}  # fmt: skip

FIRST: dict[str, Any] = {"number": 0, "progress": 0.0, "gradients": {}}


class Nodes:
    """Two nodes: node i uploads i + 1 everywhere, with class i.

    Parameters
    ----------
    opening
        Values of the round's opening that differ from `OPENING`.

    Attributes
    ----------
    tickets
        Tickets by client index.
    sent
        All uploads.
    plans
        All shares that nodes were asked for.
    answers
        Event; nodes answer while it is set.
    description
        What each node says of itself.
    width
        Of what they upload.
    """

    def __init__(self, mixer: MixerServer, channel: MixerChannel, **opening: Any) -> None:
        self.sent: list[torch.Tensor] = []
        self.plans: list[Any] = []
        self.answers = threading.Event()
        self.answers.set()
        self.description = DESCRIPTION
        self.width = 3
        self._threads: list[threading.Thread] = []
        changes = {name.replace("_", "-"): value for name, value in opening.items()}
        tokens = channel.open({**OPENING, **changes})["tokens"]
        self.tickets = [
            Ticket(c, 7, 1, 9, address=mixer.address, tls=False, token=tokens[str(c)], timeout=60.0)
            for c in (0, 1)
        ]

    def start(self, index: int) -> threading.Thread:
        """Let a node dial, in a thread of its own."""

        def answer(method: str, arguments: Mapping[str, Any]) -> Outcome:
            if arguments["plan"] is None:
                return Outcome({})
            (share,) = arguments["plan"]
            self.plans.append(share)
            self.answers.wait(60)
            patches = share["stop"] - share["start"] if "stop" in share else 6
            smashed = torch.full((2, patches, self.width), float(index + 1), dtype=torch.float64)
            self.sent.append(smashed)
            return Outcome({"smashed": [smashed], "labels": torch.tensor([index, index])})

        session = Session(self.tickets[index], 100 + index, self.description, answer)

        def take_part() -> None:
            with contextlib.suppress(LinkError):  # how the round ends is seen at the mixer
                session.run()

        thread = threading.Thread(target=take_part, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def end(self, channel: MixerChannel) -> None:
        """Hang up as the server, and wait until the nodes have been told to leave."""
        channel.close()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()


def wait_until_attached(channel: MixerChannel) -> None:
    """Wait until all nodes of a round have attached."""
    wait_for("the nodes", lambda: not channel.ask("attach", {"gone": {}})["waiting"])
