"""A node's own record of what left it, for the operator and the site's privacy officer."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from flwr_splitmix.files.json_values import finite
from flwr_splitmix.links.frames.payload import wire_of
from flwr_splitmix.links.frames.wire import WireDtype, narrows, wire_bytes
from flwr_splitmix.links.link import LinkError
from flwr_splitmix.links.node.keys import STATE_DIR
from flwr_splitmix.privacy.journal import JournalError, SharedJournal, reason_of
from flwr_splitmix.words import one_line

log = logging.getLogger("flwr.splitmix")

SUPERLINK = "the SuperLink"
"""Where Flower's own messages go: they have no address of the link."""

_LONGEST_KIND = 40
"""Most characters of an evaluation's kind that are written."""

_LARGEST = 2**53
"""Largest number of a test example that is written."""


def asked_tests(arguments: Mapping[str, Any]) -> dict[str, str | int]:
    """Return which test data a call asks for: its `kind`, `start` and `stop`.

    Only short texts and whole numbers from 0 are kept: a server may send anything.
    """
    request: dict[str, str | int] = {}
    kind = arguments.get("kind")
    if isinstance(kind, str) and len(kind) <= _LONGEST_KIND:
        request["kind"] = one_line(kind)
    for name in ("start", "stop"):
        number = arguments.get(name)
        if type(number) is int and 0 <= number <= _LARGEST:
            request[name] = number
    return request


class AuditLog:
    """Writes a line for each reply of one client in one round, before the reply leaves.

    Parameters
    ----------
    path
        The file, an append-only journal of JSON lines; None keeps none.
    facts
        Entries of every line: run, round, client, address of the link.
    strict
        Whether nothing may leave unless it is logged, with each line flushed to disk.

    Raises
    ------
    LinkError
        If `strict` is set and the file cannot be written; also later, for each line.
    """

    def __init__(self, path: Path | None, facts: Mapping[str, Any], *, strict: bool) -> None:
        self._facts = dict(facts)
        self._strict = strict
        self._journal: SharedJournal | None = None
        if path is None:
            self._give_up(f"the node has no {STATE_DIR}")
            return
        try:
            self._journal = SharedJournal(path, durable=strict)
        except (OSError, JournalError) as error:
            self._give_up(reason_of(error))

    def _give_up(self, reason: str) -> None:
        if self._strict:
            raise LinkError(
                f"this node's audit log cannot be written ({reason}), and nothing is sent without "
                f"it: give the node a {STATE_DIR} that can be written"
            )
        log.warning(
            "what leaves this node is not written down (%s): a %s that can be written does that",
            reason,
            STATE_DIR,
        )

    def write(
        self,
        exchange: str,
        content: Any,
        *,
        step: int | None = None,
        part: int | None = None,
        tests: Mapping[str, str | int] | None = None,
        share: Any = None,
        epsilon: float | None = None,
        to: str = "",
        wire: WireDtype = "keep",
    ) -> None:
        """Log what leaves.

        Parameters
        ----------
        exchange
            The client's method that the server called, or "attach" or "release".
        content
            Tensors and plain values, before they are narrowed.
        step, part
            The step of the round, and the part of its batch if it leaves in parts.
        tests
            The test data that an evaluation takes, as `asked_tests` returns them.
        share
            The server's plan, as plain values.
        epsilon
            The epsilon that the client has spent, this reply included.
        to
            Where it goes, unless to the address of the link.
        wire
            Format in which floating-point tensors leave; the line has its bytes.
        """
        items = list(_items(content, "", wire))
        self._append(
            {
                "exchange": exchange,
                "step": step,
                **({} if part is None else {"part": part}),
                **(tests or {}),
                "sent": items,
                "bytes": sum(item.get("bytes", 0) for item in items),
                "share": share,
                "epsilon": finite(epsilon),
                **({"to": to} if to else {}),
            }
        )

    def refuse(
        self,
        exchange: str,
        reason: str,
        *,
        step: int | None = None,
        tests: Mapping[str, str | int] | None = None,
    ) -> None:
        """Log what did not leave, and why; `exchange` may be any text of the server's."""
        self._append(
            {
                "exchange": one_line(exchange),
                "step": step,
                **(tests or {}),
                "refused": one_line(reason),
            }
        )

    def _append(self, entry: Mapping[str, Any]) -> None:
        if self._journal is None:
            return
        try:
            self._journal.append({"time": round(time.time(), 3), **self._facts, **entry})
        except (OSError, JournalError) as error:
            self._give_up(reason_of(error))


def _items(value: Any, name: str, wire: WireDtype) -> Iterator[dict[str, Any]]:
    """Yield one entry per tensor or plain value: its shape and bytes or its type, no content."""
    if isinstance(value, Tensor):
        kind = wire if narrows(value, wire) else str(value.dtype).removeprefix("torch.")
        size = wire_bytes(value, wire)
        yield {"name": name, "shape": list(value.shape), "dtype": kind, "bytes": size}
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _items(part, f"{name}.{key}" if name else str(key), wire_of(key, wire))
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _items(part, name, wire)
    elif value is not None:
        yield {"name": name, "value": type(value).__name__}
