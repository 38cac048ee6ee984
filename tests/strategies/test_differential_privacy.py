"""Strategies with noise: what their ledgers say, beside what clients truly sent, and budgets."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flwr_splitmix.clients import SplitClient
from flwr_splitmix.clients.client import exchange
from flwr_splitmix.clients.privacy_guard import PrivacyBudget
from flwr_splitmix.events import Exchange, RoundDone, StepDone
from flwr_splitmix.links import LinkError, LocalLink
from flwr_splitmix.mixers import SHARES, NoisyShare, share_from_wire
from flwr_splitmix.observers import Observer
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.privacy.accountant import epsilon_from_rdp, rdp_curve
from flwr_splitmix.runs import Run
from flwr_splitmix.schedule import constant
from flwr_splitmix.strategies import (
    DPSFL,
    DPSL,
    PSL,
    STRATEGIES,
    CutMixSL,
    CutoutSL,
    DPCutMixSFL,
    DPCutMixSL,
    DPMixSFL,
    DPMixSL,
    MixupSL,
    ShuffledCutMixSL,
    ShuffledPSL,
    SplitStrategy,
    VanillaCutMixSL,
)
from flwr_splitmix.testing.resume import InterruptionError, StopIn
from flwr_splitmix.testing.toy import Toy, sgd
from tests.laws.makers import EDGES

TOY = Toy(clients=4, batch_norm=False)
N, D = TOY.patches, TOY.width
DELTA = 1e-5
NOISE = GaussianNoise(sigma_s=20.0, sigma_y=10.0)
E_S, E_Y = 4 * N / (2 * 20.0**2), 2 / (2 * 10.0**2)
"""Slopes of a full release: patches of norm 1, and a one-hot label, replaced."""

Sent = dict[int, list[tuple[np.ndarray, float]]]
"""By client: the records of each batch that left it, and what that cost them."""


def epsilon(rho: float) -> float:
    return float(epsilon_from_rdp(rdp_curve(rho), DELTA)[0]) if rho else 0.0


class Honest(SplitClient):
    """Writes down what truly left it; may fail, or send nonsense, at one place of the run."""

    sent: Sent
    fails_at: tuple[int, int] | None = None
    nonsense_at: tuple[int, int] | None = None

    @exchange
    def step(self, **arguments: Any) -> dict[str, Any]:
        here = (self.order.server_round, arguments["number"])
        if here == self.fails_at:
            raise RuntimeError("the battery is empty")
        reply = super().step(**arguments)
        if "smashed" not in reply:
            return reply
        cost = 0.0
        for told, smashed in zip(arguments["plan"], reply["smashed"], strict=True):
            if told is not None:
                share = share_from_wire(told, SHARES)
                assert isinstance(share, NoisyShare)
                weight = share.lam if share.inner.family == "mixup" else 1.0
                kept = smashed.shape[1]  # noise on the kept patches: nothing else travels
                cost += E_S * weight**2 * kept / N + E_Y * share.lam**2
        self.sent.setdefault(self.order.client, []).append((self.batches.indices.copy(), cost))
        if here == self.nonsense_at:
            return {**reply, "smashed": [t * float("nan") for t in reply["smashed"]]}
        return reply


def truth(sent: Sent, client: int) -> float:
    """Return the epsilon of the record that was sent at the highest cost."""
    paid = np.zeros(100)
    for records, cost in sent.get(client, []):
        np.add.at(paid, records, cost)
    return epsilon(float(paid.max()))


class Seen(Observer):
    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.steps: list[StepDone] = []
        self.rounds: list[RoundDone] = []

    def on_exchange(self, event: Exchange) -> None:
        self.exchanges.append(event)

    def on_step(self, event: StepDone) -> None:
        self.steps.append(event)

    def on_round(self, event: RoundDone) -> None:
        self.rounds.append(event)


@dataclass
class Outcome:
    strategy: SplitStrategy
    clients: Sequence[SplitClient]
    seen: Seen
    sent: Sent = field(default_factory=dict)

    def by_server(self, client: int) -> float:
        assert self.strategy.ledger is not None
        return self.strategy.ledger.ledgers[client].epsilon(DELTA)

    def slopes(self, client: int) -> float:
        assert self.strategy.ledger is not None
        return float(self.strategy.ledger.ledgers[client].spent()[2])

    def by_client(self, client: int) -> float:
        guard = self.clients[client].guard
        assert guard is not None
        return guard.ledger.epsilon(DELTA)

    def said(self, client: int) -> str:
        assert self.strategy.ledger is not None
        return str(self.strategy.ledger.ledgers[client].statement(DELTA))


Prepare = Callable[[Sequence[Any]], None]


def run(
    kind: Any, toy: Toy = TOY, rounds: int = 1, *,
    budgets: Mapping[int, PrivacyBudget] | None = None, prepare: Prepare | None = None,
    watch: Sequence[Observer] = (), sent: Sent | None = None, repeatable: bool = False,
    benchmark: bool = False, **options: Any,
) -> Outcome:  # fmt: skip
    """Train; clients are new ones of each call, and go on from what the run's directory holds."""
    seen, sent = Seen(), {} if sent is None else sent
    options = {"optimizer": sgd(0.1), "schedule": constant, "device": "cpu", **options}
    strategy = kind(toy.upper(), observers=[seen, *watch], **options)
    clients = [
        toy.make_clients(
            sgd(0.1),
            kind=Honest,
            shares=strategy.mixer.shares,
            repeatable_secrets=repeatable,
            privacy=(budgets or {}).get(client),
            benchmark_data=toy.test_data(0) if benchmark else None,
        )[client]
        for client in range(toy.clients)
    ]
    for client in clients:
        client.sent = sent  # type: ignore[attr-defined]
    if prepare is not None:
        prepare(clients)
    outcome = Outcome(strategy, clients, seen, sent)
    strategy.fit(clients, rounds)
    return outcome


