"""The base class of links that nodes dial: wire formats, patience, and their values in a ticket."""

from __future__ import annotations

import secrets
from dataclasses import replace

from flwr_splitmix.links.frames.feedback import check_feedback
from flwr_splitmix.links.frames.wire import check_wire_dtype
from flwr_splitmix.links.in_run import RunLink
from flwr_splitmix.links.ticket import LONGEST_WAIT, Ticket
from flwr_splitmix.values import check_truth


class DialledLink(RunLink):
    """A link to the nodes of a Flower run, which dial an address and exchange tensors there.

    Parameters
    ----------
    wire_dtype, wire_dtype_down, wire_feedback, run, attach_timeout, step_timeout, reattach_timeout
        As in `StreamLink`.

    Raises
    ------
    ValueError
        If `wire_dtype` is not a wire format, or `wire_feedback` is set without rounding, or is
        neither true nor false.
    """

    def __init__(
        self,
        *,
        wire_dtype: str,
        wire_dtype_down: str,
        wire_feedback: bool,
        run: str,
        attach_timeout: float,
        step_timeout: float,
        reattach_timeout: float,
    ) -> None:
        super().__init__(attach_timeout)
        check_truth("wire_feedback", wire_feedback)
        self.wire_dtype = check_wire_dtype(wire_dtype)
        self.wire_dtype_down = check_wire_dtype(wire_dtype_down or wire_dtype)
        self.wire_feedback = wire_feedback
        if wire_feedback:
            check_feedback(self.wire_dtype_down)
        self.run = run
        self._own_key = secrets.token_hex(16)
        self.step_timeout = step_timeout
        self.reattach_timeout = reattach_timeout

    @property
    def rounds_uploads(self) -> bool:
        """Whether `wire_dtype` is a narrower format."""
        return self.wire_dtype != "keep"

    def dialling(self, ticket: Ticket, address: str, token: str, *, tls: bool, ca: str) -> Ticket:
        """Return a ticket with what its node needs to dial.

        Parameters
        ----------
        token
            The node's token for the round.
        ca
            The authority that signed the certificate at the address, as PEM; "" trusts gRPC's
            default authorities.
        """
        return replace(
            ticket,
            link="stream",
            # A node may start dialling late, and gives up early enough to report its reason.
            timeout=min(0.5 * self.attach_timeout, LONGEST_WAIT),
            patience=min(self.reattach_timeout, LONGEST_WAIT),
            address=address,
            tls=tls,
            ca=ca,
            token=token,
            wire_dtype=self.wire_dtype,
            run=self.run or self.run_of_strategy,
            state_key=self._own_key if self.key_of_strategy is None else self.key_of_strategy(),
        )
