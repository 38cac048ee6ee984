"""Tickets: the facts of a round that a message gives a client, as a Flower ConfigRecord."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from torch import Tensor

from flwr_splitmix.clients import Order
from flwr_splitmix.links.arrays import to_tensors
from flwr_splitmix.values import MAX_COUNT

RECORD = "splitmix"
"""Key of our record in messages and replies."""

VERSION = 2

LONGEST_WAIT = 86_400.0
"""Longest time in seconds that a server may have a node dial."""

_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "int | None": (int,),
    "bool": (bool,),
    "float": (int, float),
    "str": (str,),
    "list[int]": (list,),
}


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
        The newest round that the run has finished; the client drops its states of later rounds.
    attempt
        How often the client may have sent what it is asked for before, in rounds or evaluations
        that it did not finish.
    earlier
        Of these rounds, how many batches the client may have sent in each, from the place in its
        data on where it is now. Rounds whose lengths are not known are missing.
    kept_rounds
        Rounds that the server could resume from; the client keeps its states of these.
    run_config
        JSON of the run configuration that replaces the one of the message's run (a resumed run
        continues with the configuration that it was started with); "" for none.
    link
        "ray" or "stream"; "" until one of these links takes the ticket.
    timeout
        Seconds to wait for the server's end of the link, at most `LONGEST_WAIT`.
    patience
        Stream only: seconds to redial after an established connection is lost, at most
        `LONGEST_WAIT`.
    host
        Ray only: name of the actor that holds the client.
    address, tls, ca, token
        Stream only: where to dial, whether with TLS, the authority to trust (PEM; "": gRPC's
        default authorities), and the token that admits the client.
    wire_dtype
        Stream only: wire format of the floating-point tensors that the client sends.
    run
        Stream only: the run's id, under which the node keeps the client's state.
    state_key
        Stream only: the run's secret, by which the node knows whose these states are.
    draw_seed
        In one process only: as in `Order`.
    """

    client: int
    seed: int
    server_round: int
    num_rounds: int
    arrays: Literal["always", "initial"] = "always"
    returns_arrays: bool = True
    state_round: int = 0
    attempt: int = 0
    earlier: list[int] = field(default_factory=list)
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
    state_key: str = field(default="", repr=False)
    draw_seed: int | None = None

    @property
    def order(self) -> Order:
        """The part of the ticket that the client itself uses."""
        return Order(
            client=self.client,
            seed=self.seed,
            server_round=self.server_round,
            num_rounds=self.num_rounds,
            attempt=self.attempt,
            averaged=self.returns_arrays,
            draw_seed=self.draw_seed,
            earlier=tuple(self.earlier),
        )

    @property
    def configuration(self) -> dict[str, str | int | float | bool]:
        """`run_config` as a dictionary.

        Raises
        ------
        ValueError
            If it is not a dictionary of single values by name.
        """
        try:
            values = json.loads(self.run_config or "{}")
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict) or not all(map(_is_plain, values.values())):
            raise ValueError("the server's ticket has a run_config that is not a run configuration")
        return values

    def to_record(self) -> ConfigRecord:
        """Return the ticket as a ConfigRecord without empty values: Flower cannot measure them."""
        values = {name: v for name, v in asdict(self).items() if v not in ("", [], None)}
        return ConfigRecord({"version": VERSION, **values})

    @classmethod
    def from_message(cls, message: Message) -> Ticket:
        """Read the ticket of a message.

        Raises
        ------
        ValueError
            If the message carries no ticket, or one of another version, with other values, with
            values of other types or beyond their range, or with a wait longer than a day. To
            Python 1, 1.0 and True are the same number, but not the same file name.
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
        if values.keys() - _NAMES or _NEEDED - values.keys():
            raise ValueError(
                "the server's ticket has other values than this node knows; install the same "
                "flwr-splitmix on both"
            )
        for one in fields(cls):
            # With `from __future__ import annotations` the annotation is a string.
            kinds = _KINDS.get(str(one.type), (str,))
            if one.name in values and type(values[one.name]) not in kinds:
                raise ValueError(
                    f"the server's ticket has a {one.name} that is not of type {one.type}"
                )
        ticket = cls(**values)
        for name in ("client", "server_round", "num_rounds"):
            if not 0 <= getattr(ticket, name) <= MAX_COUNT:
                raise ValueError(f"the server's ticket has a {name} beyond 0 to {MAX_COUNT}")
        for name in ("timeout", "patience"):
            # NaN fails this comparison, too.
            if not 0 <= (seconds := getattr(ticket, name)) <= LONGEST_WAIT:
                raise ValueError(
                    f"the server's ticket has a {name} of {seconds:g} s; it must be from 0 to "
                    f"{LONGEST_WAIT:g}"
                )
        return ticket


_NAMES = frozenset(one.name for one in fields(Ticket))
_NEEDED = frozenset({"client", "seed", "server_round", "num_rounds"})


def _is_plain(value: object) -> bool:
    return isinstance(value, (str, int, float, bool))


def context_of(ticket: Ticket, context: Context) -> Context:
    """Return a context with the run configuration that a ticket continues with.

    Raises
    ------
    ValueError
        If the ticket's `run_config` is not a run configuration.
    """
    continued = copy.copy(context)
    continued.run_config = {**context.run_config, **ticket.configuration}
    return continued


def with_record(content: RecordDict, record: ConfigRecord) -> RecordDict:
    """Return a copy of a message's content with `record` in it."""
    return RecordDict({**dict(content.items()), RECORD: record})


def release_content(
    arrays: ArrayRecord, metrics: Mapping[str, int | float], warning: str
) -> RecordDict:
    """Return the content of the reply that ends a client's round.

    Parameters
    ----------
    arrays
        Its lower segment; empty if that stays with the client, and then left out.
    warning
        A failure that did not end the round; "" for none.
    """
    content = RecordDict({"metrics": MetricRecord(dict(metrics))})
    if arrays:
        content["arrays"] = arrays
    if warning:
        content[RECORD] = ConfigRecord({"warning": warning})
    return content


def arrays_of(content: RecordDict) -> dict[str, Tensor] | None:
    """Return the tensors of a content's first ArrayRecord; None if it has none."""
    records = list(content.array_records.values())
    return to_tensors(records[0]) if records else None