noised = partial(partial, noise=NOISE)
"""A strategy's class with the noise of these tests."""


def passes(seen: Seen, client: int, cost: Callable[[NoisyShare, Any], float]) -> float:
    """Add up the worst batch of each pass of 3 batches, what one costs being given."""
    worst: dict[int, float] = {}
    for place, step in enumerate(seen.steps):
        batch = 0.0
        for source in step.mixed.sources:
            ratios = [member.share.lam for member in source.members]
            for member in source.members:
                if member.client == client:
                    assert isinstance(member.share, NoisyShare)
                    batch += cost(member.share, ratios)
        worst[place // 3] = max(worst.get(place // 3, 0.0), batch)
    return sum(worst.values())


# What the ledger of the server says.


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


@pytest.mark.parametrize("trusted", [False, True])
def test_k_times_costs_k_releases_of_each_batch(trusted: bool) -> None:
    outcome = run(
        noised(DPCutMixSL), replace(TOY, clients=6), 2, k=3, k_times=True, trusted_mixer=trusted
    )
    for client in range(6):
        # Clamped labels of a sum are charged as if each were seen.
        expected = passes(outcome.seen, client, lambda s, r: _kept(s) * E_S + _kept(s) ** 2 * E_Y)
        assert outcome.slopes(client) == pytest.approx(expected, rel=1e-12)
    batches = [cost for sent in outcome.sent.values() for _, cost in sent]
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
        full = {place // 3 for place, left in alone if left == client}
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
        seen = run(kind, alpha=None, **options).seen if options else run(kind).seen
        ups = [e for e in seen.exchanges if e.method == "step" and "smashed" in e.payload]
        return sum(t.nbytes for e in ups for t in e.payload["smashed"])

    everything = smashed_bytes(noised(DPSL))
    kept = smashed_bytes(noised(DPCutMixSL), k=2)
    everywhere = partial(DPCutMixSL, noise=replace(NOISE, smashed_noise="all"))
    assert everything == 4 * 3 * 4 * N * D * 8  # clients, steps, batch, numbers of 8 bytes
    assert kept == everything / 2
    assert smashed_bytes(everywhere, k=2) == everything


# What each sees: the truth, the client, the server.

FORMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "DPSL": (DPSL, {}),
    "DPMixSL": (DPMixSL, {"alpha": 1.0}),
    "DPCutMixSL": (DPCutMixSL, {"alpha": 1.0}),
    "k-times": (DPCutMixSL, {"k": 3, "k_times": True}),
    "by sample": (DPCutMixSL, {"mask_per_sample": True, "alpha": 1.0}),
    "vanilla": (VanillaCutMixSL, {}),
    "cutout": (CutoutSL, {}),
    "shuffled": (ShuffledCutMixSL, {}),
}


def check_order(outcome: Outcome, clients: Sequence[int]) -> None:
    """Assert that no ledger says less than what was sent, and the client's never more."""
    for client in clients:
        exact = outcome.by_client(client)
        assert truth(outcome.sent, client) <= exact * (1 + 1e-9), client
        assert exact <= outcome.by_server(client) * (1 + 1e-9), client
        assert math.isfinite(outcome.by_server(client))


@pytest.mark.parametrize("form", ["DPSL", "DPMixSL", "DPCutMixSL", "k-times", "cutout"])
@pytest.mark.parametrize(
    "toy",
    [
        TOY,
        replace(TOY, clients=5, examples=(12, 14, 9, 20, 12)),
        replace(TOY, examples=(12, 3, 12, 12)),
    ],
    ids=["even", "of other sizes", "with replacement"],
)
@pytest.mark.parametrize(
    "options",
    [{}, {"fraction_train": 0.75}, {"steps_per_round": 4}],
    ids=["epochs", "some clients", "parts of epochs"],
)
def test_no_ledger_says_less_than_was_sent_and_the_client_never_more_than_the_server(
    form: str, toy: Toy, options: dict[str, Any]
) -> None:
    kind, own = FORMS[form]
    outcome = run(noised(kind), toy, 4, **own, **options)
    check_order(outcome, range(toy.clients))
    if form != "cutout" and toy is TOY:  # Cutout is charged as if it kept everything
        for client in range(4):
            assert truth(outcome.sent, client) == pytest.approx(outcome.by_client(client))


@pytest.mark.parametrize("form", ["DPSL", "DPCutMixSL", "k-times"])
@pytest.mark.parametrize("place", [(1, 1), (2, 0), (3, 3)])
@pytest.mark.parametrize("nonsense", [False, True], ids=["fails", "sends nonsense"])
def test_a_client_that_fails_and_comes_back_pays_for_all_that_it_sent(
    form: str, place: tuple[int, int], nonsense: bool
) -> None:
    """It goes on in the midst of a pass, which the server cannot know."""

    def break_one(clients: Sequence[Any]) -> None:
        setattr(clients[1], "nonsense_at" if nonsense else "fails_at", place)

    kind, own = FORMS[form]
    toy = replace(TOY, clients=5, examples=20)
    outcome = run(noised(kind), toy, 6, prepare=break_one, steps_per_round=4, **own)
    assert 1 in outcome.seen.rounds[place[0] - 1].failures
    assert 1 not in outcome.seen.rounds[place[0]].failures
    check_order(outcome, range(5))


class Restarts(Observer):
    """After the round in which a client failed, it is built anew from the state that it kept."""

    def __init__(self, build: Callable[[], SplitClient]) -> None:
        self.build = build
        self.strategy: SplitStrategy | None = None

    def on_round(self, event: RoundDone) -> None:
        if 1 in event.failures:
            assert self.strategy is not None
            link = self.strategy.link
            assert isinstance(link, LocalLink)
            link.clients[1] = self.build()
            del link.host.clients[1]


@pytest.mark.parametrize("form", ["DPSL", "DPCutMixSL", "k-times"])
@pytest.mark.parametrize("place", [(1, 2), (2, 0), (2, 3), (4, 1)])
def test_the_server_counts_what_a_client_sends_again_after_it_lost_a_round(
    form: str, place: tuple[int, int], tmp_path: Path
) -> None:
    kind, own = FORMS[form]
    toy, sent = replace(TOY, clients=5, examples=20), Sent()
    options = {"device": "cpu", "optimizer": sgd(0.1), "schedule": constant, "steps_per_round": 4}

    def build() -> Honest:
        client = toy.make_clients(sgd(0.1), kind=Honest, repeatable_secrets=False)[1]
        assert isinstance(client, Honest)
        client.sent = sent
        return client

    restarts = Restarts(build)
    strategy = kind(
        toy.upper(), noise=NOISE, run=_new(tmp_path), observers=[restarts], **own, **options
    )
    restarts.strategy = strategy
    clients = [build() if index == 1 else client for index, client in enumerate(toy.make_clients())]
    clients[1].fails_at = place  # type: ignore[attr-defined]
    strategy.fit(clients, 6)
    # It went back, and drew batches again that it had sent.
    assert strategy.link.clients[1] is not clients[1]
    assert strategy.link.clients[1].batches.drawn == 4 * 5
    again = place[1]
    assert len(sent[1]) == 4 * 5 + again
    # The server tells it, so that its own ledger, which went back too, has it as well.
    outcome = Outcome(strategy, strategy.link.clients, Seen(), sent)
    check_order(outcome, [1])


# Bounds that end, and what no number covers.


def test_what_no_number_covers_stands_beside_it() -> None:
    alone, averaged = run(noised(DPSL)), run(noised(DPSFL))
    for outcome in (alone, averaged):
        assert outcome.said(0).startswith("epsilon ")
        assert "gradients sent to clients" in outcome.said(0)
        assert "what a record did to the lower segment" in outcome.said(0)
    assert "lower segments" not in alone.said(0)
    assert "lower segments sent to be averaged" in averaged.said(0)
    assert alone.by_server(0) == averaged.by_server(0)


def test_the_log_says_once_what_no_number_covers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="flwr.splitmix"):
        outcome = run(noised(DPSFL), rounds=3)
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("privacy of")]
    (line,) = lines
    assert "Not covered: gradients sent to clients; lower segments sent to be averaged" in line
    assert outcome.strategy.ledger is not None
    assert "client 0: epsilon" in line
    assert outcome.strategy.ledger.report().startswith("client 0: epsilon ")


