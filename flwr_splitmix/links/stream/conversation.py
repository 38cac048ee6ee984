"""A node's stream in the event loop: calls go out while replies come in."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from flwr_splitmix.links.frames.codec import Frame, encode
from flwr_splitmix.links.stream.line import Line
from flwr_splitmix.links.stream.protocol import Messages

LARGE = 256 << 10
"""Bytes from which on a frame is packed or unpacked beside the event loop."""

_WELCOME = encode(Frame("hello"))
_T = TypeVar("_T")


class Conversation:
    """A node's stream, as its line sees it; made in the coroutine that answers it.

    Attributes
    ----------
    cut
        Whether the server ended it.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._to_send = asyncio.Event()
        self._to_read = asyncio.Event()
        self._stands = True
        self.cut = False
        context.add_done_callback(lambda _: self.end())

    def is_active(self) -> bool:
        """Return whether it still stands."""
        return self._stands

    def wake(self) -> None:
        """Have the stream's coroutines look at the line."""
        self._in_loop(self._look)

    def cancel(self) -> None:
        """End it."""
        self._in_loop(self._cut)

    def end(self) -> None:
        """Note that it is over."""
        self._stands = False

    def _look(self) -> None:
        self._to_send.set()
        self._to_read.set()

    def _cut(self) -> None:
        if self._stands and self._task is not None:
            self.end()
            self.cut = True
            self._task.cancel()

    def _in_loop(self, function: Callable[[], None]) -> None:
        # A loop that is closed has ended all of its streams.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    async def converse(self, line: Line) -> None:
        """Carry a line's conversation until one end has had enough.

        Raises
        ------
        EOFError
            If the node has closed its side.
        grpc.aio.InternalError
            If the connection broke.
        """
        # By itself: a stream that is cut off while gRPC sends it beside a message gets no status.
        await self._context.send_initial_metadata(())
        line.hello(self, await self._frame(line.longest_body))
        await self._context.write(_WELCOME)
        # Both directions at the same time: replies come in while calls go out.
        ways = [asyncio.create_task(self._send(line)), asyncio.create_task(self._listen(line))]
        try:
            ended, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        for way in ended:
            way.result()

    async def _send(self, line: Line) -> None:
        while True:
            # Cleared first: what changes from here on wakes it again.
            self._to_send.clear()
            following = await self._beside(line.call_bytes, line.next_frame, self)
            if following is None:
                return
            messages, last = following
            if not messages:
                await self._to_send.wait()
            for message in messages:
                await self._context.write(message)
            if last:
                return

    async def _listen(self, line: Line) -> None:
        # Nothing is read that was not asked for: what it may weigh is known of replies alone.
        while True:
            self._to_read.clear()
            if not line.awaits_reply(self):
                await self._to_read.wait()
                continue
            pieces = await self._frame(line.longest_body)
            await self._beside(sum(map(len, pieces)), line.receive, self, pieces)

    async def _frame(self, max_body: int) -> list[bytes]:
        frame = Messages(max_body)
        while True:
            message = await self._context.read()
            if message is grpc.aio.EOF:
                raise EOFError
            if frame.add(message):
                return frame.pieces

    async def _beside(self, nbytes: int, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call what handles so many bytes, in a thread of its own if they are many."""
        if nbytes < LARGE:
            return function(*arguments)
        return await self._loop.run_in_executor(None, function, *arguments)
