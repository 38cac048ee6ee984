"""A node's safeguards against any server: its policy, privacy ledger and audit log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message

from flwr_splitmix.clients import Client, ClientError, SplitClient
from flwr_splitmix.links.frames.wire import check_wire_dtype, rounds
from flwr_splitmix.links.link import LinkError, Outcome
from flwr_splitmix.links.node.audit import AuditLog, asked_tests
from flwr_splitmix.links.node.keys import INDEX, MIXER, check_keys
from flwr_splitmix.links.node.order import order_key
from flwr_splitmix.links.node.pinned import own_mixer
from flwr_splitmix.links.node.state import flower_name, node_folder, run_name
from flwr_splitmix.links.ticket import RECORD, Ticket
from flwr_splitmix.privacy.policy import NodePolicy, PolicyError
from flwr_splitmix.values import MAX_COUNT
from flwr_splitmix.words import one_line

STEPS = "num-steps"
"""The metric with the number of optimizer steps that a client has taken in a round."""


class NodeGuards:
    """A node's safeguards in one round.

    The node's operator sets them in its configuration; no run can change them. Ledger and audit
    log belong to the node and its partition, not to a run: naming another run or an earlier round
    does not reset what has been spent.

    Parameters
    ----------
    context
        The message's context: the node's configuration, and the run's as the client will see it.
    ticket
        The server's ticket; it must name this node's client.

    Raises
    ------
    LinkError
        If the ticket names another client or no valid run (see `run_name`), a key of the node's
        configuration seems to be misspelt, its mixer or policy is invalid, or an audit log that the
        policy requires cannot be written.
    """

    def __init__(self, context: Context, ticket: Ticket) -> None:
        node_index = context.node_config.get(INDEX)
        # Names of files: to Python 1, 1.0 and True are equal, and each would have its own ledger.
        if node_index != ticket.client or type(node_index) is not type(ticket.client):
            raise LinkError(
                f"the server's ticket is for client {ticket.client!r}, and this node's {INDEX} is "
                f"{node_index!r}"
            )
        check_keys(context.node_config)
        try:
            self.policy = NodePolicy.of_node(context.node_config)
        except PolicyError as error:
            raise LinkError(f"this node's configuration: {error}") from None
        self._pinned = bool(own_mixer(context.node_config))
        self._wire = ticket.wire_dtype
        self._averaged = ticket.returns_arrays
        if self._pinned and self.policy.allow_averaging is None:
            # A server that must not see the uploads must not get the segment that made them.
            self.policy = replace(self.policy, allow_averaging=False)
        self.run = run_name(ticket.run, context)
        limited = self.policy.max_epsilon is not None
        self._folder = node_folder(context, absolute=limited)
        self._config = dict(context.run_config)
        self._context = context
        self._index = ticket.client
        self._client: Client | None = None
        self.audit = _open_log(
            self._folder,
            self._index,
            self.run,
            ticket.server_round,
            ticket.address,
            strict=limited,
        )

    def build(self, make: Callable[[], Client]) -> Client:
        """Build the client and subject it to the node's policy.

        Raises
        ------
        ClientError
            As `make`, or if the policy does not allow such a client or such a round.
        """
        if self._averaged and self.policy.allow_averaging is False:
            why = f"{MIXER} is set, and allow-averaging is not true"
            raise ClientError(
                "this node does not send its segments to be averaged "
                f"({why if self._pinned else 'allow-averaging = false'}): take a strategy that "
                "does not average"
            )
        self._client = make()
        if isinstance(self._client, Client):
            self._client.govern(self.policy, self._folder, self._index, self._records_of_run)
        if isinstance(self._client, SplitClient):
            if self._pinned and not self._client.repeatable_secrets:
                # The server knows the run's seed, and whose labels are in which row of a mixture
                # if it knows the order.
                key = order_key(self._folder, self._context, self.run, self._index)
                self._client.batches.order_key = key
            weights = {weight.dtype for weight in self._client.segment.parameters()}
            rounded = any(rounds(self._wire, dtype) for dtype in weights | {torch.float32})
            self._client.sends_sums = not (self._pinned and rounded)
        return self._client

    def answer(
        self, method: str, arguments: Mapping[str, Any], ask: Callable[[], Outcome]
    ) -> Outcome:
        """Answer a call from the server if the policy allows it, and log it.

        Parameters
        ----------
        ask
            Calls the client.
        """
        why = self._refusal(arguments)
        return self._note(method, arguments, Outcome(None, why) if why else ask())

    def _refusal(self, arguments: Mapping[str, Any]) -> str:
        kind = arguments.get("kind")
        if kind == "federated" and self.policy.allow_evaluation is False:
            return (
                "this node does not send its own test data (allow-evaluation = false); measure on "
                "public data (benchmark or central evaluation)"
            )
        if kind == "benchmark" and not self.policy.benchmark:
            # The run names the data that it calls public, and could name this node's own.
            return (
                "this node sends no benchmark data without noise (allow-benchmark is not true): "
                "its operator can allow it, and strategies that average can measure centrally"
            )
        return ""

    def reported(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return the client's metrics as the server may see them.

        A server that withholds one group's gradient would learn from the number of steps taken who
        is in that group: a node with a mixer of its own reports none.
        """
        hidden = {STEPS: 0} if self._pinned and STEPS in metrics else {}
        return {**metrics, **hidden}

    @property
    def _records_of_run(self) -> str:
        """Id and configuration digest of the run, within which records keep their indices.

        The server writes the configuration, so two with one digest must not be findable.
        """
        text = repr(sorted(self._config.items()))
        return f"{self.run}:{blake2b(text.encode(), digest_size=32).hexdigest()}"

    def _note(self, method: str, arguments: Mapping[str, Any], outcome: Outcome) -> Outcome:
        """Log a reply, or why there is none; withhold a reply that cannot be logged."""
        step, part = (
            value if isinstance(value := arguments.get(name), int) else None
            for name in ("number", "part")
        )
        tests = asked_tests(arguments)
        try:
            if outcome.error is not None:
                self.audit.refuse(method, outcome.error, step=step, tests=tests)
            else:
                epsilon = None if self._client is None else self._client.epsilon
                share = arguments.get("plan")
                self.audit.write(
                    method, outcome.reply, step=step, part=part, tests=tests, share=share,
                    epsilon=epsilon, wire=check_wire_dtype(self._wire),
                )  # fmt: skip
        except LinkError as error:
            return replace(outcome, reply=None, error=str(error))
        return outcome


def rejection_log(message: Message, context: Context) -> AuditLog | None:
    """Open a node's audit log for a message whose ticket, or the node's own policy, is invalid.

    Its lines have the run, the round and the address as far as the message says them. None for a
    node without a valid index or with an unusable `state-dir`, which has no log.
    """
    index = context.node_config.get(INDEX)
    if type(index) is not int:
        return None
    try:
        folder = node_folder(context)
    except LinkError:
        return None
    record = dict(message.content.config_records.get(RECORD) or {})
    run, number, to = (record.get(name) for name in ("run", "server_round", "address"))
    return _open_log(
        folder,
        index,
        run if run and isinstance(run, str) else flower_name(context),
        number if type(number) is int and 0 <= number <= MAX_COUNT else 0,
        to if isinstance(to, str) else "",
        strict=False,
    )


def _open_log(
    folder: Path | None, index: int, run: str, server_round: int, to: str, *, strict: bool
) -> AuditLog:
    facts = {"run": one_line(run), "round": server_round, "client": index, "to": one_line(to)}
    path = None if folder is None else folder / f"audit-{index}.jsonl"
    return AuditLog(path, facts, strict=strict)