@pytest.mark.parametrize("kind", [DPSL, DPCutMixSL])
def test_evaluation_on_private_tests_ends_every_bound_and_says_why(
    kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="flwr.splitmix"):
        outcome = run(
            noised(kind), replace(TOY, tests=5), 3, evaluation="federated", evaluate_every=2
        )
    # Evaluated after rounds 2 and 3.
    assert [math.isinf(row.epsilons[0]) for row in outcome.seen.rounds] == [False, True, True]
    why = "no epsilon: evaluation without noise on data not declared public"
    assert why in outcome.said(0)
    assert outcome.by_client(0) == math.inf
    assert any(why in record.getMessage() for record in caplog.records)


def test_tests_that_clients_declare_public_cost_nothing() -> None:
    budgets = {client: PrivacyBudget(public_evaluation=client > 0) for client in range(4)}
    outcome = run(noised(DPSL), replace(TOY, tests=5), evaluation="federated", budgets=budgets)
    assert [math.isinf(outcome.by_server(client)) for client in range(4)] == [True] + [False] * 3
    assert [math.isinf(outcome.by_client(client)) for client in range(4)] == [True] + [False] * 3
    check_order(outcome, range(1, 4))


def test_batch_norm_in_the_lower_segment_ends_every_bound_on_both_sides() -> None:
    outcome = run(noised(DPSL), replace(TOY, batch_norm=True))
    assert outcome.by_server(0) == outcome.by_client(0) == math.inf
    assert "no epsilon: BatchNorm in the lower segment" in outcome.said(0)
    with pytest.raises(LinkError, match="what is asked of it has no epsilon: BatchNorm in the low"):
        run(noised(DPSL), replace(TOY, batch_norm=True), budgets=limits(*[1e6] * 4))


