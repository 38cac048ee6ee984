"""The server's ledger for each kind of batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from flwr_splitmix.mixers import NoisyShare
from flwr_splitmix.strategies import (
    DPSL,
    DPCutMixSL,
    DPMixSL,
)
from tests.strategies.noise.honest import (
    E_S,
    E_Y,
    NOISE,
    TOY,
    D,
    N,
    noised,
    passes,
    run,
    truth,
)


@pytest.mark.parametrize(
    ("rounds", "options", "times"),
    [
        (1, {}, 1),
        (3, {}, 3),
        (2, {"epochs_per_round": 2}, 4),
        (4, {"steps_per_round": 2}, 3),  # 8 batches: two passes, and two batches of a third
    ],
    ids=str,
)
@pytest.mark.parametrize("trusted", [False, True])
def test_dp_sl_costs_one_full_release_a_pass(
    rounds: int, options: dict[str, Any], times: int, trusted: bool
) -> None:
    outcome = run(noised(DPSL), rounds=rounds, trusted_mixer=trusted, **options)
    for client in range(4):
        assert outcome.slopes(client) == pytest.approx(times * (E_S + E_Y), rel=1e-12)
        assert outcome.by_client(client) == pytest.approx(outcome.by_server(client))
        assert outcome.by_server(client) == pytest.approx(truth(outcome.sent, client))


ALONE: dict[str, Any] = {"trusted_mixer": False}
SUM: dict[str, Any] = {"trusted_mixer": True}
PLAIN = replace(NOISE, clamp_labels=False)


def _kept(s: NoisyShare) -> float:
    return s.upload_shape((1, N, D))[1] / N


@pytest.mark.parametrize(
    ("kind", "options", "cost"),
    [
        (DPMixSL, ALONE, lambda s, r: s.lam**2 * (E_S + E_Y)),
        (DPMixSL, SUM, lambda s, r: s.lam**2 * (E_S / 2 + E_Y)),
        (DPMixSL, {**SUM, "noise": PLAIN}, lambda s, r: s.lam**2 * (E_S + E_Y) / 2),
        (DPCutMixSL, ALONE, lambda s, r: _kept(s) * E_S + _kept(s) ** 2 * E_Y),
        (DPCutMixSL, SUM, lambda s, r: _kept(s) * E_S + _kept(s) ** 2 * E_Y),
        (
            DPCutMixSL,
            {**SUM, "noise": PLAIN},
            lambda s, r: _kept(s) * E_S + _kept(s) ** 2 * E_Y / 2,
        ),
        (
            DPCutMixSL,
            {**ALONE, "noise": replace(PLAIN, smashed_noise="all", label_noise="before")},
            lambda s, r: s.lam * E_S + (E_Y if s.lam else 0.0),
        ),
        (
            DPCutMixSL,
            {**SUM, "noise": replace(PLAIN, smashed_noise="all", label_noise="before")},
            lambda s, r: s.lam * E_S / 2 + s.lam**2 * E_Y / sum(x**2 for x in r),
        ),
    ],
    ids=[
        "mix alone", "mix sum, clamped", "mix sum", "cutmix alone", "cutmix sum, clamped",
        "cutmix sum", "all, before, alone", "all, before, sum",
    ],
)  # fmt: skip
def test_the_ledger_charges_the_masks_and_ratios_that_were_drawn(
    kind: Any, options: dict[str, Any], cost: Callable[[NoisyShare, Any], float]
) -> None:
    outcome = run(kind, rounds=3, **{"noise": NOISE, "alpha": 1.0, **options})
    assert len({m.share.lam for s in outcome.seen.steps for m in s.mixed.sources[0].members}) > 4
    for client in range(4):
        expected = passes(outcome.seen, client, cost)
        assert outcome.slopes(client) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("fails_at", "hidden"), [(None, (True, True)), (1, (False, True)), (0, (False, None))]
)
def test_of_a_batch_in_parts_each_sum_hides_by_the_noise_of_those_that_came(
    fails_at: int | None, hidden: tuple[bool, bool | None]
) -> None:
    """Not by that of the first part: a partner that drops out after it would hide others, too."""

    def fail(clients: Sequence[Any]) -> None:
        clients[1].fails_at_part = fails_at

    outcome = run(
        DPCutMixSL, replace(TOY, clients=2, dropout=0.0), prepare=fail, min_nodes=1, alpha=None,
        noise=replace(PLAIN, smashed_noise="all"), trusted_mixer=True, steps_per_round=1,
        server_update="mean", micro_batches=2,
    )  # fmt: skip
    alone = E_S / 2 + E_Y / 4
    costs = {True: alone / 2, False: alone, None: 0.0}
    for client, how in enumerate(hidden):
        assert outcome.slopes(client) == pytest.approx(costs[how], rel=1e-12)


@pytest.mark.parametrize("trusted", [False, True])
def test_k_times_costs_k_releases_of_each_batch(trusted: bool) -> None:
    outcome = run(
        noised(DPCutMixSL), replace(TOY, clients=6), 2, k=3, k_times=True, trusted_mixer=trusted
    )
    for client in range(6):
        # Clamped labels of a sum are charged as if each were seen.
        expected = passes(outcome.seen, client, lambda s, r: _kept(s) * E_S + _kept(s) ** 2 * E_Y)
        assert outcome.slopes(client) == pytest.approx(expected, rel=1e-12)
    batches = [cost for releases in outcome.sent.values() for _, cost in releases]
    # Three passes: together up to three full releases, on average one.
    assert max(batches) > E_S + E_Y


def test_a_client_that_is_left_over_sends_everything_with_noise() -> None:
    outcome = run(noised(DPCutMixSL), replace(TOY, clients=3), 2)
    alone = {(i, s.plan.unmixed[0]) for i, s in enumerate(outcome.seen.steps)}
    assert len(alone) == 6
    assert {client for _, client in alone} == {0, 1, 2}
    for client in range(3):
        expected = passes(outcome.seen, client, lambda s, r: _kept(s) * E_S + s.lam**2 * E_Y)
        assert outcome.slopes(client) == pytest.approx(expected, rel=1e-12)
        full = {place // 3 for place, leftover in alone if leftover == client}
        assert outcome.slopes(client) >= len(full) * (E_S + E_Y) - 1e-12
    assert "no epsilon" not in outcome.said(0)


def test_an_upload_that_is_rejected_has_been_paid_for() -> None:
    def poison(clients: Sequence[Any]) -> None:
        clients[1].nonsense_at = (1, 2)

    outcome = run(noised(DPSL), prepare=poison, min_nodes=1, steps_per_round=4)
    assert "NaN or infinite" in outcome.seen.rounds[0].failures[1]
    assert [len(step.uploads) for step in outcome.seen.steps] == [4, 4, 3, 3]
    # Of client 1 three batches were sent, of the others a second pass was begun.
    assert len(outcome.sent[1]) == 3
    assert outcome.slopes(1) == pytest.approx(E_S + E_Y)
    assert outcome.slopes(0) == pytest.approx(2 * (E_S + E_Y))
    assert truth(outcome.sent, 1) <= outcome.by_client(1) == pytest.approx(outcome.by_server(1))


def test_a_batch_drawn_with_replacement_pays_for_the_worst_draw() -> None:
    """The server knows not which records a batch has: one may fill it; the client knows."""
    outcome = run(noised(DPSL), replace(TOY, examples=3), steps_per_round=2)
    for client in range(4):
        assert outcome.slopes(client) == pytest.approx(2 * 4 * (E_S + E_Y))
        assert truth(outcome.sent, client) == pytest.approx(outcome.by_client(client))
        assert outcome.by_client(client) < outcome.by_server(client)


def test_a_client_that_starts_over_within_a_round_pays_again() -> None:
    outcome = run(noised(DPSL), replace(TOY, clients=2, examples=(8, 24)), 1)
    assert outcome.seen.rounds[0].steps == 4  # the mean of 2 and 6 batches
    assert outcome.slopes(0) == pytest.approx(2 * (E_S + E_Y))
    assert outcome.slopes(1) == pytest.approx(E_S + E_Y)
    for client in range(2):
        assert truth(outcome.sent, client) == pytest.approx(outcome.by_client(client))
        assert outcome.by_client(client) == pytest.approx(outcome.by_server(client))


def test_all_positions_cost_the_uplink_of_psl() -> None:
    def smashed_bytes(kind: Any, **options: Any) -> int:
        observer = run(kind, alpha=None, **options).seen if options else run(kind).seen
        ups = [e for e in observer.exchanges if e.method == "step" and "smashed" in e.payload]
        return sum(t.nbytes for e in ups for t in e.payload["smashed"])

    everything = smashed_bytes(noised(DPSL))
    kept_bytes = smashed_bytes(noised(DPCutMixSL), k=2)
    everywhere = partial(DPCutMixSL, noise=replace(NOISE, smashed_noise="all"))
    assert everything == 4 * 3 * 4 * N * D * 8  # clients, steps, batch, numbers of 8 bytes
    assert kept_bytes == everything / 2
    assert smashed_bytes(everywhere, k=2) == everything
