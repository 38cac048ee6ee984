"""What the arguments of `start` become in a run's messages."""

from __future__ import annotations

import math
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord

from flwr_splitmix.links import LinkError
from flwr_splitmix.server.aggregation import AggregatorError
from flwr_splitmix.server.messages import message_config
from flwr_splitmix.server.rounds import RoundLoop, loop
from flwr_splitmix.strategies import PSL, SFL
from flwr_splitmix.testing.toy import Toy

TOY = Toy(clients=2)


def test_entries_that_no_client_fn_sees_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """`start(train_config=...)` looks as if clients read it, as those of a Flower app do."""
    entries = ConfigRecord({"lr": 0.1, "epochs": 2})
    assert message_config("train_config", entries) is entries
    assert "train_config (epochs, lr) reaches mods and the aggregator, but no" in caplog.text


def test_entries_of_evaluation_have_other_readers(caplog: pytest.LogCaptureFixture) -> None:
    """No method of an aggregator is called for an evaluation."""
    message_config("evaluate_config", ConfigRecord({"a": 1}))
    assert "evaluate_config (a) reaches mods, but no client_fn" in caplog.text


@pytest.mark.parametrize("nothing", [None, ConfigRecord()])
def test_no_entries_no_words(
    nothing: ConfigRecord | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert dict(message_config("train_config", nothing)) == {}
    assert not caplog.text


def begin(strategy: RoundLoop, how: str, arrays: Any) -> None:
    grid: Any = None
    if how == "start":
        strategy.start(grid, arrays, 1)
    else:
        strategy.fit(TOY.make_clients(), 1, initial_arrays=arrays)


@pytest.mark.parametrize("how", ["start", "fit"])
@pytest.mark.parametrize(
    ("arrays", "kind"),
    [
        (TOY.lower().state_dict(), "an OrderedDict"),
        ([], "a list of nothing"),
        (TOY.lower(), "a ToyLower"),
    ],
    ids=["state_dict", "list", "module"],
)
def test_what_is_no_record_of_arrays_is_refused_in_words(how: str, arrays: Any, kind: str) -> None:
    with pytest.raises(TypeError) as error:
        begin(PSL(TOY.upper(), device="cpu"), how, arrays)
    assert str(error.value) == (
        f"initial_arrays is {kind}; expected ArrayRecord(lower.state_dict())"
    )


@pytest.mark.parametrize("how", ["start", "fit"])
def test_an_empty_first_lower_segment_is_not_the_clients_fault(how: str) -> None:
    """The message does not say that the clients have no weights."""
    with pytest.raises(AggregatorError, match="initial_arrays is empty, and a strategy that av"):
        begin(SFL(TOY.upper(), device="cpu"), how, ArrayRecord())


@pytest.mark.parametrize(
    ("options", "waits"),
    [
        ({}, 120.0),
        ({"timeout": 30}, 30.0),
        ({"timeout": 600}, 120.0),
        ({"attach_timeout": 600}, 600),
    ],
)
def test_an_app_says_how_long_its_nodes_may_take(
    options: dict[str, Any], waits: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default link gets it, which gives up after 120 s otherwise."""
    timeouts: list[float] = []

    def link_of(run: object, attach_timeout: float) -> Any:
        timeouts.append(attach_timeout)
        raise LinkError("no node")

    monkeypatch.setattr(loop, "default_link", link_of)
    toy = Toy()
    arrays = ArrayRecord(toy.lower().state_dict())
    grid: Any = None
    with pytest.raises(LinkError, match="no node"):
        PSL(toy.upper(), device="cpu").start(grid, arrays, 1, **options)
    assert timeouts == [waits]


NO_WAITS = [
    ("60", "is '60'; it must be a number"),
    (True, "is True; it must be a number"),
    (0, "is 0; it must be above 0"),
    (-5, "is -5; it must be above 0"),
    (math.nan, "is nan; it must be above 0"),
]


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [("timeout", None, "is None; it must be a number")]
    + [(name, *each) for name in ("timeout", "attach_timeout") for each in NO_WAITS],
)
def test_a_wait_is_a_number_of_seconds(name: str, wrong: Any, message: str) -> None:
    """Text is no TypeError without a name, and NaN does not wait for ever."""
    toy = Toy()
    grid: Any = None
    arrays = ArrayRecord(toy.lower().state_dict())
    with pytest.raises(ValueError, match=f"^{name} {message}"):
        PSL(toy.upper(), device="cpu").start(grid, arrays, 1, **{name: wrong})