def test_evaluation_on_a_public_benchmark_costs_nothing() -> None:
    outcome = run(noised(DPSL), replace(TOY, tests=5), evaluation="benchmark", benchmark=True)
    assert outcome.seen.rounds[0].evaluation is not None
    assert outcome.slopes(0) == pytest.approx(E_S + E_Y)
    check_order(outcome, range(4))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"clip": "none"}, "no clipping of the smashed data"),
        ({"sigma_s": 0.0}, "no noise on the smashed data (sigma_s = 0)"),
        ({"sigma_y": 0.0}, "no noise on the labels (sigma_y = 0)"),
    ],
)
def test_noise_that_bounds_nothing_is_said_in_words(changes: dict[str, Any], why: str) -> None:
    outcome = run(partial(DPCutMixSL, noise=replace(NOISE, **changes)))
    assert outcome.by_server(0) == math.inf
    assert f"no epsilon: {why}" in outcome.said(0)


# Metrics.


def test_metrics_and_progress_show_the_largest_epsilon_and_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    toy, home = replace(TOY, clients=2, examples=(8, 24)), Run.create({}, name="dp", home=tmp_path)
    with caplog.at_level("INFO", logger="flwr.splitmix"):
        outcome = run(noised(DPSL), toy, 2, run=home)
    rows = Run.open(home.id, home=tmp_path).rows
    for done, row in enumerate(rows, start=1):
        each = json.loads(row["epsilon_by_client"])
        # Client 0 has 2 batches of 4 steps, client 1 has 6.
        assert each == pytest.approx(
            {"0": epsilon(2 * done * (E_S + E_Y)), "1": epsilon((1 + (done > 1)) * (E_S + E_Y))}
        )
        assert row["epsilon"] == max(each.values())
    assert rows[-1]["epsilon"] == outcome.by_server(0)
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("round ")]
    for row, line in zip(rows, lines, strict=True):
        assert f"epsilon {row['epsilon']:.4g}" in line


