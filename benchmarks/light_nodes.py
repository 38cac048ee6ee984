"""Many nodes of the stream link in one process, on one event loop, with a fixed reply and no model.

Each node has a connection of its own, with TLS and a token, like `Session`, and encodes and decodes
frames with the link's own codec. `benchmarks.many_nodes` starts such processes.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

import grpc
import torch

from flwr_splitmix.links.frames.codec import Frame, decode, encode
from flwr_splitmix.links.stream.protocol import (
    METHOD,
    NODE_KEY,
    PROTOCOL,
    PROTOCOL_KEY,
    TOKEN_KEY,
    keepalive,
    message_settings,
)
from flwr_splitmix.links.stream.session import FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS, RETRIED_CODES
from flwr_splitmix.links.ticket import Ticket

DESCRIPTION = {"num-examples": 1, "state-round": 0}
OPTIONS = [
    *message_settings(),
    *keepalive(),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
]


async def serve(ticket: Ticket, node: int, reply: Mapping[str, Any]) -> None:
    """Take part in a round; dial again until the server has admitted this node.

    Raises
    ------
    grpc.RpcError
        If the server refuses this node, or its connection breaks.
    RuntimeError
        If the server ends the round for this node without finishing it.
    """
    credentials = grpc.ssl_channel_credentials(root_certificates=ticket.ca.encode())
    metadata = (
        (TOKEN_KEY, ticket.token),
        (NODE_KEY, str(node)),
        (PROTOCOL_KEY, str(PROTOCOL)),
    )
    pause = FIRST_PAUSE_SECONDS
    while True:
        async with grpc.aio.secure_channel(ticket.address, credentials, options=OPTIONS) as channel:
            stream = channel.stream_stream(METHOD)(metadata=metadata)
            try:
                await stream.write(encode(Frame("hello", 0, payload=DESCRIPTION)))
                # Each frame of this benchmark fits in one message.
                decode(await stream.read())
            except grpc.RpcError as error:
                if error.code() not in RETRIED_CODES:
                    raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_PAUSE_SECONDS)
                continue
            while (frame := decode(await stream.read())).kind == "call":
                await stream.write(encode(Frame("reply", frame.number, payload=reply)))
            if frame.kind != "finish":
                raise RuntimeError(f"node {node}: the server sent {frame.kind}: {frame.text}")
            await stream.done_writing()
            return


async def serve_all(order: Mapping[str, Any]) -> None:
    """Run the nodes of an order, and print a line for each that has finished."""
    reply = {"smashed": [torch.zeros(order["numbers"])]}

    async def play(ticket: Ticket, node: int) -> None:
        await serve(ticket, node, reply)
        print(json.dumps({"finished": node}), flush=True)

    await asyncio.gather(*(play(Ticket(**o["ticket"]), o["node"]) for o in order["nodes"]))


def main() -> None:
    """Report that the process is ready, then read an order from standard input and run it."""
    torch.set_num_threads(1)
    print(json.dumps({"ready": True}), flush=True)
    asyncio.run(serve_all(json.loads(sys.stdin.readline())))


if __name__ == "__main__":
    main()
