"""A grid in this process: real ClientApps and a real stream, without a SuperLink."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import count
from typing import Any, cast

from flwr.app import Context, Message, Metadata, RecordDict
from flwr.serverapp import Grid

from flwr_splitmix import SplitClient, SplitClientApp
from flwr_splitmix.clients import Client
from flwr_splitmix.links import Clients, Link, host
from flwr_splitmix.links.link import Observe
from flwr_splitmix.links.ticket import RECORD
from flwr_splitmix.optimizers import OptimizerFactory
from flwr_splitmix.seeding import held_draws
from flwr_splitmix.server.messages import messages_to
from flwr_splitmix.testing.toy import Toy
from flwr_splitmix.testing.toy_texts import TextToy

Handler = Callable[[Message, Context], Message]

TURN = threading.Lock()

NEVER = threading.Event()
"""An event that is never set: a node that waits for it never answers."""


class NodeKilled(BaseException):
    """A test ends a node so, which is a thread here; nothing of the package catches it."""


def held_in_main_thread() -> AbstractContextManager[None]:
    """Hold the generators as a host does, but not in a node's thread.

    A host restores what it found after its client's turn, which another client may have begun.
    Without it each draw restores what it finds, within the turn.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    return held_draws() if in_main_thread else nullcontext()


cast(Any, host).held_draws = held_in_main_thread


class Turns(Client):
    """Takes turns with the other clients of this process, as all share torch's generator."""

    def attach(self, *arguments: Any) -> dict[str, Any]:
        with TURN:
            return super().attach(*arguments)  # type: ignore[safe-super]  # a mixin

    def run(self, *arguments: Any) -> dict[str, Any]:
        with TURN:
            return super().run(*arguments)


class OneAtATime(Turns, SplitClient):
    """An L-shape client that takes turns."""


class FakeGrid:
    """Passes each message to the app in a thread of its own, as a SuperNode does in a process.

    Parameters
    ----------
    handler
        The ClientApp.
    nodes
        Number of nodes; ids are 100, 101, ... for partition-ids 0, 1, ...
    node_config
        Configuration of every node, besides its partition-id.
    """

    def __init__(self, handler: Handler, nodes: int, **node_config: Any) -> None:
        self.handler = handler
        self.contexts = {
            100 + index: Context(
                run_id=1,
                node_id=100 + index,
                node_config={"partition-id": index, "num-partitions": nodes, **node_config},
                state=RecordDict(),
                run_config={},
            )
            for index in range(nodes)
        }
        self.sent: list[Message] = []
        self.all_replies: list[Message] = []
        self.online = set(self.contexts)
        self.threads: list[threading.Thread] = []
        self._ids = count()
        self._replies: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        return sorted(self.online)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        message_id = f"message-{next(self._ids)}"
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        metadata = Metadata(1, message_id, 0, node, "", "", time.time(), 3600.0, kind)
        sent_message = cast(Any, Message)(content=message.content, metadata=metadata)
        self.sent.append(sent_message)
        thread = threading.Thread(target=self._handle, args=(sent_message, message_id), daemon=True)
        self.threads.append(thread)
        thread.start()
        return message_id

    def _handle(self, message: Message, message_id: str) -> None:
        try:
            reply = self.handler(message, self.contexts[message.metadata.dst_node_id])
        except NodeKilled:
            return
        self.all_replies.append(reply)
        self._replies[message_id] = reply

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def wait(self) -> None:
        """Wait until every node has answered."""
        for thread in self.threads:
            thread.join(120)
            assert not thread.is_alive(), "a node still works on its message"

    def errors(self) -> list[str]:
        """Return the errors that nodes have reported instead of taking part."""
        records = [reply.content.config_records.get(RECORD) for reply in self.all_replies]
        return [str(record["error"]) for record in records if record and "error" in record]

    @property
    def grid(self) -> Grid:
        return cast(Grid, self)


class OnFakeGrid(Link):
    """A link whose grid is a fake one, for strategies that are started without a grid.

    Outside a run, Flower's messages must be made with explicit metadata, and strategies take care
    of that when they have no grid.
    """

    def __init__(self, link: Link, grid: FakeGrid) -> None:
        self.link = link
        self.fake = grid

    @property
    def rounds_uploads(self) -> bool:
        return self.link.rounds_uploads

    @property
    def partitions(self) -> Mapping[int, int]:
        return self.link.partitions

    def open(self, grid: Grid | None) -> None:
        self.link.run_of_strategy = self.run_of_strategy
        self.link.key_of_strategy = self.key_of_strategy
        self.link.open(self.fake.grid)

    def directory(self, grid: Grid | None, min_nodes: int) -> dict[int, int]:
        return self.link.directory(self.fake.grid, min_nodes)

    def round(
        self, grid: Grid | None, messages: Sequence[Message], observe: Observe | None = None
    ) -> AbstractContextManager[Clients]:
        return self.link.round(self.fake.grid, messages, observe)

    def close(self) -> None:
        self.link.close()


def toy_app(toy: Toy, kind: type[SplitClient] = OneAtATime, **options: Any) -> SplitClientApp:
    """Make a ClientApp with the toy's clients."""
    return app_of(lambda: toy.make_clients(kind=kind, **options))


def text_app(toy: TextToy, optimizer: OptimizerFactory) -> SplitClientApp:
    """Make a ClientApp with the clients of a U-shape toy, which take turns."""
    kind: Any = type("OneAtATime", (Turns, toy.kind), {})
    return app_of(lambda: replace(toy, kind=kind).clients_for(None, optimizer))


def app_of(make: Callable[[], Sequence[Client]]) -> SplitClientApp:
    """Make a ClientApp that gives each node one of the clients that `make` returns."""

    def client_fn(context: Context) -> Client:
        with TURN:
            return make()[int(context.node_config["partition-id"])]

    return SplitClientApp(client_fn)


def question(node: int) -> Message:
    """Return a message that asks a node for its partition-id, from outside a Flower run."""
    return messages_to([node], RecordDict(), "query", in_run=False)[0]