def test_without_noise_there_is_no_epsilon(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="flwr.splitmix"):
        strategy = PSL(TOY.upper(), device="cpu")
        strategy.fit(TOY.make_clients(), 1)
    assert strategy.ledger is None
    assert not strategy.epsilons()
    assert "epsilon" not in strategy.recorder.metrics.rows[0]
    assert "epsilon" not in caplog.text


def test_an_epsilon_that_is_not_finite_survives_the_file(tmp_path: Path) -> None:
    home = Run.create({}, name="dp", home=tmp_path)
    run(partial(DPSL, noise=replace(NOISE, clip="none")), run=home)
    (row,) = Run.open(home.id, home=tmp_path).rows
    assert row["epsilon"] == math.inf
    assert set(json.loads(row["epsilon_by_client"]).values()) == {"inf"}


# Budgets.


def limits(*budgets: float | None) -> dict[int, PrivacyBudget]:
    return {
        client: PrivacyBudget(delta=DELTA, max_epsilon=limit)
        for client, limit in enumerate(budgets)
    }


def test_each_client_stops_at_its_own_budget_and_never_above() -> None:
    budgets = limits(epsilon(1.5 * (E_S + E_Y)), epsilon(3.2 * (E_S + E_Y)), None, None)
    outcome = run(noised(DPSL), rounds=6, budgets=budgets)
    # A pass costs a full release: the first client makes one, the second three.
    assert [len(outcome.sent[client]) for client in range(4)] == [3, 9, 18, 18]
    for client, budget in budgets.items():
        if budget.max_epsilon is not None:
            assert truth(outcome.sent, client) == pytest.approx(outcome.by_client(client))
            assert outcome.by_client(client) <= budget.max_epsilon
    assert len(outcome.seen.rounds) == 6
    # Nobody failed: who has stopped is there and takes part in no step.
    assert all(not event.failures and event.clients_alive == 4 for event in outcome.seen.rounds)


@pytest.mark.parametrize("form", FORMS)
def test_no_client_ever_exceeds_its_budget(form: str) -> None:
    kind, own = FORMS[form]
    toy = replace(TOY, clients=5, examples=(12, 14, 9, 3, 12))
    budgets = limits(*(epsilon(share * (E_S + E_Y)) for share in (0.3, 1.1, 2.0, 2.4, 3.0)))
    outcome = run(noised(kind), toy, 8, budgets=budgets, **own)
    for client, budget in budgets.items():
        assert budget.max_epsilon is not None
        assert truth(outcome.sent, client) <= outcome.by_client(client) * (1 + 1e-9)
        assert outcome.by_client(client) <= budget.max_epsilon
    assert outcome.strategy.over.startswith("the privacy budget of ")
    assert len(outcome.seen.rounds) < 8


def test_a_client_stops_within_a_round_and_its_group_goes_on_without_it() -> None:
    budgets = limits(epsilon(1.2 * (E_S + E_Y)), None, None, None)
    outcome = run(noised(DPSL), budgets=budgets, steps_per_round=6)
    # The first pass fits; of the second no batch does.
    assert [sorted(step.uploads) for step in outcome.seen.steps] == [
        *[[0, 1, 2, 3]] * 3,
        *[[1, 2, 3]] * 3,
    ]
    asked = [e for e in outcome.seen.exchanges if e.client == 0 and e.direction == "down"]
    assert [e.payload["plan"] is not None for e in asked] == [True] * 4 + [False]
    replies = [e.payload for e in outcome.seen.exchanges if (e.client, e.direction) == (0, "up")]
    assert replies[3] == {"budget-spent": True}


