"""Network lines of given rates and delays between processes of this machine.

A relay forwards bytes, each piece after the line's delay and, unless the kernel limits the rates,
no faster than the line's rate. Where the kernel can do so (with root, `ip` and `tc`), each node
lives in a network namespace of its own, behind a pair of virtual interfaces whose rates `tc tbf`
limits.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import socket
import subprocess
import threading
import time
from dataclasses import dataclass

PIECE = 16 * 1024
BACKLOG_SECONDS = 0.05
"""Maximum backlog per direction of a relay that limits rates: senders notice the rate soon."""


@dataclass(frozen=True)
class Line:
    """Properties of a line, seen from its node: Mbit/s down and up, milliseconds of round trip."""

    down: float
    up: float
    rtt_ms: float

    def slower(self, factor: float) -> Line:
        """Return a line with rates divided and round trip multiplied by a factor."""
        return Line(self.down / factor, self.up / factor, self.rtt_ms * factor)


class Relay:
    """Forwards data sent to a port, over a line.

    Parameters
    ----------
    target
        Destination: (host, port).
    host
        Host to listen on, at a free port.
    shapes
        Whether the relay limits the rates; it always adds the delay.

    Attributes
    ----------
    line
        Properties of the line; may be replaced at any time.
    address
        "host:port" to dial.
    nbytes
        Number of forwarded bytes, by direction; "up" is to the target.
    """

    def __init__(self, target: tuple[str, int], host: str, line: Line, shapes: bool) -> None:
        self.target = target
        self.line = line
        self.nbytes = {"up": 0, "down": 0}
        self._shapes = shapes
        self._free_at = {"up": 0.0, "down": 0.0}
        self._lock = threading.Lock()
        self.connections: list[socket.socket] = []
        self._listener = socket.create_server((host, 0))
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Break all connections and accept no more."""
        with contextlib.suppress(OSError):  # wakes the thread that accepts
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Break all open connections."""
        for end in self.connections:
            _shut(end)
            with contextlib.suppress(OSError):
                end.close()
        self.connections.clear()

    def admits(self) -> bool:
        """Return whether a connection may be made; subclasses may refuse."""
        return True

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if not self.admits():
                    near.close()
                    continue
                try:
                    far = socket.create_connection(self.target)
                except OSError:  # nobody is listening yet, or any more
                    near.close()
                    continue
                for end in (near, far):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connections += [near, far]
                for source, sink, way in ((near, far, "up"), (far, near, "down")):
                    threading.Thread(
                        target=self._take, args=(source, sink, way), daemon=True
                    ).start()

    def _take(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        """Receive data from one end at the line's rate; another thread delivers it."""
        pieces: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        threading.Thread(target=_deliver, args=(pieces, source, sink), daemon=True).start()
        data = b"-"
        while data:
            try:
                data = source.recv(PIECE)
            except OSError:
                data = b""
            self.hear(way, data)
            through = self._through(way, len(data))
            pieces.put((through + self.line.rtt_ms / 2000, data))
            time.sleep(max(through - time.monotonic() - BACKLOG_SECONDS, 0.0))

    def hear(self, way: str, data: bytes) -> None:
        """Do nothing; subclasses may inspect a piece here before it is forwarded."""

    def _through(self, way: str, nbytes: int) -> float:
        """Count `nbytes` more bytes, and return when the last has left the line's bottleneck."""
        now = time.monotonic()
        with self._lock:
            self.nbytes[way] += nbytes
            if not self._shapes:
                return now
            rate = 1e6 / 8 * (self.line.up if way == "up" else self.line.down)
            self._free_at[way] = max(self._free_at[way], now) + nbytes / rate
            return self._free_at[way]


def _deliver(
    pieces: queue.SimpleQueue[tuple[float, bytes]], source: socket.socket, sink: socket.socket
) -> None:
    with contextlib.suppress(OSError):
        while (piece := pieces.get())[1]:
            time.sleep(max(piece[0] - time.monotonic(), 0.0))
            sink.sendall(piece[1])
    _shut(source)
    _shut(sink)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


class Namespace:
    """A network namespace with one line to this machine, whose rates the kernel limits.

    Parameters
    ----------
    index
        Number of the line in this process, up to 63.

    Attributes
    ----------
    outside
        This machine's address, seen from within.
    name
        Name for `ip netns exec`.

    Raises
    ------
    OSError
        If the kernel or its tools refuse; `missing` tells beforehand what is known to be missing.
    """

    def __init__(self, index: int) -> None:
        self.name = f"splitmix-{os.getpid()}-{index}"
        self._far, self._near = (
            f"sm{os.getpid() % 10**7}n{index}",
            f"sm{os.getpid() % 10**7}h{index}",
        )
        # RFC 2544 reserves these addresses for benchmarks.
        first = 4 * index
        self.outside = f"198.18.{os.getpid() % 256}.{first + 1}"
        inside = f"198.18.{os.getpid() % 256}.{first + 2}"
        try:
            _run("ip", "netns", "add", self.name)
            _run("ip", "link", "add", self._near, "type", "veth", "peer", "name", self._far)
            _run("ip", "link", "set", self._far, "netns", self.name)
            _run("ip", "addr", "add", f"{self.outside}/30", "dev", self._near)
            _run("ip", "link", "set", self._near, "up")
            within = ("ip", "-n", self.name)
            _run(*within, "addr", "add", f"{inside}/30", "dev", self._far)
            _run(*within, "link", "set", self._far, "up")
            _run(*within, "link", "set", "lo", "up")
            self.shape(Line(1000, 1000, 0))
        except OSError:
            self.close()
            raise

    def shape(self, line: Line) -> None:
        """Set the line's rates, in both directions."""
        _shape(self._near, line.down)
        _shape(self._far, line.up, self.name)

    def close(self) -> None:
        """Remove the namespace, and the line with it."""
        with contextlib.suppress(OSError):
            _run("ip", "link", "del", self._near)
        with contextlib.suppress(OSError):
            _run("ip", "netns", "del", self.name)


def missing() -> str:
    """Return what this machine lacks for namespaces with limited rates; "" for nothing."""
    if os.name != "posix" or os.geteuid() != 0:
        return "root"
    lacking = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if lacking:
        return " and ".join(lacking)
    try:
        Namespace(63).close()
    except OSError as error:
        return str(error)
    return ""


def _shape(interface: str, mbit: float, namespace: str | None = None) -> None:
    within = () if namespace is None else ("-n", namespace)
    rate = f"{max(1, round(1000 * mbit))}kbit"
    queue_of = ("burst", "32kb", "limit", "1mb")
    _run(
        "tc", *within, "qdisc", "replace", "dev", interface, "root", "tbf", "rate", rate, *queue_of
    )


def _run(*command: str) -> None:
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise OSError(f"{' '.join(command[:3])}: {process.stderr.strip()}")
