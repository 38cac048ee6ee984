"""The epsilon of runs with noise whose mixer is replaced, or that are interrupted."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix import Run
from flwr_splitmix.events import RoundDone
from flwr_splitmix.links import MixerLink
from flwr_splitmix.links.link import RoundLostError
from flwr_splitmix.links.mixer.channel import MixerChannel
from flwr_splitmix.mixer_process.process import MixerServer
from flwr_splitmix.observers import Observer
from tests.links.mixer.noisy import alone, direct, elsewhere, epsilons, new_run, summary_of, through
from tests.links.mixer.test_lost import In, Replaced

Start = Callable[..., MixerServer]
LinkTo = Callable[..., MixerLink]
KIND = "DPCutMixSL"


class After(Observer):
    """Does something after a round."""

    def __init__(self, server_round: int, do: Callable[[], object]) -> None:
        self.server_round = server_round
        self.do = do

    def on_round(self, event: RoundDone) -> None:
        if event.server_round == self.server_round:
            self.do()


def test_a_mixer_that_is_replaced_between_rounds_leaves_no_number(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mixer, run = Replaced(start_mixer), new_run(tmp_path, "replaced")
    link = link_to(mixer.mixer, run=run.id)
    observers = [After(2, mixer.again)]
    with caplog.at_level(logging.INFO, "flwr.splitmix"):
        mixed = through(link, tmp_path / "nodes", KIND, 4, run=run, observers=observers)
    first, second, *others = epsilons(mixed)
    assert 0 < first < second < math.inf
    assert others == [math.inf, math.inf]
    reason = (
        "no epsilon: the mixer's ledger lacks rounds 1 to 2; a mixer that is started again begins "
        "a new one. Not covered: gradients sent to clients"
    )
    assert reason in caplog.text
    assert reason in summary_of(run)["privacy"]
    assert summary_of(run)["epsilon"] == "inf"


def test_a_round_that_is_lost_with_its_mixer_is_not_known(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    """That includes the last round, which has no row of its own."""
    mixer, run = Replaced(start_mixer), new_run(tmp_path, "lost")
    link = link_to(mixer.mixer, run=run.id, reattach_timeout=2.0)
    observers = [In(2, 1, mixer.again)]
    mixed = through(link, tmp_path / "nodes", KIND, 2, run=run, observers=observers)
    (epsilon,) = epsilons(mixed)
    assert epsilon < math.inf
    assert summary_of(run)["epsilon"] == "inf"
    assert "the mixer's ledger lacks round 2;" in summary_of(run)["privacy"]


def test_a_round_that_is_lost_and_not_its_mixer_is_counted(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    def lose() -> None:
        raise RoundLostError("the line broke")

    # In round 2, the second step's mixtures were the last that were sent.
    lost = through(link_to(start_mixer()), tmp_path, KIND, observers=[In(2, 1, lose)])
    ledger = elsewhere(lost)
    assert ledger.unknown == ()
    first, third = epsilons(lost)
    assert first < third < math.inf
    # The part of the lost round counts, too, so this costs more than the two rounds with a row.
    assert third > epsilons(alone(KIND, 2))[-1]


def openings(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return a list to which the arguments of every opening of a round are added."""
    calls: list[dict[str, Any]] = []
    opened = MixerChannel.open

    def listen(self: MixerChannel, arguments: Any) -> dict[str, Any]:
        calls.append(json.loads(json.dumps(arguments)))
        return opened(self, arguments)

    monkeypatch.setattr(MixerChannel, "open", listen)
    return calls


@pytest.mark.parametrize("replaced", [False, True], ids=["the same mixer", "another one"])
def test_a_resumed_run_pays_for_the_round_that_it_repeats(
    replaced: bool, start_mixer: Start, link_to: LinkTo, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    mixer, run, nodes = Replaced(start_mixer), new_run(tmp_path, "stopped"), tmp_path / "nodes"
    calls = openings(monkeypatch)

    def stop() -> None:
        raise ZeroDivisionError

    link = link_to(mixer.mixer, run=run.id)
    with pytest.raises(ZeroDivisionError):
        through(link, nodes, KIND, run=run, observers=[In(3, 1, stop)])
    if replaced:
        mixer.again()
    again = Run.open(run.id, home=tmp_path)
    link = link_to(mixer.mixer, run=run.id)
    resumed = through(link, nodes, KIND, run=again)
    attempts = [opening["ledger"]["attempts"] for opening in calls]
    once, twice = dict.fromkeys("0123", 0), dict.fromkeys("0123", 1)
    assert [opening["round"] for opening in calls] == [1, 2, 3, 3]
    assert attempts == [once, once, once, twice]
    earlier = [opening["ledger"]["earlier"] for opening in calls]
    assert earlier[:3] == [{}] * 3
    assert earlier[3].keys() == once.keys()
    assert {opening["ledger"]["run"] for opening in calls} == {run.id}
    last = epsilons(resumed)[-1]
    if replaced:
        assert last == math.inf
        assert "the mixer's ledger lacks rounds 1 to 2;" in summary_of(again)["privacy"]
    else:
        assert epsilons(alone(KIND))[-1] < last < math.inf
        # Not below that of a server's own ledger, which forgets the attempt, but is told of it.
        direct_run, nodes = new_run(tmp_path, "own"), tmp_path / "own-nodes"
        with pytest.raises(ZeroDivisionError):
            direct(nodes, KIND, run=direct_run, observers=[In(3, 1, stop)])
        assert epsilons(direct(nodes, KIND, run=Run.open(direct_run.id, home=tmp_path)))[-1] <= last


def test_a_resumed_run_without_a_checkpoint_pays_for_the_first_attempt(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    """Even at a mixer that has not seen that attempt: the ServerApp reports the number."""
    mixer, run, nodes = Replaced(start_mixer), new_run(tmp_path, "first"), tmp_path / "nodes"

    def stop() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        through(
            link_to(mixer.mixer, run=run.id), nodes, KIND, 1, run=run, observers=[In(1, 1, stop)]
        )
    mixer.again()
    link = link_to(mixer.mixer, run=run.id)
    resumed = through(link, nodes, KIND, 1, run=Run.open(run.id, home=tmp_path))
    whole = alone(KIND, 1)
    (epsilon,) = epsilons(resumed)
    assert epsilons(whole)[0] < epsilon < math.inf
