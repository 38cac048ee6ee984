"""Faults in runs over the stream: the effect of a failed client, node or round on the others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flwr_splitmix.clients import exchange
from flwr_splitmix.links import LinkError, StreamLink
from flwr_splitmix.observers import Observer
from tests.links.fake_grid import NEVER, FakeGrid, OneAtATime, toy_app
from tests.links.rounds.streamed import TOY, StopIn, grid_of, make, start


def test_a_round_that_raises_frees_its_nodes(tls: dict[str, Any], tmp_path: Path) -> None:
    grid = grid_of("PSL", tmp_path)
    with pytest.raises(ZeroDivisionError):
        start(make("PSL", None, observers=[StopIn(1)]), StreamLink(**tls), grid, 2)
    grid.wait()
    assert "the ServerApp has ended the round" in str(grid.errors())


STEP_SECONDS = 10


class Odd(OneAtATime):
    """A client; client 1 has a fault, and if that is lateness, it waits for the test's signal."""

    fault = ""
    enough: ClassVar[threading.Event]

    def attach(self, order: Any, arrays: Any) -> dict[str, Any]:
        self.index = order.client
        if self.fault == "attach" and self.index == 1:
            raise ValueError("Jane Doe, born 1970")
        return super().attach(order, arrays)

    def run(self, *arguments: Any) -> dict[str, Any]:
        reply = super().run(*arguments)
        if self.fault == "late" and self.index == 1:
            self.enough.wait(120)
        return reply

    @exchange
    def step(self, **arguments: Any) -> dict[str, Any]:
        reply = super().step(**arguments)
        if self.index == 1 and reply:
            fault = self.fault
            if fault == "raise":
                raise ValueError("Jane Doe, born 1970")
            if fault == "nan":
                reply["smashed"][0][0, 0, 0] = float("nan")
            if fault == "shape":
                reply["smashed"][0] = reply["smashed"][0][:, :-1]
            if fault == "dtype":
                reply["smashed"][0] = reply["smashed"][0].float()
            if fault == "odd":
                reply["smashed"] = {1, 2}
        return reply


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("attach", "ValueError; the log of its node says more"),
        ("raise", "ValueError; the log of its node says more"),
        ("late", "did not answer step within 10 s"),
        ("nan", "uploaded NaN or infinite numbers"),
        ("shape", "uploaded (4, 5, 3) of torch.float64, expected (4, 6, 3)"),
        ("dtype", "uploaded (4, 6, 3) of torch.float32, expected (4, 6, 3) of torch.float64"),
        ("odd", "its reply cannot travel: set cannot travel"),
    ],
)
def test_a_faulty_client_costs_its_own_contribution(
    fault: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    enough = threading.Event()
    kind = type("Faulty", (Odd,), {"fault": fault, "enough": enough})
    grid = grid_of("PSL", tmp_path / "nodes", kind)
    strategy = make("PSL", None, evaluation="none", steps_per_round=2)
    link = StreamLink(address="127.0.0.1:0", step_timeout=STEP_SECONDS, reattach_timeout=1)
    caplog.set_level("WARNING", logger="flwr.splitmix")
    start(strategy, link, grid, 1)
    enough.set()
    row = strategy.rows[0]
    assert (row["clients_alive"], row["clients_failed"]) == (3, 1)
    assert f"round 1 continued without client 1: {reason}" in caplog.text
    assert strategy.last_trained_round == {0: 1, 2: 1, 3: 1}
    grid.wait()
    (error,) = grid.errors()
    assert "Jane" not in error
    if fault == "late":  # when it finishes, the server has gone; it may have heard why before
        gone = "could not reach the ServerApp at 127.0.0.1:"
        assert error.startswith((gone, f"left out of the round: {reason}"))
    elif fault != "attach":
        assert error.startswith("left out of the round: ")


def test_below_min_nodes_the_run_ends_with_a_sentence(tmp_path: Path) -> None:
    kind = type("Faulty", (Odd,), {"fault": "raise"})
    grid = grid_of("PSL", tmp_path / "nodes", kind)
    strategy = make("PSL", None, min_nodes=4)
    with pytest.raises(LinkError, match="3 clients are left, min_nodes is 4: client 1: ValueError"):
        start(strategy, StreamLink(address="127.0.0.1:0"), grid, 1)
    grid.wait()


def test_a_client_that_missed_a_round_takes_part_in_the_next(tmp_path: Path) -> None:
    class Sometimes(Odd):
        fault = "late"
        enough = threading.Event()

    grid = grid_of("PSL", tmp_path / "nodes", Sometimes)
    strategy = make("PSL", None, evaluation="none", steps_per_round=1)

    class Recover(Observer):
        def on_round(self, event: Any) -> None:
            Sometimes.fault = ""
            Sometimes.enough.set()

    strategy.observers.append(Recover())
    link = StreamLink(address="127.0.0.1:0", step_timeout=STEP_SECONDS, reattach_timeout=1)
    start(strategy, link, grid, 2)
    assert [row["clients_alive"] for row in strategy.rows] == [3, 4]
    grid.wait()


def test_another_model_is_refused_at_attach_whatever_state_is_kept(tmp_path: Path) -> None:
    nodes, link = tmp_path / "nodes", StreamLink(address="127.0.0.1:0", run="same")
    for width, expected in ((3, 4), (5, 0)):
        other = replace(TOY, width=width)
        grid = FakeGrid(toy_app(other), 4, **{"state-dir": str(nodes)})
        strategy = make("PSL", None, evaluation="none")
        if expected:
            start(strategy, link, grid, 1)
        else:
            with pytest.raises(
                LinkError, match=r"does not fit this client's: it has position \(6, 3\)"
            ):
                start(strategy, link, grid, 2)


def test_another_cut_is_refused_before_the_first_step(tmp_path: Path) -> None:
    class OtherCut(OneAtATime):
        def attach(self, order: Any, arrays: Any) -> dict[str, Any]:
            return {**super().attach(order, arrays), "patches": 12}

    grid = grid_of("PSL", tmp_path, OtherCut)
    with pytest.raises(LinkError, match=r"12 patches.* x 3, the upper segment expects "):
        start(make("PSL", None), StreamLink(address="127.0.0.1:0"), grid, 1)


def test_a_node_that_leaves_the_federation_is_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def vanish(message: Any, context: Any) -> Any:
        if context.node_id == 101 and message.metadata.message_type == "train":
            grid.online.discard(101)
            NEVER.wait()
        return app(message, context)

    app: Callable[..., Any] = toy_app(TOY)
    grid = FakeGrid(vanish, TOY.clients, **{"state-dir": str(tmp_path)})
    strategy = make("PSL", None, evaluation="none")
    caplog.set_level("WARNING", logger="flwr.splitmix")
    start(strategy, StreamLink(address="127.0.0.1:0", attach_timeout=600), grid, 1)
    assert "client 1: is not connected to the SuperLink any more" in caplog.text
    assert strategy.last_trained_round.keys() == {0, 2, 3}


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    first = StreamLink(address="127.0.0.1:0")
    first.open(None)
    address = first.dialled
    message = (
        f"link-address: the stream link cannot listen on {address}: port .* is taken; "
        "choose another"
    )
    with pytest.raises(LinkError, match=message):
        StreamLink(address=address).open(None)
    first.close()
    again = StreamLink(address=address)
    again.open(None)
    again.close()


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("192.0.2.7", r"192.0.2.7 is not an address of this machine; listen on 0.0.0.0:9443"),
        ("nosuch.invalid", r"nosuch.invalid is not a name that this machine can resolve"),
    ],
)
def test_an_address_that_this_machine_does_not_have_is_named(host: str, reason: str) -> None:
    """Not that the port may be taken."""
    with pytest.raises(LinkError, match=f"link-address: .*{reason}"):
        StreamLink(address=f"{host}:9443", insecure=True).open(None)


def test_the_link_works_inside_a_run_only() -> None:
    link = StreamLink(address="127.0.0.1:0")
    with pytest.raises(LinkError, match="inside a Flower run only"):
        link.directory(None, 1)
