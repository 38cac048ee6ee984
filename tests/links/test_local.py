"""LocalLink: clients called directly, with the failure rules of every link."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from flwr_splitmix.clients import ClientError, SplitClient, UShapeClient
from flwr_splitmix.events import Exchange
from flwr_splitmix.links import LinkError, LocalLink
from flwr_splitmix.links.arrays import to_arrays, to_tensors
from flwr_splitmix.links.ticket import Ticket
from flwr_splitmix.mixers import FullShare
from flwr_splitmix.server.messages import messages_to, with_tickets
from flwr_splitmix.testing.toy import Toy
from flwr_splitmix.testing.toy_texts import TextToy

TOY = Toy(clients=3)
STEP = {"number": 0, "progress": 0.0, "gradient": None, "plan": [FullShare().to_wire()]}


class Failing(SplitClient):
    """Fails where the test tells it to."""

    fails_in: str = ""

    def attach(self, *arguments: Any) -> dict[str, Any]:
        self._fail("attach")
        return super().attach(*arguments)

    def run(self, *arguments: Any) -> dict[str, Any]:
        self._fail("run")
        return super().run(*arguments)

    def release(self) -> Any:
        self._fail("release")
        return super().release()

    def _fail(self, where: str) -> None:
        if self.fails_in == where:
            raise RuntimeError(f"no power in {where}\nand a second line")


def clients_of(failing: int | None = None, where: str = "") -> list[Failing]:
    clients = list(TOY.make_clients(kind=Failing))
    assert all(isinstance(client, Failing) for client in clients)
    if failing is not None:
        clients[failing].fails_in = where  # type: ignore[attr-defined]
    return clients  # type: ignore[return-value]


def messages(kind: str = "train", **changes: Any) -> list[Message]:
    ticket_of = partial(Ticket, seed=1, server_round=1, num_rounds=2, **changes)
    content = RecordDict({"arrays": arrays(), "config": ConfigRecord()})
    nodes = {index: index + 1 for index in range(TOY.clients)}
    return with_tickets(
        messages_to(list(nodes.values()), content, kind, in_run=False),
        nodes,
        ticket_of,
        lambda client: {},
    )


def arrays() -> ArrayRecord:
    return to_arrays(TOY.lower().state_dict())


def test_replies_carry_arrays_and_metrics_sorted_by_client() -> None:
    link = LocalLink(clients_of())
    with link.round(None, list(reversed(messages()))) as clients:
        assert clients.alive == (0, 1, 2)
        replies = clients.call("step", {2: STEP, 0: STEP, 1: STEP})
        assert list(replies) == [0, 1, 2]
    assert list(clients.replies) == [0, 1, 2]
    for reply in clients.replies.values():
        assert reply.has_content()
        (record,) = reply.content.array_records.values()
        assert to_tensors(record).keys() == TOY.lower().state_dict().keys()
        (metrics,) = reply.content.metric_records.values()
        assert dict(metrics) == {"num-examples": 12, "num-steps": 0}


def test_arrays_stay_with_clients_that_keep_them() -> None:
    with LocalLink(clients_of()).round(None, messages(returns_arrays=False)) as clients:
        pass
    assert [dict(r.content.array_records) for r in clients.replies.values()] == [{}, {}, {}]


def test_an_evaluation_has_no_replies() -> None:
    with LocalLink(clients_of()).round(None, messages("evaluate")) as clients:
        pass
    assert clients.replies == {}


@pytest.mark.parametrize("where", ["attach", "run"])
def test_a_client_that_fails_costs_its_own_contribution(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The text of its error, which may have values of the data, is in the log alone."""
    with LocalLink(clients_of(1, where)).round(None, messages()) as clients:
        replies = clients.call("step", dict.fromkeys(range(3), STEP))
        assert list(replies) == [0, 2]
        assert clients.alive == (0, 2)
        assert clients.failures == {1: "RuntimeError; the log says more"}
        assert list(clients.call("step", dict.fromkeys(range(3), STEP))) == [0, 2]
    assert len(clients.replies) == 2
    step = {"attach": "attach", "run": "step"}[where]
    assert f"client 1 failed in {step}: RuntimeError: no power in {where}" in caplog.text
    assert "Traceback" in caplog.text


