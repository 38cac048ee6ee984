"""A peer's words reach logs, records and errors only as one short printable line.

A node may answer with three million characters, line breaks, terminal escapes and bells. Logged as
they are, they could forge lines of the log.
"""

from __future__ import annotations

from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from flwr_splitmix.clients import ClientError
from flwr_splitmix.description import Description
from flwr_splitmix.errors import ForeseenError
from flwr_splitmix.links import LinkError, StreamLink
from flwr_splitmix.links.arrays import to_arrays
from flwr_splitmix.links.errors import public_sentence, sentence
from flwr_splitmix.links.link import Clients, Outcome
from flwr_splitmix.links.polling import error_sentence, refusal
from flwr_splitmix.links.ticket import RECORD
from flwr_splitmix.strategies import PSL
from flwr_splitmix.testing.toy import Toy
from flwr_splitmix.words import counted, one_line, with_article
from tests.links.fake_grid import FakeGrid, OnFakeGrid, question, toy_app

FORGED = "INFO :      round 1/3 | top-1 1.0000"
EVIL = f"\x1b[2J\x07no data\u202e\r\n{FORGED}\u2028" + "x\n\x1b]0;\x07" * 500_000


def is_fit(text: str) -> bool:
    return 0 < len(text) <= 500 and text.isprintable()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("its data are gone", "its data are gone"),
        ("naïve 数据", "naïve 数据"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("\u202eevil\u2028\x00", r"\u202eevil\u2028\x00"),
        ("\ud800", r"\ud800"),
        ("  ends \n", "ends"),
        ("", ""),
    ],
)
def test_what_is_not_printable_is_escaped(text: str, line: str) -> None:
    assert one_line(text) == line
    assert one_line(line) == line


def test_a_line_is_cut() -> None:
    assert one_line("x" * 3_000_000) == "x" * 500
    assert len(one_line("\x07" * 3_000_000)) == 500
    assert is_fit(one_line(EVIL))


class Failing(Clients):
    def _exchange(self, method: str, payloads: Any) -> dict[int, Outcome]:
        return {client: Outcome(None, EVIL) for client in payloads}


def test_reasons_why_clients_are_left_out_are_lines() -> None:
    described = dict.fromkeys(range(3), Description(num_examples=8))
    clients = Failing(1, described, {2: EVIL}, None)
    clients.fail(1, EVIL)
    clients.call("step", {0: {}})
    assert sorted(clients.failures) == [0, 1, 2]
    assert all(is_fit(reason) for reason in clients.failures.values())


def test_replies_are_read_as_lines() -> None:
    for reason in (EVIL, "frame\n" * 500_000 + "ValueError: \x1b[2J no"):
        line = error_sentence(Message(Error(0, reason), reply_to=question(100)))
        assert is_fit(line)
    assert line == r"ValueError: \x1b[2J no"
    content = RecordDict({RECORD: ConfigRecord({"error": EVIL})})
    assert is_fit(refusal(Message(content, reply_to=question(100))) or "")


@pytest.mark.parametrize("error", [ClientError(EVIL), LinkError(EVIL), ValueError(EVIL)])
def test_errors_are_said_in_a_line(error: Exception) -> None:
    assert is_fit(sentence(error))


def test_a_node_that_shouts_costs_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    toy = Toy(clients=3)
    honest = toy_app(toy)

    def handle(message: Message, context: Context) -> Message:
        if context.node_id == 101 and message.metadata.message_type == "train":
            content = RecordDict({RECORD: ConfigRecord({"error": EVIL})})
            return Message(content, reply_to=message)
        return honest(message, context)

    grid = FakeGrid(handle, 3, **{"state-dir": ""})
    strategy = PSL(
        toy.upper(), device="cpu", steps_per_round=1, min_nodes=2,
        link=OnFakeGrid(StreamLink(address="127.0.0.1:0", attach_timeout=60), grid),
    )  # fmt: skip
    with caplog.at_level("INFO", logger="flwr.splitmix"):
        strategy.start(None, to_arrays(toy.make_clients()[0].weights()), 1)  # type: ignore[arg-type]
    grid.wait()
    messages = [r.getMessage() for r in caplog.records if r.name.startswith("flwr")]
    assert any(m.startswith("round 1 continued without client 1: ") for m in messages)
    assert all(m.isprintable() and len(m) < 600 for m in messages)


@pytest.mark.parametrize(
    ("text", "public"),
    [
        (
            "privacy-policy /home/jane/p.toml cannot be read",
            "privacy-policy .../p.toml cannot be read",
        ),
        ("no file: '/srv/Jane Doe/a b.csv'", "no file: '.../a b.csv'"),
        ("dataset=/srv/a/b.csv: empty", "dataset=.../b.csv: empty"),
        ("~/jane/a.csv and /etc/hosts", ".../a.csv and .../hosts"),
        (r"C:\Users\Jane\a.csv is gone", ".../a.csv is gone"),
        ("round 1/3 of https://host/a/b, folder a/b", "round 1/3 of https://host/a/b, folder a/b"),
    ],
)
@pytest.mark.parametrize("kind", [ClientError, LinkError])
def test_a_server_is_told_no_folders_of_a_node(
    kind: type[ClientError] | type[LinkError], text: str, public: str
) -> None:
    assert public_sentence(kind(text)) == public
    assert sentence(kind(text)) == text


@pytest.mark.parametrize(
    ("number", "noun", "phrase"),
    [
        (1, "client", "1 client"),
        (0, "client", "0 clients"),
        (2, "prefix token", "2 prefix tokens"),
        (2, "patch", "2 patches"),
        (3, "class", "3 classes"),
        (5, "epoch", "5 epochs"),
    ],
)
def test_a_number_has_its_noun(number: int, noun: str, phrase: str) -> None:
    assert counted(number, noun) == phrase


@pytest.mark.parametrize("phrase", ["an Observer", "a list", "a UShapeClient"])
def test_a_noun_has_its_article(phrase: str) -> None:
    assert with_article(phrase.partition(" ")[2]) == phrase


class _WrongRowError(ForeseenError, ValueError):
    """One that no other module knows of."""


class _QuotingError(_WrongRowError):
    public = "a row is wrong"


def test_a_server_is_told_the_message_of_any_error_that_is_foreseen_and_of_no_other() -> None:
    """Errors say it themselves: a list of such classes would lack new ones."""
    assert public_sentence(_WrongRowError("rows need a label")) == "rows need a label"
    assert public_sentence(_QuotingError("row ['Ada', 36] is wrong")) == "a row is wrong"
    assert public_sentence(ValueError("Ada")) == "ValueError; the log of its node says more"
