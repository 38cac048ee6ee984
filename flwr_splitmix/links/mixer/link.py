"""The link through a third party's mixer: the strategy's clients are its mixing groups."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from flwr_splitmix.links.dialled import DialledLink
from flwr_splitmix.links.link import Clients, LinkError, Observe, RoundLostError
from flwr_splitmix.links.mixer.channel import MixerAddress, MixerChannel, dictionary
from flwr_splitmix.links.mixer.groups import MixedGroups, NoGroups
from flwr_splitmix.links.mixer.protocol import read_token
from flwr_splitmix.links.polling import Mail
from flwr_splitmix.links.stream.absence import Absence
from flwr_splitmix.links.stream.endpoint import is_loopback, join_address, split_address
from flwr_splitmix.links.stream.pairs import read_authority, read_pair
from flwr_splitmix.links.stream.replies import POLL_SECONDS, collect
from flwr_splitmix.links.stream.tls import PAIR, check_pair
from flwr_splitmix.links.ticket import Ticket, with_record
from flwr_splitmix.privacy import RunAccount
from flwr_splitmix.values import check_truth

log = logging.getLogger("flwr.splitmix")


class MixerLink(DialledLink):
    """Directs nodes to a mixer (`splitmix mixer`), and gets mixtures from it.

    The strategy's clients are then mixing groups: see `MixedGroups`.

    Parameters
    ----------
    via
        "host:port" of the mixer, to which nodes and this process connect.
    token_file
        File with the mixer's token, readable by the owner only.
    ca
        PEM file of the authority that signed the mixer's certificate; it is sent to the nodes.
        None: nodes and this process trust gRPC's default authorities. On the loopback, None means
        plaintext.
    certificate, key
        PEM files of this process's own certificate and key, for a mixer that requires one.
    insecure
        Whether to use plaintext, wherever the mixer is.
    wire_dtype, wire_dtype_down, wire_feedback, run, attach_timeout, step_timeout, reattach_timeout
        As in `StreamLink`, between nodes and mixer. Mixtures and their gradients are sent
        unchanged. Where the mixer adds uploads up, `wire_dtype` must be "keep".
        `attach_timeout` is also how long to wait for a mixer that cannot be reached.

    Raises
    ------
    LinkError
        If an address, a file or a certificate is invalid.
    ValueError
        If `wire_dtype` is not a wire format, `wire_feedback` is set without rounding, or a switch
        is neither true nor false.
    """

    def __init__(
        self,
        via: str,
        token_file: str | Path,
        *,
        ca: str | Path | None = None,
        certificate: str | Path | None = None,
        key: str | Path | None = None,
        insecure: bool = False,
        wire_dtype: str = "keep",
        wire_dtype_down: str = "",
        wire_feedback: bool = False,
        run: str = "",
        attach_timeout: float = 120.0,
        step_timeout: float = 120.0,
        reattach_timeout: float = 20.0,
    ) -> None:
        super().__init__(
            wire_dtype=wire_dtype,
            wire_dtype_down=wire_dtype_down,
            wire_feedback=wire_feedback,
            run=run,
            attach_timeout=attach_timeout,
            step_timeout=step_timeout,
            reattach_timeout=reattach_timeout,
        )
        check_truth("insecure", insecure)
        host, port = split_address(via, "via (link-via)")
        if not port:
            raise LinkError(
                f"via (link-via) is {via!r}; it must be host:port, e.g. mixer.example:9444"
            )
        use = "with a mixer they are this run's own, for one that asks for a certificate"
        check_pair(certificate, key, PAIR, use)
        tls = not insecure and (ca is not None or not is_loopback(host))
        self._dialled = MixerAddress(
            join_address(host, port),
            tls,
            b"" if ca is None else read_authority(ca, "ca (ssl-ca-certfile)"),
            None if certificate is None or key is None else read_pair(certificate, key),
            read_token(token_file, "token_file (link-via-token)"),
        )
        self._mixing: Mapping[str, Any] | None = None
        self._on_account: Callable[[RunAccount], None] | None = None
        self._unread: set[str] = set()

    def request(
        self, mixing: Mapping[str, Any], on_account: Callable[[RunAccount], None] | None
    ) -> None:
        """Set what a strategy asks of the mixer in its next run.

        Parameters
        ----------
        mixing
            "mixing", "classes", "multi-label", "dtype", "geometry", "steps-per-round",
            "epochs-per-round", and with noise the "ledger": its delta and relation.
        on_account
            Called after a round's last step with the mixer's account of the run; None without
            noise.
        """
        self._mixing, self._on_account = mixing, on_account

    def open(self, grid: Grid | None) -> None:
        """Check the request and log the address that nodes dial; each round connects anew.

        Raises
        ------
        LinkError
            If no strategy has set the request to the mixer for this run.
        """
        if self._mixing is None:
            raise LinkError(
                "a third party mixes (link-via), and this strategy has nothing that is mixed"
            )
        tls = "with TLS" if self._dialled.tls else "in plaintext"
        log.info("mixer link: nodes dial %s, %s, and so does this run", self._dialled.address, tls)

    def close(self) -> None:
        """Forget the run's request; every round closes its own connection."""
        self._mixing, self._on_account = None, None

    @contextmanager
    def round(
        self, grid: Grid | None, messages: Sequence[Message], observe: Observe | None = None
    ) -> Iterator[Clients]:
        """Have the nodes connect to the mixer; at the end collect their replies.

        Raises
        ------
        LinkError
            If `messages` is empty: a mixer has nothing to mix then.
        """
        if not messages:
            raise LinkError("the round has no messages; with link-via it needs at least one node")
        grid = self.required_grid(grid)
        tickets = [Ticket.from_message(message) for message in messages]
        nodes = {
            ticket.client: message.metadata.dst_node_id
            for ticket, message in zip(tickets, messages, strict=True)
        }
        channel = MixerChannel(self._dialled, self.attach_timeout, self.step_timeout)
        mail: Mail | None = None
        try:
            tokens = dictionary(channel.open(self._opening(tickets, nodes)), "tokens")
            address, tls = self._dialled.address, self._dialled.tls
            ca = self._dialled.ca.decode("ascii", "replace")
            for ticket, message in zip(tickets, messages, strict=True):
                token = str(tokens.get(str(ticket.client)))
                node_ticket = self.dialling(ticket, address, token, tls=tls, ca=ca)
                message.content = with_record(message.content, node_ticket.to_record())
            mail = Mail(grid, messages, self._unread)
            failures = self._attach(grid, mail, nodes, channel)
            clients = self._begin(tickets[0].server_round, nodes, failures, channel, observe)
            yield clients
            channel.ask("close")
            remaining = {client: nodes[client] for client in clients.nodes}
            clients.replies = collect(grid, mail, remaining, clients.fail, self.attach_timeout)
        finally:
            if mail is not None:
                self._unread = mail.unread
                self.warn_of_metrics([*mail.replies.values(), *mail.earlier_replies])
            channel.close()

    def _opening(self, tickets: Sequence[Ticket], nodes: Mapping[int, int]) -> dict[str, Any]:
        ticket = tickets[0]
        return {
            **(self._mixing or {}),
            "ledger": self._ledger(tickets),
            "round": ticket.server_round,
            "seed": ticket.seed,
            "nodes": {str(client): node for client, node in nodes.items()},
            "wire-dtype": self.wire_dtype_down,
            "wire-feedback": self.wire_feedback,
            "step-timeout": self.step_timeout,
            "reattach-timeout": self.reattach_timeout,
        }

    def _ledger(self, tickets: Sequence[Ticket]) -> dict[str, Any] | None:
        ledger = (self._mixing or {}).get("ledger")
        if ledger is None:
            return None
        attempts = {str(ticket.client): ticket.attempt for ticket in tickets}
        earlier = {str(ticket.client): ticket.earlier for ticket in tickets if ticket.earlier}
        return {
            **ledger,
            "run": self.run or self.run_of_strategy,
            "attempts": attempts,
            "earlier": earlier,
        }

    def _begin(
        self,
        server_round: int,
        nodes: Mapping[int, int],
        failures: Mapping[int, str],
        channel: MixerChannel,
        observe: Observe | None,
    ) -> Clients:
        """Return the mixing groups; none if nodes are missing and the mixer refuses the others.

        Raises
        ------
        LinkError
            If it refuses although all nodes are there, or is gone.
        """
        try:
            began = channel.ask("begin")
        except RoundLostError:
            raise
        except LinkError as refusal:
            if not failures:
                raise
            # The strategy knows whether others can be drawn instead of those that are missing.
            reasons = {client: failures.get(client, str(refusal)) for client in nodes}
            return NoGroups(server_round, {}, reasons, observe)
        mixing = self._mixing or {}
        one_class = not mixing.get("multi-label") and mixing.get("ledger") is None
        return MixedGroups(
            server_round,
            began,
            nodes,
            failures,
            observe,
            channel,
            self._on_account,
            one_class=one_class,
        )

    def _attach(
        self, grid: Grid, mail: Mail, nodes: Mapping[int, int], channel: MixerChannel
    ) -> dict[int, str]:
        """Wait until every node is at the mixer, has reported why not, is gone, or is late."""
        failures: dict[int, str] = {}
        gone: dict[str, str] = {}
        absence = Absence(grid, mail, self.attach_timeout)
        while True:
            mail.poll()
            reply = channel.ask("attach", {"gone": gone})
            new = dictionary(reply, "failures")
            failures |= {c: str(new[str(c)]) for c in nodes if str(c) in new}
            named = reply.get("waiting")
            waiting = [c for c in nodes if isinstance(named, list) and c in named]
            if not waiting:
                return failures
            reasons = {str(client): absence.reason(nodes[client]) for client in waiting}
            gone = {client: why for client, why in reasons.items() if why}
            time.sleep(0.0 if gone else POLL_SECONDS)
