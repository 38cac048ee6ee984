"""CutMixSFL on a toy with dropout and BatchNorm, whose clients can be told to misbehave."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from flwr_splitmix import Run, SplitClient, SplitClientApp, StreamLink, adamw
from flwr_splitmix.clients import exchange
from flwr_splitmix.strategies import CutMixSFL, SplitStrategy
from flwr_splitmix.testing.toy import Toy

Values = Mapping[str, Any]

TOY = Toy(clients=3)
MISBEHAVES = 1


class FaultyClient(SplitClient):
    """Takes its time, leaves a line in a file for every step, and may misbehave.

    In a round that is held it waits in every step until the file `go-on-ROUND` is beside its diary.
    """

    pause = 0.0
    faults = ""
    held: frozenset[int] = frozenset()
    diary: Path | None = None

    @exchange
    def step(self, **arguments: Any) -> dict[str, Any]:
        """Make a step, and what is wrong with it."""
        if self.diary is not None:
            own_round = self.order.server_round
            with self.diary.open("a") as file:
                file.write(f"{own_round} {arguments['number']} {os.getpid()} {time.monotonic()}\n")
            while (
                own_round in self.held and not self.diary.with_name(f"go-on-{own_round}").exists()
            ):
                time.sleep(0.05)
        time.sleep(self.pause)
        reply = super().step(**arguments)
        faults = self.faults.split(",")
        if reply and self.order.client == MISBEHAVES and self.order.server_round <= len(faults):
            smashed = reply["smashed"]
            smashed[0] = _spoiled(smashed[0], faults[self.order.server_round - 1])
            if faults[self.order.server_round - 1] == "passes":
                smashed.append(smashed[0])
        return reply


def _spoiled(smashed: Tensor, fault: str) -> Tensor:
    """Return what a client with a fault sends instead of (b, kept, d)."""
    batch, patches, width = smashed.shape
    if fault == "nan":
        return torch.full_like(smashed, float("nan"))
    if fault == "shape":
        return smashed[:, :, :-1]
    if fault == "dtype":
        return smashed.float()
    if fault == "many":
        return smashed.new_ones(batch, TOY.patches + 1, width)
    if fault == "foreign":  # as many as it was asked for, but other ones
        return 100.0 + smashed.new_ones(batch, patches, width)
    return smashed


def make_clients(values: Values) -> list[FaultyClient]:
    """Make all clients, with the faults that the configuration names."""
    clients = TOY.make_clients(adamw(0.01), FaultyClient)
    faulty = []
    for index, client in enumerate(clients):
        assert isinstance(client, FaultyClient)
        client.pause = float(values["pause"])
        client.faults = str(values["faults"])
        client.held = frozenset(map(int, str(values["held"]).split()))
        if values["run-dir"]:
            client.diary = Path(str(values["run-dir"]), f"client-{index}.txt")
        faulty.append(client)
    return faulty


def make_strategy(values: Values, run: Run | None, link: StreamLink | None) -> SplitStrategy:
    """Make the strategy."""
    return CutMixSFL(
        TOY.upper(),
        optimizer=adamw(0.01),
        steps_per_round=int(values["steps"]),
        min_nodes=int(values["min-nodes"]),
        evaluation="none",
        device="cpu",
        seed=7,
        run=run,
        link=link,
    )


def client_fn(context: Context) -> SplitClient:
    """Make one node's client."""
    return make_clients(context.run_config)[int(context.node_config["partition-id"])]


class Impostor(SplitClientApp):
    """On client 1's node it says, if it is told to, that it is the next node."""

    def _take_part(self, message: Message, context: Context) -> Message:
        misbehaves = context.node_config["partition-id"] == MISBEHAVES
        if misbehaves and context.run_config["impostor"]:
            context = copy.copy(context)
            context.node_id += 1
        return super()._take_part(message, context)


server = ServerApp()
client = Impostor(client_fn)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the strategy, or resume a run that was interrupted."""
    torch.set_num_threads(1)
    values: dict[str, Any] = dict(context.run_config)
    home = Path(values["run-dir"])
    home.mkdir(parents=True, exist_ok=True)
    if values["resume"]:
        run = Run.open(values["resume"], home=home)
    else:
        run = Run.create(values, name="faults", home=home)
    link = StreamLink(
        certificate=values["ssl-certfile"] or None,
        key=values["ssl-keyfile"] or None,
        ca=values["ssl-ca-certfile"] or None,
        address=values["link-address"],
        advertise=values["link-advertise"] or None,
        run=run.id,
        attach_timeout=values["attach-timeout"],
        step_timeout=values["step-timeout"],
        reattach_timeout=values["reattach-timeout"],
        token_seconds=values["token-seconds"],
    )
    strategy = make_strategy(values, run, link)
    strategy.start(grid, ArrayRecord(TOY.lower().state_dict()), values["rounds"])
