"""The actor that holds virtual clients, and the transfer of tensors and calls to it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from torch import Tensor

from flwr_splitmix.clients import ClientError
from flwr_splitmix.links.errors import local_sentence
from flwr_splitmix.links.host import ClientHost, build, log_failure, logged_reason
from flwr_splitmix.links.link import LinkError, Outcome
from flwr_splitmix.links.ticket import Ticket
from flwr_splitmix.runs.checkpoints import ClientStore

PIECE_BYTES = 1_000_000
"""Bytes of a tensor's pieces: Ray copies any buffer above 1 MiB with six threads, whose start costs
more than the copy."""


class RayHost:
    """The actor: a `ClientHost` whose tensors cross the process boundary as numpy arrays."""

    def __init__(self, threads: int, state_dir: str) -> None:
        torch.set_num_threads(threads)
        self.host = ClientHost(ClientStore(Path(state_dir)) if state_dir else None)

    def ready(self) -> str:
        """Return the id of the Ray node that this host runs on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def attach(
        self,
        ticket: Ticket,
        client_fn: bytes,
        path: list[str],
        context: Context,
        arrays: dict[str, np.ndarray] | None,
    ) -> dict[str, Any]:
        """Begin a round for one client; return its description or {"error": reason}."""
        from ray import cloudpickle

        # client_fn comes from this run's own ClientApp through Ray, which pickles every argument.
        # It is unpickled here by hand, because the app's modules must be importable first.
        sys.path[:0] = [entry for entry in path if entry not in sys.path]
        try:
            return self.host.attach(
                ticket,
                lambda: build(cloudpickle.loads(client_fn), context),
                None if arrays is None else {n: torch.tensor(a) for n, a in arrays.items()},
            )
        except Exception as error:
            return {"error": logged_reason(ticket.client, "attach", error)}

    def call(self, method: str, payloads: dict[int, Any]) -> dict[int, Outcome]:
        """Run one exchange on several clients of this host."""
        return {
            index: Outcome(convert_all(outcome.reply, Tensor, pack), outcome.error, outcome.seconds)
            for index, outcome in self.host.call(
                method, convert_all(payloads, PackedTensor, unpack)
            ).items()
        }

    def keep(self, tickets: list[Ticket]) -> list[str]:
        """Save the states that an evaluation has changed; return warnings."""
        return [warning for ticket in tickets if (warning := self.host.keep_if_changed(ticket))]

    def finish(self, ticket: Ticket) -> tuple[dict[str, np.ndarray], dict[str, int | float], str]:
        """End a client's round and return (arrays, metrics, warning or "")."""
        try:
            arrays, metrics, warning = self.host.finish(ticket)
        except Exception as error:
            log_failure(ticket.client, "release", error)
            raise
        return {name: t.numpy() for name, t in arrays.items()}, metrics, warning


@dataclass(frozen=True)
class PackedTensor:
    """A tensor for Ray's object store: shape, dtype, and its bytes in order, in uint8 pieces."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: list[np.ndarray]


def pack(tensor: Tensor) -> PackedTensor:
    """Convert a tensor to bytes for Ray's object store, since numpy has no bfloat16."""
    flat = tensor.detach().cpu().contiguous().view(tensor.numel()).view(torch.uint8).numpy()
    pieces = np.split(flat, range(PIECE_BYTES, flat.size, PIECE_BYTES))
    return PackedTensor(tuple(tensor.shape), tensor.dtype, pieces)


def unpack(packed: PackedTensor) -> Tensor:
    """Return the tensor, on the CPU, in its own memory."""
    tensor = torch.empty(packed.shape, dtype=packed.dtype)
    if tensor.numel():  # an empty array cannot be viewed as bytes
        joined = tensor.view(tensor.numel()).view(torch.uint8).numpy()
        np.concatenate(packed.pieces, out=joined)
    return tensor


def convert_all(payload: Any, kind: type, convert: Callable[[Any], Any]) -> Any:
    """Convert every value of `kind` in nested lists and dictionaries."""
    if isinstance(payload, kind):
        return convert(payload)
    if isinstance(payload, Mapping):
        return {key: convert_all(value, kind, convert) for key, value in payload.items()}
    if isinstance(payload, (list, tuple)):
        return [convert_all(value, kind, convert) for value in payload]
    return payload


def call_host(ticket: Ticket, method: str, *arguments: Any) -> Any:
    """Call the ticket's host by name from a ClientApp, waiting while Ray restarts it.

    Raises
    ------
    LinkError
        If the host does not answer, or does not come back, within the ticket's timeout.
    ClientError
        If the method raises; the message is safe to send, and the host has logged what its client
        raised.
    """
    import ray

    deadline = time.monotonic() + ticket.timeout
    while True:
        try:
            call = getattr(ray.get_actor(ticket.host), method).remote(ticket, *arguments)
            return ray.get(call, timeout=max(deadline - time.monotonic(), 0.1))
        except ray.exceptions.GetTimeoutError as error:
            raise LinkError(f"its host did not answer within {ticket.timeout:g} s") from error
        except ray.exceptions.RayTaskError as error:
            raise ClientError(local_sentence(error.cause)) from None
        except (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnavailableError) as error:
            if time.monotonic() > deadline:
                raise LinkError("its host died and did not come back") from error
            time.sleep(0.2)
