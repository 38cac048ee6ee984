"""The server's ledger where a mixer is trusted, and where no number holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from flwr_splitmix.events import Exchange, StepDone, StepResult
from flwr_splitmix.mixers import (
    FullShare,
    Group,
    Member,
    Mixed,
    Plan,
    Share,
    SmashedShape,
    Source,
    WeightedShare,
)
from flwr_splitmix.observers import PrivacyLedger
from tests.observers.ledger_exchanges import (
    DELTA,
    FULL,
    D,
    L,
    N,
    begin,
    end,
    evaluate,
    mask,
    noisy,
    send,
    spent,
)


def mixed(
    server: PrivacyLedger,
    *groups: Sequence[tuple[int, Share]],
    came: set[int],
    dtype: torch.dtype = torch.float32,
) -> None:
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
    nothing = torch.zeros((), dtype=dtype)
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


def test_what_came_and_was_not_mixed_is_owed_by_clients_that_go_on() -> None:
    ledger = PrivacyLedger(DELTA, trusted_mixer=True)
    share = noisy(WeightedShare(lam=0.5), clamp_labels=False)
    for server_round in (1, 2):
        begin(ledger, server_round, clients=(0, 1), described={"same-object": server_round > 1})
        for client in (0, 1):
            send(ledger, share, client=client)
        if server_round == 1:
            end(ledger, 1, failures=[0, 1])
    mixed(ledger, [(0, share), (1, share)], came={0, 1})
    # Of the lost round it is not known who was mixed with whom: as if each had sent everything.
    assert spent(ledger) == pytest.approx(FULL + 0.25 * FULL / 2)


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_ledger_that_meets_a_client_charges_what_it_sent_before(goes_on: bool) -> None:
    """That the client charges it no more is no reason: this ledger has never had it."""
    ledger = PrivacyLedger(DELTA)
    begin(ledger, 1, earlier=[1], described={"same-object": goes_on})
    send(ledger, noisy(FullShare()))
    assert spent(ledger) == pytest.approx(2 * FULL)


@pytest.mark.parametrize(
    ("dtype", "summed"),
    [(torch.float64, True), (torch.float32, True), (torch.float16, False), (torch.bfloat16, False)],
)
def test_a_sum_of_uploads_in_16_bits_hides_no_more_than_each_of_them(
    dtype: torch.dtype, summed: bool
) -> None:
    """Clients round their noisy upload to that dtype before anybody adds it to another."""
    share = noisy(WeightedShare(lam=0.5), clamp_labels=False)
    ledgers = PrivacyLedger(DELTA, trusted_mixer=True), PrivacyLedger(DELTA)
    for ledger in ledgers:
        begin(ledger, clients=(0, 1))
        for client in (0, 1):
            send(ledger, share, client=client)
        mixed(ledger, [(0, share), (1, share)], came={0, 1}, dtype=dtype)
    trusted, alone = (spent(ledger, 0) for ledger in ledgers)
    assert trusted == (alone / 2 if summed else alone)


@pytest.mark.parametrize("rounded", [False, True])
def test_a_sum_of_uploads_that_are_rounded_on_the_wire_hides_no_more_either(rounded: bool) -> None:
    share = noisy(WeightedShare(lam=0.5), clamp_labels=False)
    ledgers = PrivacyLedger(DELTA, trusted_mixer=True), PrivacyLedger(DELTA)
    for ledger in ledgers:
        begin(ledger, clients=(0, 1), rounded=rounded)
        for client in (0, 1):
            send(ledger, share, client=client)
        mixed(ledger, [(0, share), (1, share)], came={0, 1})
    trusted, alone = (spent(ledger, 0) for ledger in ledgers)
    assert trusted == (alone if rounded else alone / 2)


def test_an_untrusted_mixer_has_seen_everything_before_it_mixes() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger, clients=(0, 1))
    share = noisy(WeightedShare(lam=0.5))
    for client in (0, 1):
        send(ledger, share, client=client)
    before = spent(ledger)
    mixed(ledger, [(0, share), (1, share)], came={0, 1})
    assert spent(ledger) == before == pytest.approx(0.25 * FULL)


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
    begin(ledger, described={"across-batch": True})
    assert ledger.report().startswith("client 0: no epsilon: BatchNorm, or another layer")


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


def test_the_first_round_without_an_epsilon_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    ledger = PrivacyLedger(DELTA)

    def levels(server_round: int) -> list[str]:
        caplog.clear()
        with caplog.at_level("INFO", logger="flwr.splitmix"):
            end(ledger, server_round)
        return [record.levelname for record in caplog.records]

    begin(ledger)
    send(ledger, mask(4))
    assert levels(1) == ["INFO"]
    begin(ledger, 2)
    evaluate(ledger, "federated")
    assert levels(2) == ["WARNING"]
    begin(ledger, 3)
    evaluate(ledger, "federated")
    assert levels(3) == []
    begin(ledger, 4, averaged=True)
    assert levels(4) == ["INFO"]


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
