"""Rounds that clients began and did not finish are counted by node, until they finish one."""

from __future__ import annotations

import json
from collections.abc import Sequence

from flwr_splitmix.events import RoundBegun, RoundDone
from flwr_splitmix.observers import UnfinishedRounds


def begin(rounds: UnfinishedRounds, number: int, nodes: Sequence[int] = (0, 1)) -> None:
    rounds.on_begin(RoundBegun(number, 0, False, {}, nodes=nodes))


def end(rounds: UnfinishedRounds, number: int, failures: Sequence[int] = ()) -> None:
    event = RoundDone(
        server_round=number, num_rounds=9, seconds=1.0, steps=1, step_seconds=1.0,
        clients_alive=2, failures=dict.fromkeys(failures, "gone"),
    )  # fmt: skip
    rounds.on_round(event)


def test_rounds_are_counted_until_one_is_finished() -> None:
    rounds = UnfinishedRounds()
    for number in (1, 2):
        begin(rounds, number)
        end(rounds, number, failures=[1])
    assert [rounds.of(client) for client in (0, 1, 7)] == [0, 2, 0]
    begin(rounds, 3)  # and it is lost
    assert [rounds.of(client) for client in (0, 1)] == [1, 3]
    begin(rounds, 4)
    end(rounds, 4)
    assert [rounds.of(client) for client in (0, 1)] == [0, 0]


def test_who_is_not_asked_in_a_round_has_not_finished_it() -> None:
    rounds = UnfinishedRounds()
    begin(rounds, 1)
    end(rounds, 1, failures=[1])
    begin(rounds, 2, nodes=[0])
    end(rounds, 2)
    assert rounds.of(1) == 1


def test_the_counts_outlive_a_process() -> None:
    rounds, other = UnfinishedRounds(), UnfinishedRounds()
    begin(rounds, 1, nodes=(0, 3))
    other.restore(json.loads(json.dumps(rounds.state(), allow_nan=False)))
    assert [other.of(client) for client in (0, 1, 3)] == [1, 0, 1]
