"""Rounds that clients began and did not finish are counted by node, until they finish one."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import pytest

from flwr_splitmix.description import Description
from flwr_splitmix.events import Exchange, RoundBegun, RoundDone
from flwr_splitmix.links import LinkError
from flwr_splitmix.mixers import FullShare
from flwr_splitmix.observers import UnfinishedRounds
from flwr_splitmix.runs.begun import Begun


def begin(rounds: UnfinishedRounds, number: int, nodes: Sequence[int] = (0, 1)) -> None:
    described = dict.fromkeys(nodes, Description(num_examples=12))
    rounds.on_begin(RoundBegun(number, {}, False, described, nodes=nodes, steps=number))


PLAN = {"plan": [FullShare().to_wire()]}


def call(
    rounds: UnfinishedRounds, number: int, client: int, method: str, payload: Mapping[str, Any],
    reply: Mapping[str, Any],
) -> None:  # fmt: skip
    rounds.on_exchange(Exchange(number, client, method, "down", payload, 0))
    rounds.on_exchange(Exchange(number, client, method, "up", reply, 0))


def end(
    rounds: UnfinishedRounds, number: int, failures: Sequence[int] = (), idle: Collection[int] = ()
) -> None:
    """End a round in which clients 0, 1 and 3 were asked for a batch, but for the idle ones."""
    for client in (0, 1, 3):
        if client not in idle:
            call(rounds, number, client, "step", PLAN, {"smashed": []})
        call(rounds, number, client, "step", {"plan": None}, {})
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
    assert [rounds.of(client) for client in (0, 1, 7)] == [[], [3, 1], []]
    begin(rounds, 3)  # and it is lost
    assert [rounds.of(client) for client in (0, 1)] == [[3], [6, 3, 2]]
    begin(rounds, 4)
    end(rounds, 4)
    assert [rounds.of(client) for client in (0, 1)] == [[], []]


def chains(steps: Sequence[int]) -> Iterator[list[int]]:
    """Yield all that rounds of at most so many batches may have sent: how often each batch.

    A round begins where the one before has ended, at any batch, or at the first batch.
    """
    for ends in product(*(range(most + 1) for most in steps)):
        for goes_on in product([False, True], repeat=len(steps)):
            counts, place = [0] * (sum(steps) + 1), 0
            for number, on in zip(ends, goes_on, strict=True):
                begin = place if on else 0
                place = begin + number
                for batch in range(begin, place):
                    counts[batch] += 1
            yield counts


@pytest.mark.parametrize("steps", [[3], [2, 2], [1, 3], [3, 1], [2, 2, 2], [1, 2, 3], [1] * 5])
def test_lengths_hold_whatever_rounds_may_have_sent(steps: list[int]) -> None:
    rounds, descriptions = UnfinishedRounds(), {0: Description(num_examples=12)}
    for number, most in enumerate(steps, 1):
        rounds.on_begin(RoundBegun(number, {}, False, descriptions, nodes=[0], steps=most))
        end(rounds, number, failures=[0])
    lengths = [length or 0 for length in rounds.of(0)]
    most_often = [max(each) for each in zip(*chains(steps), strict=True)]
    bounds = [sum(length > batch for length in lengths) for batch in range(len(most_often))]
    assert all(bound >= count for bound, count in zip(bounds, most_often, strict=True))
    if len(set(steps)) == 1:  # and no more: the last batch of each round is reached as often
        last = slice(steps[0] - 1, sum(steps), steps[0])
        assert bounds[last] == most_often[last]


def test_who_is_not_asked_in_a_round_has_not_finished_it() -> None:
    rounds = UnfinishedRounds()
    begin(rounds, 1)
    end(rounds, 1, failures=[1])
    begin(rounds, 2, nodes=[0])
    end(rounds, 2)
    assert rounds.of(1) == [1]


def test_who_attaches_and_is_asked_for_nothing_has_not_finished_it() -> None:
    rounds = UnfinishedRounds()
    rounds.resume([train(1, 0, 1)])
    begin(rounds, 1)
    call(rounds, 1, 0, "step", {"plan": [None]}, {})
    end(rounds, 1, idle=[0])
    assert [rounds.of(0), rounds.of(1)] == [[4], []]
    begin(rounds, 2)
    end(rounds, 2)
    assert rounds.of(0) == []


def test_in_the_u_shape_the_last_call_of_a_round_asks_for_nothing() -> None:
    rounds = UnfinishedRounds()
    rounds.resume([train(1, 0, 1)])
    begin(rounds, 1)
    call(rounds, 1, 0, "encode", {"number": 0, "last": False}, {"hidden": []})
    for client in (0, 1):
        call(rounds, 1, client, "encode", {"number": 1, "last": True}, {})
    end(rounds, 1, idle=[0, 1])
    assert [rounds.of(0), rounds.of(1)] == [[], [4]]


def test_the_counts_outlive_a_process() -> None:
    rounds, other = UnfinishedRounds(), UnfinishedRounds()
    begin(rounds, 1, nodes=(0, 3))
    rounds.resume([Begun(1, [0, 3], evaluates=True)])
    other.restore(json.loads(json.dumps(rounds.state(), allow_nan=False)))
    assert [other.of(client) for client in (0, 1, 3)] == [[1], [], [1]]
    assert [other.of_evaluation(client) for client in (0, 1, 3)] == [1, 0, 1]
    assert other.state() == rounds.state()


def train(number: int, *clients: int, again: Sequence[int] = (), steps: int | None = 4) -> Begun:
    return Begun(number, list(clients), evaluates=False, again=again, steps=steps)


def test_after_an_interruption_a_client_sends_all_again_that_it_has_sent_since_its_state() -> None:
    """However long the rounds are that repeat them: the first charges all."""
    rounds = UnfinishedRounds()
    begin(rounds, 1)
    end(rounds, 1)
    rounds.recorded()
    # Three processes since: client 0 began three rounds, then one, then two.
    rounds.resume(
        [
            *(train(1, 0, 1), train(2, 0), train(3, 0, 1), train(4, 0)),
            *(train(2), train(3, 0)),
            *(train(2, 0, steps=1), train(3, 0)),
        ]
    )
    assert [rounds.of(client) for client in (0, 1, 2)] == [[12, 4, 5], [4], []]
    assert rounds.clients == {0, 1}
    begin(rounds, 5, nodes=[0])
    assert rounds.of(0) == [12, 4, 5, 5]
    end(rounds, 5)
    assert [rounds.of(client) for client in (0, 1)] == [[], [4]]


def test_who_is_lost_may_have_repeated_its_round_or_gone_on_before_an_interruption() -> None:
    rounds = UnfinishedRounds()
    rounds.resume([train(1, 0, 1), train(2, 0, 1, again=[0]), train(3, 0, 1)])
    # The first four batches twice, or twelve once: both are within these.
    assert [rounds.of(0), rounds.of(1)] == [[4, 12], [12]]


def test_who_was_lost_before_the_checkpoint_may_have_gone_on_where_it_was_lost() -> None:
    """It goes on if it is still there; a state of that place is not stored."""
    rounds = UnfinishedRounds()
    begin(rounds, 1)
    end(rounds, 1, failures=[0])
    assert set(rounds.lost) == {0}
    rounds.recorded()
    once = [train(1, 0, 1), train(2, 0, 1, again=[0])]
    rounds.resume(once)
    # The first batch twice and three more, or that and the four that follow it.
    assert [rounds.of(0), rounds.of(1)] == [[5, 1], [4]]
    rounds.resume([*once, train(2, 0, 1, again=[0]), train(3, 0, 1)])
    assert [rounds.of(0), rounds.of(1)] == [[5, 9, 1], [4, 8]]


def test_who_was_lost_in_a_round_of_unknown_length_may_have_gone_on_anywhere() -> None:
    rounds = UnfinishedRounds()
    rounds.restore({**rounds.state(), "lost-rounds": {"0": [1, None]}})
    rounds.resume([train(2, 0, again=[0])])
    assert rounds.of(0) == [None, None]


def test_a_client_that_is_lost_when_it_repeats_a_round_may_send_it_a_third_time() -> None:
    rounds = UnfinishedRounds()
    rounds.resume([train(1, 0, 1)])
    begin(rounds, 1)
    end(rounds, 1, failures=[0])
    assert [rounds.of(0), rounds.of(1)] == [[4, 1], []]
    begin(rounds, 2)
    end(rounds, 2)
    assert rounds.of(0) == []


def test_a_second_interruption_adds_to_the_first() -> None:
    rounds = UnfinishedRounds()
    rounds.resume([train(1, 0), train(2, 0)])
    assert rounds.of(0) == [8]
    begun = [train(1, 0), train(2, 0), train(1, 0), train(2, 0)]
    rounds.recorded()
    begin(rounds, 1, nodes=[0])
    end(rounds, 1)  # the first repeat; its checkpoint is what the third process starts from
    assert rounds.of(0) == []
    rounds.resume(begun)
    assert rounds.of(0) == [4]
    shorter = UnfinishedRounds()
    shorter.restore(rounds.state())
    shorter.resume(begun[:1])  # the file was removed meanwhile: all of the new one counts
    assert shorter.of(0) == [4, 4]


def test_rounds_of_unknown_length_make_an_attempt_of_unknown_length() -> None:
    rounds = UnfinishedRounds()
    rounds.resume([train(1, 0), train(2, 0, steps=None), train(1, 0)])
    assert rounds.of(0) == [None, 4]


@pytest.mark.parametrize("key", sorted(UnfinishedRounds().state()))
def test_a_state_in_another_form_is_refused(key: str) -> None:
    """Two forms that no release writes are not read, and a missing one is not taken for nothing."""
    state = {name: value for name, value in UnfinishedRounds().state().items() if name != key}
    with pytest.raises(KeyError, match=key):
        UnfinishedRounds().restore({**state, "lost": {"0": 2}, "lost-lengths": {"0": [4, 9]}})


def test_an_evaluation_counts_until_states_have_what_was_sent() -> None:
    rounds = UnfinishedRounds()
    rounds.resume([train(1, 0), Begun(1, [0, 1], evaluates=True)])
    assert [rounds.of_evaluation(client) for client in (0, 1, 2)] == [1, 1, 0]
    with rounds.evaluating([0, 1, 2], failures=[1]):
        pass
    assert [rounds.of_evaluation(client) for client in (0, 1, 2)] == [0, 2, 0]
    with pytest.raises(LinkError), rounds.evaluating([0], failures=[]):
        raise LinkError("it is down")
    assert rounds.of_evaluation(0) == 1
