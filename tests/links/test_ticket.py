"""Tickets survive messages."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from flwr_splitmix.links import StreamLink
from flwr_splitmix.links.arrays import to_arrays
from flwr_splitmix.links.ticket import RECORD, Ticket, arrays_of, release_content, with_record
from flwr_splitmix.server.messages import messages_to

TICKET = Ticket(
    client=3,
    seed=2**62,
    server_round=5,
    num_rounds=9,
    arrays="initial",
    returns_arrays=False,
    state_round=4,
    kept_rounds=[3, 4],
    run_config='{"lr": 0.1}',
    link="stream",
    address="[2001:db8::1]:9443",
    ca="-----BEGIN CERTIFICATE-----\n...",
    token="abc.def",
    wire_dtype="int8",
    run="psl-1",
)


def message(content: RecordDict) -> Message:
    return messages_to([7], content, "train", in_run=False)[0]


def test_a_ticket_comes_out_as_it_went_in() -> None:
    content = with_record(RecordDict({"config": ConfigRecord({"a": 1})}), TICKET.to_record())
    assert Ticket.from_message(message(content)) == TICKET
    assert content.config_records["config"]["a"] == 1


def test_a_ticket_without_kept_rounds_survives() -> None:
    ticket = Ticket(client=0, seed=0, server_round=1, num_rounds=1)
    assert Ticket.from_message(message(RecordDict({RECORD: ticket.to_record()}))) == ticket


def test_each_message_gets_a_content_of_its_own() -> None:
    shared = RecordDict({"config": ConfigRecord()})
    first, second = messages_to([1, 2], shared, "train", in_run=False)
    first.content = with_record(first.content, TICKET.to_record())
    assert RECORD not in second.content.config_records
    assert RECORD not in shared.config_records


def test_the_order_is_what_the_client_works_with() -> None:
    order = TICKET.order
    assert (order.client, order.seed, order.server_round, order.num_rounds) == (3, 2**62, 5, 9)


def test_a_message_of_another_strategy_is_refused() -> None:
    with pytest.raises(ValueError, match="carries no split-learning ticket"):
        Ticket.from_message(message(RecordDict({"config": ConfigRecord()})))


def test_a_ticket_of_another_version_is_refused() -> None:
    record = ConfigRecord({**dict(TICKET.to_record()), "version": 99})
    with pytest.raises(ValueError, match="the server speaks version 99 of tickets, this node 2"):
        Ticket.from_message(message(RecordDict({RECORD: record})))


def test_a_ticket_with_other_values_is_refused() -> None:
    values = dict(TICKET.to_record())
    for changed in ({**values, "mood": "good"}, {n: v for n, v in values.items() if n != "seed"}):
        with pytest.raises(ValueError, match="other values than this node knows; install the same"):
            Ticket.from_message(message(RecordDict({RECORD: ConfigRecord(changed)})))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("client", True),
        ("client", 3.0),
        ("attempt", False),
        ("server_round", "5"),
        ("kept_rounds", 3),
        ("earlier", 3),
        ("returns_arrays", 0),
        ("timeout", True),
        ("arrays", 1),
    ],
)
def test_a_value_of_another_type_is_refused(name: str, value: Any) -> None:
    record = ConfigRecord({**dict(TICKET.to_record()), name: value})
    with pytest.raises(ValueError, match=f"the server's ticket has a {name} that is not of type "):
        Ticket.from_message(message(RecordDict({RECORD: record})))


@pytest.mark.parametrize("name", ["timeout", "patience"])
@pytest.mark.parametrize("seconds", [math.inf, math.nan, 1e300, 2**62, 86_401.0, -1.0])
def test_no_server_keeps_a_node_dialling_without_end(name: str, seconds: float) -> None:
    record = ConfigRecord({**dict(TICKET.to_record()), name: seconds})
    with pytest.raises(ValueError, match=rf"a {name} of .+ s; it must be from 0 to 86400"):
        Ticket.from_message(message(RecordDict({RECORD: record})))


def test_nodes_accept_the_tickets_of_a_server_that_waits_for_days() -> None:
    link = StreamLink(address="127.0.0.1:0", attach_timeout=1e6, reattach_timeout=1e6)
    record = link.dialling(TICKET, "127.0.0.1:9", "abc", tls=False, ca="").to_record()
    ticket = Ticket.from_message(message(RecordDict({RECORD: record})))
    assert (ticket.timeout, ticket.patience) == (86_400.0, 86_400.0)


def test_arrays_are_found_whatever_they_are_called() -> None:
    content = RecordDict({"anything": to_arrays({"w": torch.ones(2)})})
    arrays = arrays_of(content)
    assert arrays is not None
    assert arrays["w"].tolist() == [1, 1]
    assert arrays_of(RecordDict({"none": ConfigRecord()})) is None
    assert arrays_of(RecordDict({"empty": ArrayRecord()})) == {}


def test_the_reply_that_ends_a_round_has_what_there_is() -> None:
    """The warning, too."""
    full = release_content(to_arrays({"w": torch.ones(2)}), {"loss": 0.5}, "its state is lost")
    assert dict(full["metrics"]) == {"loss": 0.5}
    assert list(full["arrays"]) == ["w"]
    assert dict(full[RECORD]) == {"warning": "its state is lost"}
    assert list(release_content(ArrayRecord(), {}, "")) == ["metrics"]
