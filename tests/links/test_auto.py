"""Choice of the link by what the nodes report."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from flwr_splitmix.links import AutoLink, Link, LinkError, StreamLink, auto
from flwr_splitmix.links.simulated import ray_runs_here
from flwr_splitmix.links.ticket import RECORD
from flwr_splitmix.testing.toy import Toy
from tests.links.fake_grid import FakeGrid, toy_app


class Stub(StreamLink):
    """Stands in for any link that is chosen."""

    def __init__(self) -> None:
        super().__init__(address="127.0.0.1:0", attach_timeout=1)
        self.events: list[str] = []

    def open(self, grid: Any) -> None:
        self.events.append("open")

    def close(self) -> None:
        self.events.append("close")


def says(*simulated: bool) -> FakeGrid:
    def handle(message: Message, context: Context) -> Message:
        index = int(context.node_config["partition-id"])
        record = ConfigRecord({"client": index, "simulated": simulated[index]})
        return Message(RecordDict({RECORD: record}), reply_to=message)

    return FakeGrid(handle, len(simulated))


def refused() -> Link:
    raise AssertionError("this link is not needed")


def test_virtual_nodes_are_reached_over_ray() -> None:
    link, ray = AutoLink(Stub, refused), says(True, True)
    link.open(ray.grid)
    assert link.directory(ray.grid, 2) == {0: 100, 1: 101}
    assert isinstance(link.chosen, Stub)
    assert link.directory(ray.grid, 2) == {0: 100, 1: 101}
    assert len(ray.sent) == 2  # nobody was asked twice
    chosen = link.chosen
    link.close()
    assert chosen.events == ["open", "close"]


def test_real_nodes_are_reached_over_the_stream() -> None:
    link, grid = AutoLink(refused, Stub), FakeGrid(toy_app(Toy(clients=2)), 2)
    link.run_of_strategy = "psl-1"
    link.open(grid.grid)
    assert link.directory(grid.grid, 2) == {0: 100, 1: 101}
    assert link.partitions == {0: 2, 1: 2}
    assert isinstance(link.chosen, Stub)
    assert link.chosen.run_of_strategy == "psl-1"


def test_without_ray_there_is_no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    questions: list[str] = []

    class Asked(Stub):
        def directory(self, grid: Any, min_nodes: int) -> dict[int, int]:
            questions.append("the stream's own question")
            return {}

    grid = says(False)
    link = AutoLink(refused, Asked)
    link.open(grid.grid)
    assert link.directory(grid.grid, 1) == {}
    assert grid.sent == []
    assert len(questions) == 1


@pytest.mark.parametrize("simulated", [False, True])
def test_of_a_mixture_those_are_left_out_that_cannot_be(
    simulated: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One node that claims to be virtual does not end a deployment's run."""
    monkeypatch.setattr(auto, "ray_runs_here", lambda: simulated)
    link = AutoLink(Stub, refused) if simulated else AutoLink(refused, Stub)
    grid = says(True, False, False)
    link.open(grid.grid)
    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        assert link.directory(grid.grid, 1) == ({0: 100} if simulated else {1: 101, 2: 102})
        assert link.directory(grid.grid, 1) == ({0: 100} if simulated else {1: 101, 2: 102})
    messages = [r.getMessage() for r in caplog.records]
    if simulated:
        assert messages == [
            f"node {n} is left out: it reports that it is no virtual one" for n in (101, 102)
        ]
    else:
        assert messages == [
            "node 100 is left out: it reports that it is virtual, and this is not a simulation"
        ]


def test_a_run_that_needs_all_of_a_mixture_ends_and_names_who_was_left_out() -> None:
    link, grid = AutoLink(refused, Stub, attach_timeout=0.2), says(True, False)
    link.open(grid.grid)
    with pytest.raises(LinkError, match="min-nodes is 2: node 100 is left out: it reports that"):
        link.directory(grid.grid, 2)


def test_ray_runs_in_this_process_only_if_somebody_has_started_it() -> None:
    assert not ray_runs_here()


@pytest.mark.parametrize("nodes", [0, 2])
def test_too_few_nodes_are_told_with_the_number_that_the_user_set(nodes: int) -> None:
    link, grid = AutoLink(refused, refused, attach_timeout=0.2), says(*[True] * nodes)
    link.open(grid.grid)
    sentence = f"{nodes} nodes answered within 0.2 s, min-nodes is 3"
    with pytest.raises(LinkError, match=sentence):
        link.directory(grid.grid, 3)


def test_no_link_is_chosen_before_the_nodes_were_asked() -> None:
    link = AutoLink(refused, refused)
    link.open(says(True).grid)
    with pytest.raises(LinkError, match="has not asked its nodes yet"):
        _ = link.chosen
    link.close()


def test_it_needs_a_run() -> None:
    for ask in (
        lambda: AutoLink(refused, refused).open(None),
        lambda: AutoLink(refused, refused).directory(None, 1),
    ):
        with pytest.raises(LinkError, match="inside a Flower run only"):
            ask()