@pytest.mark.parametrize("kind", [DPSL, DPCutMixSL, DPCutMixSFL, DPMixSFL])
def test_a_run_ends_early_and_cleanly_when_too_few_are_left(
    kind: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = Run.create({}, name="dp", home=tmp_path)
    budgets = limits(*[epsilon(1.4 * (E_S + E_Y))] * 4)
    toy = replace(TOY, tests=5)
    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        outcome = run(
            noised(kind), toy, 50, budgets=budgets, run=home, evaluation="benchmark",
            evaluate_every=100, checkpoint_every=100, benchmark=True,
        )  # fmt: skip
    last = len(outcome.seen.rounds)
    assert 1 < last < 50
    ends = [r.getMessage() for r in caplog.records if "the run ends" in r.getMessage()]
    assert len(ends) == 1
    assert ends[0].startswith(f"the run ends after round {last}: the privacy budget of each of")
    again = Run.open(home.id, home=tmp_path)
    assert again.status == "finished"
    assert again.summary is not None
    assert again.summary["rounds"] == again.summary["evaluated_round"] == last
    assert again.summary["top1"] is not None
    assert again.checkpoints.rounds() == [last]
    assert [row["round"] for row in again.rows] == list(range(1, last + 1))
    assert all(outcome.by_client(client) <= epsilon(1.4 * (E_S + E_Y)) for client in range(4))


def test_a_server_that_asks_for_too_little_noise_gets_nothing() -> None:
    budgets = limits(*[1.0] * 4)
    outcome = run(partial(DPSL, noise=replace(NOISE, sigma_s=0.1)), rounds=3, budgets=budgets)
    assert outcome.sent == {}
    assert not outcome.seen.steps
    assert [event.steps for event in outcome.seen.rounds] == [1]
    assert outcome.strategy.over == "the privacy budget of each of clients 0, 1, 2, 3 is spent"
    assert {outcome.by_client(client) for client in range(4)} == {0.0}
    replies = [e.payload for e in outcome.seen.exchanges if e.direction == "up"]
    assert all(reply in ({"budget-spent": True}, {}) for reply in replies)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (PSL, "no clipping of the smashed data; no noise on the smashed data"),
        (CutMixSL, "no clipping of the smashed data; no noise"),
        (partial(DPSL, noise=replace(NOISE, clip="none")), "no clipping of the smashed data"),
        (partial(DPSL, noise=replace(NOISE, sigma_y=0.0)), "no noise on the labels"),
    ],
    ids=["PSL", "CutMixSL", "no clipping", "no label noise"],
)
def test_where_nothing_has_an_epsilon_a_client_with_a_budget_says_why(kind: Any, why: str) -> None:
    sentence = f"this client has max_epsilon = 1e.06, and what is asked of it has no epsilon: {why}"
    with pytest.raises(LinkError, match=sentence):
        run(kind, budgets=limits(*[1e6] * 4))


def test_one_client_with_a_budget_does_not_stop_the_others() -> None:
    outcome = run(noised(DPSL), TOY, 2, budgets=limits(1e-3))
    assert [sorted(step.uploads) for step in outcome.seen.steps] == [[1, 2, 3]] * 6
    assert outcome.strategy.over == ""


# Runs that are interrupted and resumed.


def interrupted(
    kind: Any, toy: Toy, home: Run, rounds: int, *, stop: tuple[int, int], sent: Sent,
    prepare: Prepare | None = None, **options: Any,
) -> Outcome:  # fmt: skip
    """Stop a run in the midst of a round, and go on with new clients from what is on disk."""
    with pytest.raises(InterruptionError):
        run(kind, toy, rounds, run=home, sent=sent, watch=[StopIn(*stop)], **options)
    again = Run.open(home.id, home=home.path.parent.parent)
    return run(kind, toy, rounds, run=again, sent=sent, prepare=prepare, **options)


@pytest.mark.parametrize("form", ["DPSL", "DPMixSL", "DPCutMixSL", "k-times"])
def test_a_resumed_run_whose_secrets_repeat_has_the_same_ledgers(form: str, tmp_path: Path) -> None:
    kind, own = FORMS[form]
    through = run(noised(kind), rounds=4, repeatable=True, run=_new(tmp_path), **own)
    resumed = interrupted(
        noised(kind), TOY, _new(tmp_path), 4, stop=(3, 1), sent={}, repeatable=True, **own
    )
    for client in range(4):
        assert resumed.slopes(client) == through.slopes(client)
        assert resumed.by_client(client) == through.by_client(client)
        assert resumed.said(client) == through.said(client)
    assert resumed.strategy.recorder.metrics.rows[-1]["epsilon"] == max(
        through.by_server(client) for client in range(4)
    )


