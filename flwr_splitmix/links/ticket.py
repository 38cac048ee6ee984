"""The ticket: what a message tells a client about the round, as a Flower ConfigRecord."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from flwr_splitmix.clients import Order

RECORD = "splitmix"
"""Key of our record in messages and replies."""

VERSION = 2

_READING = threading.Lock()
"""Reading parses a header with `ast`, which CPython 3.11 cannot do in two threads at once."""


@dataclass(frozen=True)
class Ticket:
    """The round as one client sees it.

    Parameters
    ----------
    arrays
        When the message's arrays become the client's lower segment: "always" (they are an
        average) or "initial" (only if the client has none of its own yet).
    returns_arrays
        Whether the client's reply carries its lower segment.
    state_round
        The newest round that the run has finished; what a client kept of later ones is dropped.
    attempt
        How often this round was begun before, and not finished.
    kept_rounds
        Rounds that the server could resume from; the client keeps its states of these.
    run_config
        JSON of the run configuration to use instead of the message's own run's (a resumed run
        goes on with the configuration that it was started with); "" for none.
    link
        Which link: "ray" or "stream"; "" while no link has taken the ticket.
    timeout
        Seconds to wait for the server's end of the link.
    patience
        For the stream the seconds to dial again when a connection that stood is lost.
    host
        For Ray the name of the actor that holds the client.
    address, tls, ca, token
        For the stream what to dial, whether with TLS, whom to trust (PEM; "": the authorities
        that gRPC comes with), and the right to attach.
    wire_dtype
        For the stream what activations and gradients travel as.
    run
        For the stream the run's id, under which the node keeps the client's state.
    """

    client: int
    seed: int
    server_round: int
    num_rounds: int
    arrays: Literal["always", "initial"] = "always"
    returns_arrays: bool = True
    state_round: int = 0
    attempt: int = 0
    kept_rounds: list[int] = field(default_factory=list)
    run_config: str = ""
    link: str = ""
    timeout: float = 120.0
    patience: float = 20.0
    host: str = ""
    address: str = ""
    tls: bool = True
    ca: str = ""
    token: str = field(default="", repr=False)
    wire_dtype: str = "keep"
    run: str = ""

    @property
    def order(self) -> Order:
        """The part that the client itself works with."""
        return Order(
            self.client,
            self.seed,
            self.server_round,
            self.num_rounds,
            self.attempt,
            self.returns_arrays,
        )

    def to_record(self) -> ConfigRecord:
        """Return the ticket as a ConfigRecord."""
        return ConfigRecord({"version": VERSION, **asdict(self)})

    @classmethod
    def from_message(cls, message: Message) -> Ticket:
        """Read the ticket of a message.

        Raises
        ------
        ValueError
            If the message carries none, or one of another version.
        """
        record = message.content.config_records.get(RECORD)
        if record is None:
            raise ValueError(
                "this message carries no split-learning ticket: a SplitClientApp serves the "
                "strategies of flwr_splitmix.strategies only"
            )
        values: dict[str, Any] = dict(record)
        if (version := values.pop("version", None)) != VERSION:
            raise ValueError(f"the server speaks version {version} of tickets, this node {VERSION}")
        return cls(**values)


def with_record(content: RecordDict, record: ConfigRecord) -> RecordDict:
    """Return a copy of a message's content with our record in it."""
    return RecordDict({**dict(content.items()), RECORD: record})


def to_arrays(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Turn named tensors into an ArrayRecord."""
    return ArrayRecord({name: Array(t.detach().cpu().numpy()) for name, t in tensors.items()})


def to_numpy(arrays: ArrayRecord) -> dict[str, np.ndarray]:
    """Turn an ArrayRecord into named arrays; safe in several threads (gh-106905 of CPython)."""
    with _READING:
        return {name: array.numpy() for name, array in arrays.items()}


def to_tensors(arrays: ArrayRecord) -> dict[str, Tensor]:
    """Turn an ArrayRecord into named tensors that own their memory."""
    return {name: torch.tensor(array) for name, array in to_numpy(arrays).items()}


def arrays_of(content: RecordDict) -> dict[str, Tensor] | None:
    """Return the tensors of a content's only ArrayRecord, None if it has none."""
    records = list(content.array_records.values())
    return to_tensors(records[0]) if records else None
