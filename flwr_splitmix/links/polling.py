"""Flower messages, and bounded polling for their replies."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from flwr_splitmix.links.link import LinkError
from flwr_splitmix.links.ticket import RECORD
from flwr_splitmix.words import counted, one_line

log = logging.getLogger("flwr.splitmix")

CLAIM_SECONDS = 15.0
"""Seconds for the holder of an index that another node claims to answer again."""

GRACE_SECONDS = 1.0
"""Seconds to wait for nodes that have been waited for before, in vain."""

_TRACEBACK = 100_000
"""Characters at the end of a traceback that are searched for its last line."""

_WRAPPED = re.compile(r"Exception ClientAppException occurred\. Message: (.*?)'?>?$", re.DOTALL)
"""How a simulation's engine words an exception, whose type it does not tell."""

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.2


class Mail:
    """Sent messages, and the replies received so far.

    Parameters
    ----------
    unread
        Ids of earlier messages whose replies are no longer awaited; they are pulled, so that they
        do not pile up, and discarded.

    Attributes
    ----------
    replies
        By node id.
    """

    def __init__(self, grid: Grid, messages: Sequence[Message], unread: Iterable[str] = ()) -> None:
        self.replies: dict[int, Message] = {}
        self._grid = grid
        sent = grid.push_messages(list(messages)) if messages else ()
        self._wanted = {message_id for message_id in sent if message_id}
        self.unread = {*self._wanted, *unread}

    @property
    def complete(self) -> bool:
        """Whether every reply has arrived."""
        return not self._wanted & self.unread

    def look(self) -> dict[int, Message]:
        """Poll once for replies; return the new ones by node id."""
        new: dict[int, Message] = {}
        if self.unread:
            for reply in self._grid.pull_messages(sorted(self.unread)):
                answered = reply.metadata.reply_to_message_id
                self.unread.discard(answered)
                if answered in self._wanted:
                    new[reply.metadata.src_node_id] = reply
        self.replies |= new
        return new


def send_and_wait(grid: Grid, messages: Sequence[Message], timeout: float) -> dict[int, Message]:
    """Push messages and pull replies until all have arrived or `timeout` seconds have passed.

    Returns
    -------
    Replies by node id; nodes that did not answer are missing.
    """
    mail = Mail(grid, messages)
    _wait_for(mail, timeout)
    return mail.replies


def _wait_for(mail: Mail, timeout: float) -> None:
    """Pull replies until all have arrived or `timeout` seconds have passed.

    Flower's own `send_and_receive` polls every 0.1 to 3 s, this function every 0.02 to 0.2 s.
    """
    deadline = time.monotonic() + timeout
    pause = FIRST_PAUSE
    while not mail.complete:
        if mail.look():
            pause = FIRST_PAUSE
        elif time.monotonic() > deadline:
            break
        elif not mail.complete:
            time.sleep(pause)
            pause = min(pause * 1.3, LONGEST_PAUSE)


class Online:
    """The nodes connected to the SuperLink, refreshed at most every `every` seconds."""

    def __init__(self, grid: Grid, every: float = 2.0) -> None:
        self._grid = grid
        self._every = every
        self._asked = time.monotonic()
        self._nodes: set[int] | None = None

    def has_lost(self, node: int) -> bool:
        """Return whether the node is known to be no longer connected."""
        if time.monotonic() > self._asked + self._every:
            self._nodes = set(self._grid.get_node_ids())
            self._asked = time.monotonic()
        return self._nodes is not None and node not in self._nodes


def refusal(reply: Message) -> str | None:
    """Return why a node could not do what the message asked; None if it could."""
    if reply.has_error():
        return error_sentence(reply)
    record = reply.content.config_records.get(RECORD)
    return one_line(str(record["error"])) if record is not None and "error" in record else None


def release_record(reply: Message) -> None:
    """Take our record out of a finished client's reply, and log the warning in it."""
    record = reply.content.config_records.pop(RECORD, None)
    if record is not None and "warning" in record:
        log.warning("%s", one_line(str(record["warning"])))


def error_sentence(reply: Message) -> str:
    """Return the last line of an error reply: the exception, without the traceback."""
    text = (reply.error.reason or "").rstrip()[-_TRACEBACK:] or "no reason given"
    said = _WRAPPED.search(text)
    return one_line(f"its ClientApp failed: {said[1]}" if said else text.splitlines()[-1])


