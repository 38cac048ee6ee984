"""The server's ledger: its reading of exchanges, and of what clients say of themselves."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from flwr_splitmix.events import Exchange, RoundBegun, RoundDone, StepDone, StepResult
from flwr_splitmix.mixers import (
    FullShare,
    Group,
    Member,
    Mixed,
    NoisyShare,
    PatchShare,
    Plan,
    Share,
    SmashedShape,
    Source,
    WeightedShare,
)
from flwr_splitmix.observers import PrivacyLedger
from flwr_splitmix.privacy import GaussianNoise

DELTA = 1e-5
N, D, L = 8, 4, 3
NOISE = GaussianNoise(sigma_s=20.0, sigma_y=10.0)
E_S, E_Y = 4 * N / (2 * 20.0**2), 2 / (2 * 10.0**2)
FULL = E_S + E_Y
DESCRIBED = {
    "batch-size": 4, "num-examples": 12, "prefix": 0, "patches": N, "width": D, "state-round": 0,
}  # fmt: skip


def noisy(inner: Share, **changes: Any) -> NoisyShare:
    return NoisyShare.around(inner, replace(NOISE, **changes), L)


def mask(kept: int) -> NoisyShare:
    return noisy(PatchShare(lam=kept / N, patches=N, seed=1, start=0, stop=kept))


def cost(kept: int) -> float:
    return E_S * kept / N + E_Y * (kept / N) ** 2


def begin(
    ledger: PrivacyLedger, server_round: int = 1, *, attempt: int = 0, averaged: bool = False,
    clients: Sequence[int] = (0,), described: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    description = {**DESCRIBED, "state-round": server_round - 1, **(described or {})}
    ledger.on_begin(
        RoundBegun(server_round, attempt, averaged, dict.fromkeys(clients, description))
    )


def send(
    ledger: PrivacyLedger, *shares: Share | None, client: int = 0, answers: bool = True
) -> None:
    """Let a client be asked for shares, and answer with as many tensors."""
    plan = [None if share is None else share.to_wire() for share in shares]
    ledger.on_exchange(Exchange(1, client, "step", "down", {"plan": plan}, 0))
    if answers:
        ledger.on_exchange(Exchange(1, client, "step", "up", {"smashed": [], "labels": []}, 0))


def end(ledger: PrivacyLedger, server_round: int, failures: Sequence[int] = ()) -> None:
    why = dict.fromkeys(failures, "no reply")
    ledger.on_round(
        RoundDone(
            server_round=server_round,
            num_rounds=9,
            seconds=1.0,
            steps=1,
            step_seconds=1.0,
            clients_alive=1,
            failures=why,
        )
    )


def spent(ledger: PrivacyLedger, client: int = 0) -> float:
    return float(ledger.ledgers[client].spent()[2])


# What an upload costs, and which pass it belongs to.


def test_a_pass_costs_its_worst_batch_and_passes_add() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger)
    for kept in (2, 5, 3, 1, 4):  # three batches a pass
        send(ledger, mask(kept))
    assert spent(ledger) == pytest.approx(cost(5) + cost(4))
    end(ledger, 1)
    begin(ledger, 2)
    send(ledger, mask(8))  # the third batch of the second pass
    send(ledger, mask(1))
    assert spent(ledger) == pytest.approx(cost(5) + cost(8) + cost(1))


def test_only_what_came_is_charged_and_what_was_asked_moves_the_pass() -> None:
    """A client that refuses has drawn its batch, and sent nothing."""
    ledger = PrivacyLedger(DELTA)
    begin(ledger)
    send(ledger, mask(4), answers=False)
    ledger.on_exchange(Exchange(1, 0, "step", "up", {"budget-spent": True}, 0))
    assert spent(ledger) == 0
    for _ in range(3):
        send(ledger, mask(4))
    assert spent(ledger) == pytest.approx(2 * cost(4))
    # The end of a round asks for nothing.
    ledger.on_exchange(Exchange(1, 0, "step", "down", {"plan": None}, 0))
    ledger.on_exchange(Exchange(1, 0, "step", "up", {}, 0))
    assert spent(ledger) == pytest.approx(2 * cost(4))


def test_passes_of_one_batch_add_up() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger)
    send(ledger, mask(4), None, mask(3))
    send(ledger, mask(6))
    assert spent(ledger) == pytest.approx(cost(4) + cost(3))


def test_less_than_a_batch_is_drawn_anew_each_time_and_may_be_one_record() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger, described={"num-examples": 3})
    send(ledger, mask(4))
    send(ledger, mask(2))
    assert spent(ledger) == pytest.approx(4 * (cost(4) + cost(2)))


def test_a_client_that_lost_a_round_pays_again_and_twice_for_what_counts_as_a_pass() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger, 1)
    send(ledger, mask(4))
    begin(ledger, 2, described={"state-round": 0})  # it did not finish round 1
    for _ in range(3):
        send(ledger, mask(2))
    # Three batches from the midst of a pass hold a record twice.
    # What it lost of its own ledger it charges again, with the worst masks.
    lost = 2 * FULL
    assert spent(ledger) == pytest.approx(cost(4) + 2 * cost(2) + lost)
    end(ledger, 2)
    begin(ledger, 3)
    send(ledger, mask(1))
    assert spent(ledger) == pytest.approx(cost(4) + 2 * cost(2) + lost + 2 * cost(1))


def test_a_client_with_other_data_begins_a_new_pass() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger, 1)
    for _ in range(4):
        send(ledger, mask(4))
    end(ledger, 1)
    begin(
        ledger, 2, described={"num-examples": 400}
    )  # otherwise its pass would have a lower number
    send(ledger, mask(4))
    assert spent(ledger) == pytest.approx(2 * cost(4) + 2 * cost(4))


def test_a_client_that_was_not_drawn_for_a_round_has_lost_nothing() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger, 1, clients=(0, 1))
    send(ledger, mask(4), client=1)
    end(ledger, 1)
    begin(ledger, 2, clients=(0,))
    end(ledger, 2)
    begin(ledger, 3, clients=(0, 1), described={"state-round": 1})
    send(ledger, mask(4), client=1)
    assert spent(ledger, 1) == pytest.approx(cost(4))


def test_rounds_that_were_begun_and_not_finished_are_counted() -> None:
    ledger = PrivacyLedger(DELTA)
    assert ledger.unfinished(0) == 0
    begin(ledger, 1, clients=(0, 1))
    end(ledger, 1, failures=[1])
    begin(ledger, 2, clients=(0,))
    end(ledger, 2)
    begin(ledger, 3, clients=(0, 1), described={"state-round": 0})
    end(ledger, 3, failures=[1])
    assert [ledger.unfinished(client) for client in (0, 1)] == [0, 2]
    begin(ledger, 4, clients=(0, 1), described={"state-round": 0})
    end(ledger, 4)
    assert [ledger.unfinished(client) for client in (0, 1)] == [0, 0]


@pytest.mark.parametrize(("repeats", "times"), [(False, 2), (True, 0)])
def test_an_earlier_attempt_at_a_round_is_charged_in_full(repeats: bool, times: int) -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger, attempt=2, described={"repeatable-secrets": repeats})
    send(ledger, mask(4), None)
    # Two passes each time, as the plan has: the group may have been a full one.
    assert spent(ledger) == pytest.approx(cost(4) + times * 2 * FULL)


@pytest.mark.parametrize(
    "described",
    [
        {"batch-size": 0},
        {"batch-size": -4},
        {"batch-size": "4"},
        {"batch-size": None},
        {"num-examples": True},
        {"patches": 1.5},
        {"width": [4]},
        {"state-round": "1"},
    ],
    ids=str,
)
def test_a_description_that_is_nonsense_costs_the_run_nothing(described: dict[str, Any]) -> None:
    """The strategy leaves such a client out before it asks it for anything."""
    ledger = PrivacyLedger(DELTA)
    begin(ledger, clients=(0, 1))
    end(ledger, 1)
    begin(ledger, 2, clients=(1,), described=described)
    begin(ledger, 2, clients=(0,))
    send(ledger, mask(4), client=0)
    assert spent(ledger, 0) == pytest.approx(cost(4))
    assert spent(ledger, 1) == 0


def test_each_client_has_a_ledger_of_its_own() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger, clients=(3, 1))
    send(ledger, mask(6), client=3)
    send(ledger, mask(2), client=1)
    assert list(ledger.epsilons) == [1, 3]
    assert ledger.epsilons[1] < ledger.epsilons[3]
    assert ledger.report() == f"client 3: {ledger.ledgers[3].statement(DELTA)}"


def test_before_anything_was_sent_nothing_was_released() -> None:
    ledger = PrivacyLedger(DELTA)
    assert ledger.epsilons == {}
    assert ledger.report() == "nothing was released"
    begin(ledger)
    assert ledger.epsilons == {0: 0.0}


def test_neighbours_are_those_of_the_relation() -> None:
    ledger = PrivacyLedger(DELTA, relation="add-remove")
    begin(ledger)
    send(ledger, mask(4))
    assert spent(ledger) == pytest.approx(E_S / 4 * 0.5 + E_Y / 2 * 0.25)


class OwnShare(FullShare):
    name: ClassVar[str] = "own"


def test_shares_of_a_mixer_of_ones_own_are_known_by_name() -> None:
    ledger = PrivacyLedger(DELTA, shares=(OwnShare,))
    begin(ledger)
    send(ledger, noisy(OwnShare()))
    assert spent(ledger) == pytest.approx(FULL)
    stranger = PrivacyLedger(DELTA)
    begin(stranger)
    with pytest.raises(ValueError, match="unknown share 'own'"):
        send(stranger, noisy(OwnShare()))


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_an_impossible_delta_is_one_clear_error(delta: float) -> None:
    with pytest.raises(ValueError, match=f"delta is {delta}; it must lie strictly between 0 and 1"):
        PrivacyLedger(delta)


# Only the sums are seen.


def mixed(server: PrivacyLedger, *groups: Sequence[tuple[int, Share]], came: set[int]) -> None:
    """Let one step of one pass be mixed of the uploads of those that came."""
    plan_groups = tuple(
        Group(tuple(Member(client, share) for client, share in group)) for group in groups
    )
    sources = tuple(
        Source(0, members, 1.0)
        for group in plan_groups
        if (members := tuple(m for m in group.members if m.client in came))
    )
    plan = Plan(SmashedShape(4, N, D, classes=L), (plan_groups,))
    nothing = torch.zeros(())
    mixture = Mixed(nothing, nothing, sources)
    result = StepResult(nothing, nothing)
    server.on_step(StepDone(1, 0, {}, {}, plan=plan, mixed=mixture, result=result))


def test_of_a_trusted_mixer_only_sums_are_charged_each_with_its_group() -> None:
    ledger = PrivacyLedger(DELTA, trusted_mixer=True)
    begin(ledger, clients=(0, 1, 2, 3))
    shares = {
        client: noisy(WeightedShare(lam=lam), clamp_labels=False)
        for client, lam in enumerate((0.25, 0.25, 0.5))
    }
    shares[3] = noisy(FullShare())
    for client, share in shares.items():
        send(ledger, share, client=client)
    assert [spent(ledger, client) for client in range(4)] == [0, 0, 0, 0]
    group = [(client, shares[client]) for client in range(3)]
    mixed(ledger, group, [(3, shares[3])], came={0, 2, 3})
    # Client 1 did not come: its noise hides nobody, and nobody saw its upload.
    expected = [0.25**2 * FULL / 2, 0.0, 0.5**2 * FULL / 2, FULL]
    assert [spent(ledger, client) for client in range(4)] == pytest.approx(expected)


def test_an_untrusted_mixer_has_seen_everything_before_it_mixes() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger, clients=(0, 1))
    share = noisy(WeightedShare(lam=0.5))
    for client in (0, 1):
        send(ledger, share, client=client)
    before = spent(ledger)
    mixed(ledger, [(0, share), (1, share)], came={0, 1})
    assert spent(ledger) == before == pytest.approx(0.25 * FULL)


# What no number covers.


def evaluate(ledger: PrivacyLedger, kind: str, client: int = 0) -> None:
    sent: dict[str, list[int]] = {"smashed": [], "labels": []}
    ledger.on_exchange(Exchange(1, client, "any", "down", {"kind": kind}, 0, "evaluate"))
    ledger.on_exchange(Exchange(1, client, "any", "up", sent, 0, "evaluate"))


def test_what_an_unknown_exchange_sends_ends_the_bound_until_somebody_counts_it() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger, clients=(0, 1, 2))
    ledger.on_exchange(Exchange(1, 0, "statistics", "up", {"mean": torch.ones(3)}, 12))
    ledger.on_exchange(Exchange(1, 1, "prepare", "up", {"mean": torch.ones(3)}, 12, "calibrate"))
    ledger.on_exchange(Exchange(1, 2, "statistics", "up", {"done": True}, 0))
    assert ledger.epsilons == {0: math.inf, 1: math.inf, 2: 0.0}
    assert "uploads that no plan asked for" in ledger.report()


def test_an_evaluation_that_does_not_say_whose_data_it_takes_is_private() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger)
    ledger.on_exchange(Exchange(1, 0, "probe", "down", {}, 0, "evaluate"))
    ledger.on_exchange(Exchange(1, 0, "probe", "up", {}, 0, "evaluate"))
    assert ledger.epsilons == {0: math.inf}


def test_private_tests_end_the_bound_of_who_sent_them_also_if_it_never_trained() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger, clients=(0, 1))
    evaluate(ledger, "benchmark")
    assert ledger.epsilons == {0: 0.0, 1: 0.0}
    evaluate(ledger, "federated")
    evaluate(ledger, "federated", client=7)
    assert ledger.epsilons == {0: math.inf, 1: 0.0, 7: math.inf}
    assert "evaluation without noise on data not declared public" in ledger.report()


def test_tests_that_a_client_declares_public_cost_nothing() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger, described={"public-evaluation": True})
    evaluate(ledger, "federated")
    assert ledger.epsilons == {0: 0.0}
    begin(ledger, 2)
    evaluate(ledger, "federated")
    assert ledger.epsilons == {0: math.inf}


def test_a_client_that_normalises_over_batches_has_no_bound() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger, described={"batch-norm": True})
    assert ledger.report().startswith("client 0: no epsilon: BatchNorm in the lower segment")


def test_gradients_training_and_averaging_are_named_beside_the_number() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger)
    send(ledger, replace(mask(4), inner=replace(mask(4).inner, learns=False), learns=False))
    assert "Not covered" not in ledger.report()
    send(ledger, mask(4))
    for part in ("gradients sent to clients", "what a record did to the lower segment"):
        assert part in ledger.report()
    assert "lower segments sent" not in ledger.report()
    begin(ledger, 2, averaged=True)
    assert "lower segments sent to be averaged" in ledger.report()


def test_a_new_limit_of_the_number_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    ledger = PrivacyLedger(DELTA)

    def said(server_round: int) -> list[str]:
        caplog.clear()
        with caplog.at_level("INFO", logger="flwr.splitmix"):
            end(ledger, server_round)
        return [record.getMessage() for record in caplog.records]

    begin(ledger)
    send(ledger, mask(4))
    assert said(1) == [f"privacy of {ledger.report()}"]
    begin(ledger, 2)
    send(ledger, mask(4))
    assert said(2) == []
    begin(ledger, 3, averaged=True)
    assert said(3) == [f"privacy of {ledger.report()}"]
    assert said(4) == []


# Checkpoints.


@pytest.mark.parametrize("lost", [False, True])
def test_a_restored_ledger_goes_on_where_it_was(lost: bool) -> None:
    through = PrivacyLedger(DELTA)
    ledger = PrivacyLedger(DELTA)
    for server_round, kept in enumerate((4, 7, 2, 5, 6, 1), start=1):
        described = {"state-round": 0} if lost and server_round == 3 else {}
        for each in (through, ledger):
            begin(each, server_round, clients=(0, 5), described=described)
            for client in (0, 5):
                send(each, mask(kept), client=client)
                send(each, mask(8 - kept), client=client)
        state = json.loads(json.dumps(ledger.state(), allow_nan=False))
        ledger = PrivacyLedger(DELTA)
        ledger.restore(state)
    assert ledger.state() == through.state()
    assert ledger.epsilons == through.epsilons


def test_an_unbounded_ledger_is_restored_as_one() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger)
    send(ledger, FullShare())
    evaluate(ledger, "federated")
    other = PrivacyLedger(DELTA)
    other.restore(json.loads(json.dumps(ledger.state(), allow_nan=False)))
    assert other.report() == ledger.report()
    assert other.epsilons == {0: math.inf}
