"""A run goes on with as many virtual nodes as it was begun with, and with the same kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from flwr_splitmix.links import LocalLink
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.server.nodes.federation import Federation
from flwr_splitmix.strategies import PSL
from flwr_splitmix.testing.toy import Toy


def begun_with(nodes: int | None) -> Federation:
    federation = Federation()
    federation.check(nodes, "r")
    resumed = Federation()
    resumed.restore(federation.state())
    return resumed


@pytest.mark.parametrize(
    ("nodes_before", "nodes_now", "message"),
    [
        (4, 2, "run r was begun with 4 virtual clients, and here are 2 virtual clients: .*divided "
               r"anew: give --nodes 4 \(splitmix run\) or --federation-config 'num-supernodes=4'"),
        (4, 0, "begun with 4 virtual clients, and here are SuperNodes: resume it where it was"),
        (0, 1, "was begun with SuperNodes, and here are 1 virtual client: resume it where"),
    ],
)  # fmt: skip
def test_other_nodes_are_refused(nodes_before: int, nodes_now: int, message: str) -> None:
    with pytest.raises(RunError, match=message):
        begun_with(nodes_before).check(nodes_now, "r")


@pytest.mark.parametrize(("nodes_before", "nodes_now"), [(4, 4), (0, 0), (None, 3)])
def test_the_same_nodes_go_on(nodes_before: int | None, nodes_now: int) -> None:
    resumed = begun_with(nodes_before)
    resumed.check(nodes_now, "r")
    assert resumed.state() == {"virtual-nodes": nodes_now}


def test_only_the_first_answer_counts() -> None:
    resumed = begun_with(4)
    resumed.check(4, "r")
    resumed.check(3, "r")


def test_clients_of_this_process_are_no_nodes() -> None:
    resumed = begun_with(None)
    resumed.check(None, "r")
    assert resumed.state() == {}


def test_a_strategy_asks_its_link_and_keeps_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy, run = Toy(tests=0), Run.create({}, name="x", home=tmp_path)

    def fit(nodes: int, rounds: int) -> None:
        monkeypatch.setattr(LocalLink, "virtual_nodes", nodes)
        PSL(toy.upper(), device="cpu", run=Run(run.path)).fit(toy.make_clients(), rounds)

    fit(4, 1)
    with pytest.raises(RunError, match="begun with 4 virtual clients, and here are 2 virtual"):
        fit(2, 2)
    fit(4, 2)
    assert len(Run(run.path).rows) == 2