def test_a_client_that_cannot_finish_costs_its_own_contribution(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with LocalLink(clients_of(1, "release")).round(None, messages()) as clients:
        clients.call("step", dict.fromkeys(range(3), STEP))
    assert len(clients.replies) == 2
    assert clients.failures == {1: "RuntimeError; the log says more"}
    assert "client 1 failed in release: RuntimeError: no power in release" in caplog.text


def test_exchanges_are_observed_in_both_directions_with_their_bytes() -> None:
    events: list[Exchange] = []
    with LocalLink(clients_of(1, "run")).round(None, messages(), events.append) as clients:
        clients.call("step", {0: STEP, 1: STEP})
    places = [(event.client, event.direction) for event in events]
    assert places == [(0, "down"), (1, "down"), (0, "up")]
    up = events[-1]
    assert up.nbytes == 4 * 6 * 3 * 8 + 4 * 8  # smashed data in float64, labels in int64
    assert events[0].nbytes == 0


def test_time_in_calls_is_counted_for_each_client() -> None:
    with LocalLink(clients_of()).round(None, messages()) as clients:
        clients.call("step", {0: STEP})
    assert clients.seconds[0] > 0
    assert clients.seconds[1] == 0


def test_a_client_that_raises_a_client_error_speaks_for_itself() -> None:
    link = LocalLink(clients_of())
    with link.round(None, messages()) as clients:
        clients.call("release", {0: {}})
    assert clients.failures[0] == "'release' is not an exchange of Failing"
    assert issubclass(ClientError, RuntimeError)


def test_too_few_clients_are_named() -> None:
    with pytest.raises(LinkError, match="there are 3 clients, min_nodes is 4"):
        LocalLink(clients_of()).directory(None, 4)
    assert LocalLink(clients_of()).directory(None, 3) == {0: 1, 1: 2, 2: 3}


def test_states_are_kept_by_round(tmp_path: Path) -> None:
    with LocalLink(clients_of(), tmp_path).round(None, messages()) as clients:
        clients.call("step", dict.fromkeys(range(3), STEP))
    assert sorted(p.parent.name for p in tmp_path.glob("*/round-000001.safetensors")) == [
        "0", "1", "2",
    ]  # fmt: skip


def test_queued_calls_are_made_when_their_replies_are_asked_for() -> None:
    clients = clients_of()
    with LocalLink(clients).round(None, messages()) as reached:
        assert not reached.overlaps
        for number in range(2):
            reached.queue("step", {client: {**STEP, "number": number} for client in range(2)})
        assert clients[0].batches.drawn == 0
        assert reached.answered().keys() == {0, 1}
        assert clients[0].batches.drawn == 1
        clients[1].fails_in = "run"
        assert reached.answered().keys() == {0}
        assert reached.failures.keys() == {1}


def test_clients_that_train_the_same_weights_are_refused() -> None:
    lower, frozen = TOY.lower(), TOY.lower().requires_grad_(False)
    for segment, refused in ((lower, True), (frozen, False)):
        clients = [SplitClient(segment, TOY.data(index), device="cpu") for index in range(2)]
        with (
            pytest.raises(ValueError, match="clients 0 and 1 train the same")
            if refused
            else (nullcontext())
        ):
            LocalLink(clients)
    texts = TextToy()
    ends = texts.head(), texts.tail()
    readers = [UShapeClient(*ends, texts.texts(index, 4), device="cpu") for index in range(2)]
    with pytest.raises(ValueError, match="own segment"):
        LocalLink(readers)


def test_one_client_in_two_places_is_refused() -> None:
    client = SplitClient(TOY.lower().requires_grad_(False), TOY.data(0), device="cpu")
    with pytest.raises(ValueError, match="clients 0 and 1 are one object"):
        LocalLink([client, client])


@pytest.mark.parametrize(
    ("value", "failure"),
    [
        (np.float32(0.5), None),
        (torch.tensor(3), None),
        ("x", "the client's release returned 'mine' as a str; metrics are numbers"),
        (None, "the client's release returned 'mine' as a NoneType; metrics are numbers"),
    ],
)
def test_a_clients_metrics_are_numbers(value: Any, failure: str | None) -> None:
    clients = clients_of()
    release = clients[1].release
    clients[1].release = lambda: (release()[0], {"mine": value})  # type: ignore[method-assign]
    with LocalLink(clients).round(None, messages()) as reached:
        reached.call("step", dict.fromkeys(range(3), STEP))
    assert reached.failures == ({} if failure is None else {1: failure})
    assert len(reached.replies) == (3 if failure is None else 2)


@pytest.mark.parametrize(
    ("wrong", "failure"),
    [
        (lambda reply: [1], "step returns a list of an int; expected a dictionary of tensors and"),
        (lambda reply: None, "step returns None; expected a dictionary"),
        (
            lambda reply: {**reply, "smashed": [reply["smashed"][0].to_sparse()]},
            "step returns a tensor of kind sparse_coo; expected strided tensors with values",
        ),
        (
            lambda reply: {**reply, "labels": {"own": reply["labels"].to("meta")}},
            "step returns a tensor of kind meta; expected strided tensors with values",
        ),
    ],
)
def test_a_reply_that_no_link_could_carry_costs_its_own_contribution(
    wrong: Any, failure: str
) -> None:
    clients = clients_of()
    run = clients[1].run
    clients[1].run = lambda *arguments: wrong(run(*arguments))  # type: ignore[method-assign]
    with LocalLink(clients).round(None, messages()) as reached:
        replies = reached.call("step", dict.fromkeys(range(3), STEP))
    assert replies.keys() == {0, 2}
    assert reached.failures[1].startswith(failure)


def test_weights_that_no_message_could_carry_cost_their_own_contribution(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clients = clients_of()
    release = clients[1].release
    clients[1].release = lambda: ({"w": torch.ones(1).bfloat16()}, release()[1])  # type: ignore[method-assign]
    with LocalLink(clients).round(None, messages(returns_arrays=True)) as reached:
        reached.call("step", dict.fromkeys(range(3), STEP))
    assert reached.failures == {1: "TypeError; the log says more"}
    assert "BFloat16" in caplog.text
    assert len(reached.replies) == 2