@pytest.mark.parametrize("form", ["DPSL", "DPMixSL", "DPCutMixSL", "k-times"])
@pytest.mark.parametrize(
    ("checkpoint_every", "lost"), [(1, 1), (2, 1), (3, 2)], ids=["newest", "newest of 2", "older"]
)
def test_a_round_that_is_repeated_with_fresh_noise_is_charged_again(
    form: str, checkpoint_every: int, lost: int, tmp_path: Path
) -> None:
    """A process that is killed between checkpoints repeats every round since the newest one."""
    kind, own = FORMS[form]
    home, sent = _new(tmp_path), Sent()
    options = {**own, "steps_per_round": 2, "checkpoint_every": checkpoint_every}
    killed = partial(noised(kind), **options)
    with pytest.raises(InterruptionError):
        run(_Killed.of(killed), TOY, 6, run=home, sent=sent, watch=[StopIn(5, 1)])
    assert home.begun == dict.fromkeys(range(1, 6), 1)
    resumed = run(killed, TOY, 6, run=Run.open(home.id, home=tmp_path), sent=sent)
    begun = Run.open(home.id, home=tmp_path).begun
    assert [begun[number] for number in range(1, 7)] == [1] * (5 - lost) + [2] * lost + [1]
    through = run(noised(kind), rounds=6, run=_new(tmp_path), **options)
    for client in range(4):
        assert resumed.slopes(client) > through.slopes(client)
    check_order(resumed, range(4))


class _Killed:
    """Makes a strategy that has no time to write its newest checkpoint when it is stopped."""

    @staticmethod
    def of(kind: Any) -> Any:
        def make(*arguments: Any, **options: Any) -> SplitStrategy:
            strategy: SplitStrategy = kind(*arguments, **options)
            strategy.recorder.save_unsaved = lambda: None  # type: ignore[method-assign]
            return strategy

        return make


@pytest.mark.parametrize("form", ["DPMixSL", "DPCutMixSL", "k-times"])
@pytest.mark.parametrize("seed", range(3))
def test_a_round_repeated_with_other_clients_has_other_masks_and_is_covered(
    form: str, seed: int, tmp_path: Path
) -> None:
    """Who was there the first time may be missing the second: then groups and ratios differ."""

    def break_one(clients: Sequence[Any]) -> None:
        clients[seed].fails_at = (2, 0)

    kind, own = FORMS[form]
    outcome = interrupted(
        noised(kind), replace(TOY, clients=5), _new(tmp_path), 3, stop=(2, 2), sent={},
        prepare=break_one, seed=seed, **own,
    )  # fmt: skip
    assert seed in outcome.seen.rounds[0].failures
    check_order(outcome, [client for client in range(5) if client != seed])


def test_two_interruptions_of_one_round_are_charged_twice(tmp_path: Path) -> None:
    home, sent = _new(tmp_path), Sent()
    for _ in range(2):
        with pytest.raises(InterruptionError):
            run(noised(DPSL), rounds=2, run=home, sent=sent, watch=[StopIn(2, 2)])
        home = Run.open(home.id, home=tmp_path)
    outcome = run(noised(DPSL), rounds=2, run=home, sent=sent)
    assert home.begun == {1: 1, 2: 3}
    for client in range(4):
        assert outcome.slopes(client) == pytest.approx((1 + 3) * (E_S + E_Y))
        assert truth(sent, client) == pytest.approx(outcome.by_client(client))
    check_order(outcome, range(4))


@pytest.mark.parametrize("form", ["DPSL", "DPCutMixSL"])
def test_budgets_hold_over_an_interruption(form: str, tmp_path: Path) -> None:
    kind, own = FORMS[form]
    budgets = limits(*(epsilon(share * (E_S + E_Y)) for share in (1.1, 2.1, 3.1, 4.1)))
    sent: Sent = {}
    outcome = interrupted(
        noised(kind), TOY, _new(tmp_path), 9, stop=(2, 1), sent=sent, budgets=budgets, **own
    )
    assert outcome.strategy.over
    for client, budget in budgets.items():
        assert budget.max_epsilon is not None
        assert truth(sent, client) <= budget.max_epsilon
        assert outcome.by_client(client) <= budget.max_epsilon
    # Going on with a run that has ended lets nobody send more.
    batches = {client: len(batches) for client, batches in sent.items()}
    home = outcome.strategy.recorder.run
    assert home is not None
    run(noised(kind), TOY, 9, run=Run.open(home.id, home=tmp_path), sent=sent, budgets=budgets)
    assert {client: len(batches) for client, batches in sent.items()} == batches


def _new(home: Path) -> Run:
    return Run.create({}, name="dp", home=home)


# Options.


