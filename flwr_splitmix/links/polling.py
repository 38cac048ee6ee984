"""Flower messages, and bounded polling for their replies."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Iterable, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from flwr_splitmix.links.ticket import RECORD
from flwr_splitmix.words import one_line

log = logging.getLogger("flwr.splitmix")

_MAX_TRACEBACK_CHARACTERS = 100_000
"""Characters at the end of a traceback that are searched for its last line."""

_WRAPPED = re.compile(r"Exception ClientAppException occurred\. Message: (.*?)'?>?$", re.DOTALL)
"""How a simulation's engine words an exception; its type is in the traceback before."""

_ON_A_SUPERNODE = re.compile(r"<class '([\w.]+)'>:<'(.*)'>", re.DOTALL)
"""How a SuperNode words the type and text of an exception."""

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.02, 0.2


class Mail:
    """Sent messages, and the replies received so far.

    Parameters
    ----------
    unread
        Ids of earlier messages whose replies are no longer awaited; they are pulled, so that they
        do not pile up.

    Attributes
    ----------
    replies
        By node id.
    earlier_replies
        Replies to earlier messages, which nobody awaits.
    """

    def __init__(self, grid: Grid, messages: Sequence[Message], unread: Iterable[str] = ()) -> None:
        self.replies: dict[int, Message] = {}
        self.earlier_replies: list[Message] = []
        self._grid = grid
        message_ids = grid.push_messages(list(messages)) if messages else ()
        self._awaited_ids = {message_id for message_id in message_ids if message_id}
        self.unread = {*self._awaited_ids, *unread}

    @property
    def complete(self) -> bool:
        """Whether every reply has arrived."""
        return not self._awaited_ids & self.unread

    def poll(self) -> dict[int, Message]:
        """Poll once for replies; return the new ones by node id."""
        new: dict[int, Message] = {}
        if self.unread:
            for reply in self._grid.pull_messages(sorted(self.unread)):
                answered = reply.metadata.reply_to_message_id
                self.unread.discard(answered)
                if answered in self._awaited_ids:
                    new[reply.metadata.src_node_id] = reply
                else:
                    self.earlier_replies.append(reply)
        self.replies |= new
        return new


def warn_of_ray(waited: float) -> None:
    """Warn if nodes did not answer in `waited` seconds because Ray does not start in this process.

    A simulation imports Ray and then starts it. As long as that takes, Flower shows no error of the
    ServerApp, not even after its end.
    """
    ray = sys.modules.get("ray")
    if ray is not None and not ray.is_initialized():
        log.warning(
            "no node answered within %g s, because Ray has not started. The run fails, but hangs "
            "until Ray starts: stop it (Ctrl-C in splitmix run, or flwr stop). If RAY_ADDRESS, or "
            "the file ray_current_cluster in Ray's folder, by default /tmp/ray, names a cluster "
            "that is gone, remove it",
            waited,
        )


def send_and_wait(grid: Grid, messages: Sequence[Message], timeout: float) -> dict[int, Message]:
    """Push messages and pull replies until all have arrived or `timeout` seconds have passed.

    Returns
    -------
    Replies by node id; nodes that did not answer are missing.
    """
    mail = Mail(grid, messages)
    wait_for(mail, timeout)
    return mail.replies


def wait_for(mail: Mail, timeout: float) -> None:
    """Pull replies until all have arrived or `timeout` seconds have passed.

    Flower's own `send_and_receive` polls every 0.1 to 3 s, this function every 0.02 to 0.2 s.
    """
    deadline = time.monotonic() + timeout
    pause = FIRST_PAUSE_SECONDS
    while not mail.complete:
        if mail.poll():
            pause = FIRST_PAUSE_SECONDS
        elif time.monotonic() > deadline:
            break
        elif not mail.complete:
            time.sleep(pause)
            pause = min(pause * 1.3, MAX_PAUSE_SECONDS)


class Online:
    """The nodes connected to the SuperLink, refreshed at most every `every` seconds."""

    def __init__(self, grid: Grid, every: float = 2.0) -> None:
        self._grid = grid
        self._every = every
        self._asked_at = time.monotonic()
        self._nodes: set[int] | None = None

    def has_lost(self, node: int) -> bool:
        """Return whether the node is known to be no longer connected."""
        self._refresh_if_due()
        return self._nodes is not None and node not in self._nodes

    def _refresh_if_due(self) -> None:
        if time.monotonic() > self._asked_at + self._every:
            self._nodes = set(self._grid.get_node_ids())
            self._asked_at = time.monotonic()


def refusal(reply: Message) -> str | None:
    """Return why a node could not do what the message asked; None if it could."""
    if reply.has_error():
        return error_sentence(reply)
    record = reply.content.config_records.get(RECORD)
    return one_line(str(record["error"])) if record is not None and "error" in record else None


def why_not_attached(reply: Message) -> str:
    """Return why a node that answered its message did not attach."""
    return refusal(reply) or "answered its message without attaching"


def release_record(reply: Message) -> None:
    """Take our record out of a finished client's reply, and log the warning in it."""
    record = reply.content.config_records.pop(RECORD, None)
    if record is not None and "warning" in record:
        log.warning("%s", one_line(str(record["warning"])))


def error_sentence(reply: Message) -> str:
    """Return the exception of an error reply, with its type if it is known, without traceback."""
    text = (reply.error.reason or "").rstrip()[-_MAX_TRACEBACK_CHARACTERS:] or "no reason given"
    if wrapped := _WRAPPED.search(text):
        return _failed(_type_in(text, wrapped[1]), wrapped[1])
    if named := _ON_A_SUPERNODE.fullmatch(text):
        return _failed(named[1], named[2])
    return one_line(text.splitlines()[-1])


def _failed(kind: str, text: str) -> str:
    """Return a sentence on an exception with the name of its class, if it is known, and a text."""
    words = [part for part in (kind.rpartition(".")[2], text) if part]
    return one_line(f"the ClientApp failed: {': '.join(words)}")


def _type_in(traceback: str, text: str) -> str:
    """Return the type of the exception with this text, its full name; "" if unknown."""
    first = re.escape(text.splitlines()[0]) if text else ""
    kinds = re.findall(rf"^([A-Za-z_][\w.]*){f': {first}' if first else ''}$", traceback, re.M)
    return kinds[-1] if kinds else ""
