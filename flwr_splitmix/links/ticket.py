"""What a train or evaluate message tells a client about the round, as a Flower ConfigRecord."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from flwr_splitmix.clients import Order

RECORD = "splitmix"
"""Key of our record in messages and replies."""

VERSION = 1


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
    kept_rounds
        Rounds that the server could resume from; the client keeps its states of these.
    run_config
        JSON of the run configuration to use instead of the message's own run's (a resumed run
        goes on with the configuration that it was started with); "" for none.
    link, host, timeout
        Which link; for Ray the name of the actor that holds the client, and the seconds to wait
        for it.
    """

    client: int
    seed: int
    server_round: int
    num_rounds: int
    arrays: Literal["always", "initial"] = "always"
    returns_arrays: bool = True
    state_round: int = 0
    kept_rounds: list[int] = field(default_factory=list)
    run_config: str = ""
    link: str = ""
    host: str = ""
    timeout: float = 120.0

    @property
    def order(self) -> Order:
        """The part that the client itself works with."""
        return Order(self.client, self.seed, self.server_round, self.num_rounds)

    def with_link(self, link: str, host: str, timeout: float) -> Ticket:
        """Return the same ticket for one link."""
        return replace(self, link=link, host=host, timeout=timeout)

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


def to_tensors(arrays: ArrayRecord) -> dict[str, Tensor]:
    """Turn an ArrayRecord into named tensors that own their memory."""
    return {name: torch.tensor(array.numpy()) for name, array in arrays.items()}


def arrays_of(content: RecordDict) -> dict[str, Tensor] | None:
    """Return the tensors of a content's only ArrayRecord, None if it has none."""
    records = list(content.array_records.values())
    return to_tensors(records[0]) if records else None