class Directory:
    """Which node holds which client, by its `partition-id`; each node is asked once.

    A node that does not answer is asked again at every update, but waited for only once.

    Nodes report their own index. The first to report an index in a run keeps it while it is
    connected and answers; any other claimant is left out and logged. If several nodes claim a free
    index at the same time, all are left out until only one of them remains.

    Attributes
    ----------
    simulated
        By node id, whether the node reported to be a virtual node of a simulation.
    virtual
        Number of connected nodes if they are virtual, also those that do not answer; else 0.
    """

    def __init__(self) -> None:
        self.simulated: dict[int, bool] = {}
        self.virtual = 0
        self._clients: dict[int, int] = {}
        self._claims: dict[int, int] = {}
        self._left_out: dict[int, str] = {}
        self._silent: set[int] = set()
        self._late: Mail | None = None

    def update(self, grid: Grid, min_nodes: int, timeout: float) -> dict[int, int]:
        """Ask the nodes not known yet, and wait for the new ones among them.

        Beyond that, wait only until `min_nodes` nodes are known; all in all `timeout` seconds.

        Returns
        -------
        client index -> node id of the nodes connected now, sorted by index.

        Raises
        ------
        LinkError
            If there are fewer than `min_nodes` nodes with distinct indices in time, or none.
        """
        began = time.monotonic()
        deadline = began + timeout
        refusals: dict[int, str] = {}
        self._ask_again(grid, refusals)
        while True:
            nodes = set(grid.get_node_ids())
            new = nodes - self._clients.keys() - self._silent - self._left_out.keys()
            patience = max(deadline - time.monotonic(), 1.0)
            self._note(self._ask(grid, new, patience, refusals))
            if self._late is not None:
                self._note(self._read(self._late.look(), refusals))
            if held := self._held_and_claimed(nodes):
                # A restarted SuperNode has a new id; its old id no longer answers.
                answers = self._ask(grid, held, min(timeout, CLAIM_SECONDS), refusals)
                self._silent |= held - answers.keys()
            present = nodes - self._silent
            self._settle_claims(present)
            known = {c: n for n, c in self._clients.items() if n in present}
            # A simulation's nodes never grow in number; they are there from its beginning.
            virtual = bool(nodes) and all(self.simulated.get(node) for node in nodes)
            if len(known) >= min_nodes and known:
                answered = all(self.simulated.get(node) for node in known.values())
                self.virtual = len(nodes) if answered else 0
                return dict(sorted(known.items()))
            limit = min(timeout, _VIRTUAL) if virtual else timeout
            if time.monotonic() > began + limit:
                refusals |= {
                    n: f"node {n} is left out: {why}"
                    for n, why in self._left_out.items()
                    if n in nodes
                }
                why = "; ".join(sorted(set(refusals.values()))[:3])
                raise LinkError(
                    f"{counted(len(known), 'node')} answered within {limit:g} s, "
                    f"min-nodes is {min_nodes}"
                    + (f": {why}" if why else "")
                    + (_MORE_VIRTUAL.format(min_nodes) if virtual and not why else "")
                )
            time.sleep(0.5)

    def _note(self, answers: Mapping[int, int]) -> None:
        self._silent -= answers.keys()
        for node, client in answers.items():
            if self._clients.get(node) != client:
                self._clients.pop(node, None)
                self._claims[node] = client

    def leave_out(self, node: int, why: str) -> None:
        """Ignore a node for the rest of the run, and log why."""
        self._clients.pop(node, None)
        self._claims.pop(node, None)
        self._name(node, why)

    def _name(self, node: int, why: str) -> None:
        if node not in self._left_out:
            log.warning("node %d is left out: %s", node, why)
        self._left_out[node] = why

    def _ask(
        self, grid: Grid, nodes: Iterable[int], timeout: float, refusals: dict[int, str]
    ) -> dict[int, int]:
        """Ask nodes for their index; return the valid answers, and add the others to `refusals`."""
        asked = sorted(nodes)
        replies = send_and_wait(grid, [_question(node) for node in asked], timeout)
        self._silent |= set(asked) - replies.keys()
        return self._read(replies, refusals)

    def _ask_again(self, grid: Grid, refusals: dict[int, str]) -> None:
        """Ask the silent nodes once more; `_late` has the answers of those that take longer."""
        again = sorted((self._silent & set(grid.get_node_ids())) - self._left_out.keys())
        if again:
            earlier = () if self._late is None else self._late.unread
            self._late = Mail(grid, [_question(node) for node in again], earlier)
            _wait_for(self._late, GRACE_SECONDS)
            self._note(self._read(self._late.replies, refusals))

    def _read(self, replies: Mapping[int, Message], refusals: dict[int, str]) -> dict[int, int]:
        """Return the valid answers among replies, and add the others to `refusals`."""
        answers: dict[int, int] = {}
        for node, reply in replies.items():
            reason = refusal(reply)
            record = {} if reason else dict(reply.content.config_records.get(RECORD) or {})
            client = record.get("client")
            if reason is not None:
                refusals[node] = reason
            elif type(client) is not int or client < 0:
                refusals[node] = "a node did not say its partition-id: is its app a SplitClientApp?"
            else:
                answers[node] = client
                self.simulated[node] = bool(record.get("simulated"))
        return answers

    def _held_and_claimed(self, nodes: set[int]) -> set[int]:
        """Return the connected nodes whose index is claimed by a newly arrived node."""
        new = {c for n, c in self._claims.items() if n in nodes and n not in self._left_out}
        present = nodes - self._silent
        return {n for n, client in self._clients.items() if n in present and client in new}

    def _settle_claims(self, nodes: set[int]) -> None:
        """Assign every index to the first node that held it, else to its only claimant."""
        holders: dict[int, int] = {}
        for node, client in list(self._clients.items()):
            if node in nodes and holders.setdefault(client, node) != node:
                # It had replaced a node that is back.
                self._claims[node] = self._clients.pop(node)
        claims = {node: client for node, client in self._claims.items() if node in nodes}
        count = Counter(claims.values())
        for node, client in claims.items():
            if client in holders:
                self._name(node, f"{_OWN} {client}, which node {holders[client]} has; {_REMEDY}")
            elif count[client] > 1:
                other = min(n for n, c in claims.items() if c == client and n != node)
                self._name(node, f"{_OWN} {client} as node {other} does; {_REMEDY}")
            else:
                self._clients[node] = self._claims.pop(node)
                self._left_out.pop(node, None)


_VIRTUAL = 5.0
"""Seconds to wait for further nodes of a simulation."""

_MORE_VIRTUAL = "; give the simulation more: flwr run ... --federation-config 'num-supernodes={}'"

_OWN = "it says partition-id"
_REMEDY = "each SuperNode needs its own in --node-config"


def _question(node: int) -> Message:
    return Message(
        RecordDict({RECORD: ConfigRecord({})}), dst_node_id=node, message_type=MessageType.QUERY
    )
