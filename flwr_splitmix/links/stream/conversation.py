"""A node's stream in the event loop: calls go out while replies come in."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from flwr_splitmix.links.frames.codec import Frame, encode
from flwr_splitmix.links.stream.line import Line
from flwr_splitmix.links.stream.protocol import PartialFrame

MIN_LARGE_BYTES = 256 << 10
"""Frames of at least this many bytes are encoded and decoded outside the event loop."""

HEADER_COST = 64
"""A byte of a header takes at most as long to decode as this many bytes of tensors."""

_WELCOME = encode(Frame("hello"))
_T = TypeVar("_T")


class Conversation:
    """A node's stream as its line's `Connection`; created in the coroutine that serves it.

    Attributes
    ----------
    cut
        Whether the server ended the stream.
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
        """Return whether the stream is still open."""
        return self._stands

    def wake(self) -> None:
        """Make the stream's coroutines check the line."""
        self._in_loop(self._wake_coroutines)

    def cancel(self) -> None:
        """End the stream."""
        self._in_loop(self._cut)

    def end(self) -> None:
        """Mark the stream as ended."""
        self._stands = False

    def _wake_coroutines(self) -> None:
        self._to_send.set()
        self._to_read.set()

    def _cut(self) -> None:
        if self._stands and self._task is not None:
            self.end()
            self.cut = True
            self._task.cancel()

    def _in_loop(self, function: Callable[[], None]) -> None:
        # A closed loop has ended all its streams.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    async def converse(self, line: Line) -> None:
        """Exchange a line's frames until either end is done.

        Raises
        ------
        EOFError
            If the node has closed its side.
        grpc.aio.InternalError
            If the connection broke.
        """
        # Sent on its own: a stream cut off while gRPC sends it with a message gets no status.
        await self._context.send_initial_metadata(())
        # Every hello costs the other nodes time, so a client that repeats it has to wait.
        await asyncio.sleep(line.pause)
        line.hello(self, (await self._frame(*line.limits)).pieces)
        await self._context.write(_WELCOME)
        # Both directions at once: replies come in while calls go out.
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
            # Cleared first, so that later changes wake it again.
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
        # Only awaited replies are read: a size limit is known for nothing else.
        while True:
            self._to_read.clear()
            if not line.awaits_reply(self):
                await self._to_read.wait()
                continue
            frame = await self._frame(*line.limits)
            nbytes = sum(map(len, frame.pieces)) + HEADER_COST * frame.header
            await self._beside(nbytes, line.receive, self, frame.pieces)

    async def _frame(self, max_body: int, max_header: int) -> PartialFrame:
        frame = PartialFrame(max_body, max_header)
        while True:
            message = await self._context.read()
            if message is grpc.aio.EOF:
                raise EOFError
            if frame.add(message):
                return frame

    async def _beside(self, nbytes: int, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call a function that takes as long as `nbytes` bytes do, elsewhere if it is long."""
        if nbytes < MIN_LARGE_BYTES:
            return function(*arguments)
        return await self._loop.run_in_executor(None, function, *arguments)