@pytest.mark.parametrize("kind", [DPSL, DPSFL, DPMixSL, DPMixSFL, DPCutMixSL, DPCutMixSFL])
def test_a_strategy_that_promises_noise_needs_it(kind: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{kind.__name__} needs noise=GaussianNoise\(sigma_s="):
        kind(TOY.upper(), noise=None)


NOISABLE = [
    name for name in STRATEGIES if not name.startswith(("DP", "Input")) and name not in EDGES
]


@pytest.mark.parametrize("name", NOISABLE)
def test_every_mixing_strategy_takes_noise(name: str) -> None:
    outcome = run(noised(STRATEGIES[name]), rounds=2)
    check_order(outcome, range(4))
    assert outcome.by_server(0) > 0
    groups = [group for step in outcome.seen.steps for group in step.plan.passes[0]]
    assert all(isinstance(m.share, NoisyShare) for group in groups for m in group.members)


@pytest.mark.parametrize(
    ("named", "same"),
    [(DPSL, PSL), (DPMixSL, MixupSL), (DPCutMixSL, CutMixSL), (DPSL, ShuffledPSL)],
    ids=lambda kind: kind.__name__,
)
def test_a_strategy_with_a_name_of_its_own_is_the_other_with_noise(named: Any, same: Any) -> None:
    ledgers, losses = [], []
    for kind in (named, same):
        outcome = run(noised(kind), repeatable=True, rounds=2, seed=5)
        ledgers.append([outcome.slopes(client) for client in range(4)])
        losses.append([float(step.result.loss) for step in outcome.seen.steps])
    assert ledgers[0] == ledgers[1]
    assert (losses[0] == losses[1]) == (same is not ShuffledPSL)


@pytest.mark.parametrize("name", [n for n in STRATEGIES if n.startswith("Input") or n in EDGES])
def test_strategies_that_mix_inputs_or_send_no_labels_take_no_noise(name: str) -> None:
    options: dict[str, Any] = {"labels": TOY.labels()} if name in EDGES else {}
    with pytest.raises(ValueError, match="takes no noise: it has no labels to cover, or mixes inp"):
        STRATEGIES[name](TOY.upper(), noise=NOISE, **options)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.5, 2.0, math.nan])
def test_an_impossible_delta_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match=f"delta is {delta}; it must lie strictly between 0 and 1"):
        DPSL(TOY.upper(), noise=NOISE, delta=delta)


def test_neighbours_are_those_of_the_strategy() -> None:
    outcome = run(noised(DPSL), relation="add-remove")
    assert outcome.slopes(0) == pytest.approx(E_S / 4 + E_Y / 2)
    assert "when a record is added or removed" in outcome.said(0)


def test_delta_is_that_of_the_strategy() -> None:
    small, large = (run(noised(DPSL), delta=delta) for delta in (1e-9, 1e-3))
    rows = [outcome.strategy.recorder.metrics.rows[0]["epsilon"] for outcome in (small, large)]
    assert rows[0] > rows[1]
    assert rows[1] == pytest.approx(
        float(epsilon_from_rdp(rdp_curve(E_S + E_Y), 1e-3)[0]), rel=1e-12
    )


def test_soft_labels_outside_0_to_1_are_refused_where_they_are_to_be_clamped() -> None:
    class Loud(Honest):
        @exchange
        def step(self, **arguments: Any) -> dict[str, Any]:
            reply = super().step(**arguments)
            return {**reply, "labels": [soft + 2 for soft in reply["labels"]]} if reply else reply

    for clamp in (True, False):
        seen = Seen()
        noise = replace(NOISE, clamp_labels=clamp)
        strategy = DPSL(TOY.upper(), noise=noise, device="cpu", observers=[seen])
        clients = [*TOY.make_clients()[:3], TOY.make_clients(kind=Loud)[3]]
        clients[3].sent = {}  # type: ignore[attr-defined]
        strategy.fit(clients, 1)
        expected = {3: "uploaded soft labels outside 0..1"} if clamp else {}
        assert seen.rounds[0].failures == expected


def test_noise_is_in_what_the_server_learns_from() -> None:
    """And it is not the same from step to step."""
    seen = run(noised(DPSL), replace(TOY, dropout=0.0), 1, steps_per_round=2).seen
    spreads = [float(step.mixed.smashed.std()) for step in seen.steps]
    assert spreads == pytest.approx([20.0, 20.0], rel=0.2)
    assert not seen.steps[0].mixed.smashed.eq(seen.steps[1].mixed.smashed).any()
    assert all(torch.isfinite(step.mixed.targets).all() for step in seen.steps)
