"""Exchanges of whole batches: a step's shares are sent with the last step's gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from flwr_splitmix.links import Clients
from flwr_splitmix.links.link import Patience
from flwr_splitmix.mixers import Plan, Upload
from flwr_splitmix.mixers.checked_mixer import Gradients
from flwr_splitmix.server.intake.split import UploadIntake


def accepted(
    clients: Clients,
    intake: UploadIntake,
    replies: Iterable[tuple[int, Mapping[str, Any]]],
    plan: Plan,
    require: Callable[[Clients], None],
) -> Iterator[tuple[int, Upload]]:
    """Yield the valid uploads among the replies to a plan; other senders leave the round.

    Raises
    ------
    LinkError
        After the last upload, if too few clients are left.
    """
    planned = plan.clients
    for client, reply in replies:
        if client in planned:
            upload = intake.take(clients, client, reply, plan)
            if upload is not None:
                yield client, upload
    require(clients)


class WholeBatches:
    """One exchange per step with the clients of a round, whatever the uploads are used for.

    Parameters
    ----------
    clients
        The clients of the round.
    intake
        Checks their uploads.
    require
        Raises LinkError if too few clients are left.

    Attributes
    ----------
    owed
        Cut-layer gradients to send with the next exchange.
    """

    def __init__(
        self, clients: Clients, intake: UploadIntake, require: Callable[[Clients], None]
    ) -> None:
        self.clients = clients
        self.owed: Gradients = {}
        self._intake = intake
        self._require = require

    def take(
        self,
        number: int,
        progress: float,
        plan: Plan,
        *,
        on_arrival: bool = False,
        patience: Patience | None = None,
    ) -> Iterator[tuple[int, Upload]]:
        """Send owed gradients and each client's share of a plan; return an iterator of uploads.

        Parameters
        ----------
        number
            The step's number in its round, from 0.
        progress
            Global progress in rounds, for the clients' schedules.
        on_arrival
            Whether to yield each upload as soon as it arrives.
        patience
            With `on_arrival`, the wait for slower clients; None waits for all.
        """
        planned = plan.clients
        payloads = {
            client: _call(
                number,
                progress,
                self.owed.get(client),
                plan.for_node(client) if client in planned else None,
                last=client not in planned,
            )
            for client in self.clients.alive
            if client in planned or client in self.owed
        }
        self.owed = {}
        replies: Iterable[tuple[int, Mapping[str, Any]]]
        if on_arrival:
            replies = self.clients.answers("step", payloads, patience=patience)
        else:
            replies = self.clients.call("step", payloads).items()
            self._require(self.clients)
        return accepted(self.clients, self._intake, replies, plan, self._require)

    def finish(self, steps: int) -> None:
        """Deliver the last gradients, after `steps` steps."""
        owed = {client: self.owed.get(client) for client in self.clients.alive}
        payloads = deliveries(steps, self.clients.server_round, owed, last=True)
        self.clients.call("step", payloads)
        self._require(self.clients)


def deliveries(
    number: int,
    progress: float,
    gradients: Mapping[int, Sequence[Tensor | None] | None],
    *,
    last: bool,
) -> dict[int, dict[str, Any]]:
    """Return each client's `step` call that delivers gradients and asks for no upload.

    Parameters
    ----------
    last
        Whether these clients may upload nothing more in the round.
    """
    return {
        client: _call(number, progress, gradient, last=last)
        for client, gradient in gradients.items()
    }


def _call(
    number: int,
    progress: float,
    gradient: Sequence[Tensor | None] | None,
    share: Sequence[Mapping[str, Any] | None] | None = None,
    *,
    last: bool,
) -> dict[str, Any]:
    """Return the arguments of one client's `step`; without a share it uploads nothing."""
    arguments = {"number": number, "progress": progress, "plan": share}
    return {**arguments, "gradient": gradient, "last": last}
