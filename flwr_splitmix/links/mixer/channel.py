"""The ServerApp's end of its stream to a mixer: calls, one at a time, until the round is over."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import grpc

from flwr_splitmix.links.frames.codec import MAX_BODY, Frame, decode
from flwr_splitmix.links.frames.payload import CodecError
from flwr_splitmix.links.link import LinkError, RoundLostError
from flwr_splitmix.links.mixer.handshake import asks_for_certificate
from flwr_splitmix.links.mixer.protocol import METHOD, PROTOCOL, PROTOCOL_KEY, TOKEN_KEY
from flwr_splitmix.links.stream.dialling import dial
from flwr_splitmix.links.stream.protocol import in_pieces, next_frame
from flwr_splitmix.links.stream.silence import SilenceLimit
from flwr_splitmix.words import one_line

log = logging.getLogger("flwr.splitmix")

PAUSE_SECONDS = 0.5
"""Seconds between two attempts to dial."""

MIN_HANG_UPS = 3
"""Attempts in a row at which a mixer must have hung up for want of a certificate."""

MAX_SILENCE_SECONDS = 60.0
"""Seconds that a mixer may take for a call, besides those that its exchange with the nodes takes.
A process that answers pings but no call would otherwise hold the run forever."""


@dataclass(frozen=True)
class MixerAddress:
    """A mixer's address, and the credentials for it.

    Parameters
    ----------
    address
        "host:port".
    tls
        Whether connections to it are encrypted.
    ca
        The authority that signed the mixer's certificate, as PEM; b"" for gRPC's default
        authorities.
    pair
        The ServerApp's own certificate and key, as PEM, for a mixer that asks for one.
    token
        The mixer's token.
    """

    address: str
    tls: bool
    ca: bytes = b""
    pair: tuple[bytes, bytes] | None = None
    token: str = field(default="", repr=False)


class MixerChannel:
    """A stream to a mixer, for one round.

    Parameters
    ----------
    patience
        Seconds to wait for a mixer that cannot be reached.
    step_timeout
        Seconds that the mixer's exchange with the nodes may take.
    """

    def __init__(self, dialled: MixerAddress, patience: float, step_timeout: float = 0.0) -> None:
        self._dialled = dialled
        self._patience = patience
        self._longest = MAX_SILENCE_SECONDS + step_timeout
        self._number = 0
        self._open = ExitStack()
        self._outbox: queue.SimpleQueue[list[bytes] | None] = queue.SimpleQueue()
        self._stream: Iterator[bytes] = iter(())
        self._limit = SilenceLimit(self._longest, self._hang_up)

    def open(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Dial, make the round's first call, "open", and return its reply.

        Raises
        ------
        LinkError
            If the mixer cannot be reached within `patience` seconds, asks for a certificate and
            there is none, does not answer, turns this ServerApp away, or refuses the round; or if
            `arguments` cannot be sent.
        """
        deadline = time.monotonic() + self._patience
        logged_reason, refusals = "", 0
        while True:
            self._dial()
            try:
                return self._ask("open", arguments)
            except grpc.RpcError as error:
                self.close()
                if self._limit.exceeded:
                    raise LinkError(f"{self._mixer} {self._no_answer('open')}") from None
                reason = one_line(error.details() or error.code().name)
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise LinkError(f"{self._mixer} turns this run away: {reason}") from None
                # A mixer that restarts behind a proxy hangs up, too, for a while.
                refusals = refusals + 1 if self._lacks_certificate else 0
                if refusals >= MIN_HANG_UPS:
                    raise LinkError(
                        f"{self._mixer} asks for a certificate (--link-client-ca), and this run "
                        "shows none; give certificate= and key= to MixerLink (in the apps "
                        "ssl-certfile and ssl-keyfile)"
                    ) from None
                if time.monotonic() + PAUSE_SECONDS > deadline:
                    raise LinkError(
                        f"{self._mixer} could not be reached within {self._patience:g} s: {reason}"
                        f"; does splitmix mixer run there, {self._expected}?{self._unaccepted}"
                    ) from None
                if reason != logged_reason:
                    logged_reason = reason
                    log.warning(
                        "%s cannot be reached: %s; trying again for %.0f s",
                        self._mixer,
                        reason,
                        deadline - time.monotonic(),
                    )
            except StopIteration:
                self.close()
                raise LinkError(f"{self._mixer} ended the stream without a word") from None
            time.sleep(PAUSE_SECONDS)

    def ask(self, name: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Make a call and return its reply.

        Raises
        ------
        RoundLostError
            If the mixer is gone, or does not answer.
        LinkError
            If it refuses, or answers with anything but a reply; or if `arguments` cannot be sent.
        """
        try:
            return self._ask(name, arguments or {})
        except grpc.RpcError as error:
            reason = one_line(error.details() or error.code().name)
            if self._limit.exceeded:
                reason = f"it {self._no_answer(name)}"
        except StopIteration:
            reason = "it ended the stream"
        raise RoundLostError(f"{self._mixer} is gone: {reason}")

    def close(self) -> None:
        """End the stream; the mixer then ends the round, unless "close" was called."""
        self._open.close()

    @property
    def _mixer(self) -> str:
        return f"the mixer at {self._dialled.address} (link-via)"

    def _no_answer(self, name: str) -> str:
        return f"did not answer {name!r} within {self._longest:g} s"

    def _hang_up(self) -> None:
        self._stream.cancel()  # type: ignore[attr-defined]

    @property
    def _expected(self) -> str:
        """The encryption that this process expects, for a mixer with another."""
        if not self._dialled.tls:
            return "without TLS (MixerLink has no ca=, the app no ssl-ca-certfile)"
        authority = "the authority in ca= of MixerLink (in the apps ssl-ca-certfile)"
        signer = authority if self._dialled.ca else "an authority that gRPC comes with"
        return f"with a certificate of that name, signed by {signer}"

    @property
    def _lacks_certificate(self) -> bool:
        """Whether the mixer asks for a certificate, and this process has none."""
        dialled = self._dialled
        return dialled.tls and dialled.pair is None and asks_for_certificate(dialled.address)

    @property
    def _unaccepted(self) -> str:
        """The credentials of this process that a mixer may refuse."""
        if not self._dialled.tls or self._dialled.pair is None:
            return ""
        return " The authority in --link-client-ca must have signed the certificate of this run"

    def _dial(self) -> None:
        # One connection per stream, since a mixer may be restarted between rounds.
        dialled = self._dialled
        channel = dial(dialled.address, tls=dialled.tls, ca=dialled.ca, pair=dialled.pair)
        self._open.callback(channel.close)
        self._outbox, self._number = queue.SimpleQueue(), 0
        self._open.callback(self._outbox.put, None)
        self._stream = channel.stream_stream(METHOD)(
            chain.from_iterable(iter(self._outbox.get, None)),
            metadata=((TOKEN_KEY, dialled.token), (PROTOCOL_KEY, str(PROTOCOL))),
        )
        self._limit = self._open.enter_context(SilenceLimit(self._longest, self._hang_up))

    def _ask(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            call = in_pieces(Frame("call", self._number + 1, name, arguments))
        except CodecError as error:
            raise LinkError(f"the call {name!r} cannot be sent to {self._mixer}: {error}") from None
        self._number += 1
        try:
            with self._limit.waiting():
                self._outbox.put(call)
                data = next_frame(self._stream, MAX_BODY)
            frame = decode(data)
        except CodecError as error:
            raise LinkError(f"{self._mixer} sent bytes that are not a frame: {error}") from None
        if frame.kind == "error":
            raise LinkError(f"{self._mixer} refuses: {one_line(frame.text)}")
        if frame.kind != "reply" or frame.number != self._number:
            raise LinkError(f"{self._mixer} sent a {frame.kind} frame that answers no call")
        return dict(frame.payload)


def dictionary(reply: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the dictionary under a name in a mixer's reply.

    Raises
    ------
    LinkError
        If there is no such dictionary.
    """
    value = reply.get(name)
    if not isinstance(value, dict):
        raise LinkError(f"the mixer's reply has no {name}")
    return value
