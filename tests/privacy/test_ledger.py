"""A ledger charges what was sent, says what it cannot, and comes back as it was."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_splitmix.privacy import Exposure, Gaussian, GaussianNoise, Ledger, Release
from flwr_splitmix.privacy.accountant import epsilon_from_rdp, rdp_curve
from flwr_splitmix.privacy.costs import release_costs
from flwr_splitmix.privacy.events import UNBOUNDED, Channel
from flwr_splitmix.privacy.ledger import Charge

DELTA = 1e-5
NOISE = GaussianNoise(sigma_s=30.0, sigma_y=20.0)


SUMMED: dict[str, Any] = {"seen": "sum", "ratios": (1.0,)}


def kept(ratio: float, **changes: Any) -> Release:
    return replace(Release(noise=NOISE, patches=64, width=192), **{"ratio": ratio, **changes})


def cost(ratio: float) -> float:
    return float(release_costs(kept(ratio), "replace").sum())


def epsilon(rho: float) -> float:
    return float(epsilon_from_rdp(rdp_curve(rho), DELTA)[0])


def test_a_pass_costs_its_worst_batch_and_passes_add() -> None:
    ledger = Ledger()
    for epoch, ratios in enumerate([(0.25, 0.5, 0.375), (0.125,), (0.5, 0.75)]):
        for ratio in ratios:
            ledger.charge(kept(ratio), epoch=epoch)
    assert ledger.spent()[2] == pytest.approx(cost(0.5) + cost(0.125) + cost(0.75), rel=1e-12)
    assert ledger.releases == 6
    assert ledger.epsilon(DELTA) == pytest.approx(epsilon(ledger.spent()[2]))


def test_what_is_sent_of_one_batch_adds_up_before_batches_are_compared() -> None:
    ledger = Ledger()
    ledger.charge(kept(0.25), kept(0.5), epoch=0)  # k-times: two releases of one batch
    ledger.charge(kept(0.625), epoch=0)
    assert cost(0.25) + cost(0.5) > cost(0.625)
    assert ledger.spent()[2] == pytest.approx(cost(0.25) + cost(0.5), rel=1e-12)


def test_a_pass_that_starts_over_pays_again_and_an_old_one_is_over() -> None:
    ledger = Ledger()
    ledger.charge(kept(0.5), epoch=0)
    ledger.charge(kept(0.5), epoch=1)
    assert ledger.spent()[2] == pytest.approx(2 * cost(0.5))
    with pytest.raises(ValueError, match="epoch is 0 after 1"):
        ledger.charge(kept(0.5), epoch=0)
    assert ledger.releases == 2


@st.composite
def run(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ratios and epochs (steps,), and records (steps, 3) of 9: disjoint within an epoch."""
    seed, passes = draw(st.integers(0, 2**32)), draw(st.integers(1, 5))
    rng = np.random.default_rng(seed)
    records = np.concatenate([rng.permutation(9).reshape(3, 3) for _ in range(passes)])
    steps = draw(st.integers(1, len(records)))
    ratios = rng.integers(0, 65, size=steps) / 64
    return ratios, np.repeat(np.arange(passes), 3)[:steps], records[:steps]


@given(run())
@settings(max_examples=40, deadline=None)
def test_the_exact_ledger_charges_each_record_for_its_batches(
    steps: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    ratios, epochs, records = steps
    exact, by_pass = Ledger(records=9), Ledger()
    spent = np.zeros(9)
    for ratio, epoch, batch in zip(ratios, epochs, records, strict=True):
        exact.charge(kept(float(ratio)), epoch=int(epoch), records=batch)
        by_pass.charge(kept(float(ratio)), epoch=int(epoch))
        for record in batch:
            spent[record] += cost(float(ratio))
    assert exact.spent()[2] == pytest.approx(spent.max(), rel=1e-12)
    assert exact.spent()[2] <= by_pass.spent()[2] * (1 + 1e-12)
    # At once it is the same, in two pieces too.
    for ledger in (Ledger(records=9), Ledger()):
        half = len(ratios) // 2
        for part in (slice(None, half), slice(half, None)):
            ledger.charge_series(
                kept(1.0), ratios[part], epochs=epochs[part], records=records[part]
            )
        other = exact if ledger.state_dict()["book"]["kind"] == "records" else by_pass
        np.testing.assert_allclose(ledger.spent(), other.spent(), rtol=1e-12)
        assert ledger.releases == other.releases


def test_a_series_of_sums_is_charged_with_each_groups_own_ratios() -> None:
    noise = replace(NOISE, label_noise="before", clamp_labels=False)
    groups = [(0.5, 0.25, 0.25), (0.125, 0.625, 0.25)]
    one_by_one, at_once = Ledger(), Ledger()
    for epoch, group in enumerate(groups):
        release = kept(group[0], noise=noise, seen="sum", ratios=group, times=3)
        one_by_one.charge(release, epoch=epoch)
    at_once.charge_series(
        kept(1.0, noise=noise, times=3, **SUMMED), [0.5, 0.125], epochs=[0, 1], groups=groups
    )
    np.testing.assert_allclose(at_once.spent(), one_by_one.spent(), rtol=1e-12)
    assert at_once.releases == one_by_one.releases == 6


def test_a_record_that_is_drawn_twice_pays_twice() -> None:
    ledger = Ledger(records=4)
    ledger.charge(kept(0.5), records=[1, 1, 3])
    assert ledger.spent()[2] == pytest.approx(2 * cost(0.5))


def test_a_total_is_that_of_one_record() -> None:
    smashed_only = kept(1.0, noise=replace(NOISE, sigma_y=1e9))
    labels_only = kept(1.0, noise=replace(NOISE, sigma_s=1e9))
    for ledger in (Ledger(), Ledger(records=2)):
        ledger.charge(smashed_only, records=[0])
        ledger.charge(labels_only, records=[1])
        smashed, labels, total = ledger.spent()
        assert total == pytest.approx(max(smashed, labels))


def test_the_parts_of_a_statement() -> None:
    ledger = Ledger()
    ledger.charge(kept(0.5))
    statement = ledger.statement(DELTA)
    smashed, labels = release_costs(kept(0.5), "replace")
    assert (statement.smashed, statement.labels) == (epsilon(smashed), epsilon(labels))
    assert (
        max(statement.smashed, statement.labels)
        < statement.epsilon
        < statement.smashed + statement.labels
    )
    assert statement.order is not None
    assert statement.unbounded_because == statement.outside == ()
    shown, rest = str(statement).removeprefix("epsilon ").split(" ", 1)
    # Rounded up: it is a bound.
    assert statement.epsilon <= float(shown) < 1.001 * statement.epsilon
    assert rest == "at delta 1e-05 when a record is replaced"


@pytest.mark.parametrize(
    ("noise", "words", "parts"),
    [
        ({"clip": "none"}, "no clipping of the smashed data", (True, False)),
        ({"sigma_s": 0.0}, "no noise on the smashed data (sigma_s = 0)", (True, False)),
        ({"sigma_y": 0.0}, "no noise on the labels (sigma_y = 0)", (False, True)),
        ({"sigma_s": 1e-9}, UNBOUNDED["resolution"], (True, False)),
        ({"sigma_y": 1e-170}, UNBOUNDED["resolution"], (False, True)),
    ],
)
def test_a_release_without_a_bound_is_said_in_words(
    noise: dict[str, Any], words: str, parts: tuple[bool, bool]
) -> None:
    ledger, series = Ledger(), Ledger()
    ledger.charge(kept(0.5))
    ledger.charge(kept(0.5, noise=replace(NOISE, **noise)))
    series.charge_series(kept(1.0, noise=replace(NOISE, **noise)), [0.5], epochs=[0])
    statement = ledger.statement(DELTA)
    assert statement.epsilon == math.inf
    assert series.statement(DELTA).unbounded_because == statement.unbounded_because
    assert statement.unbounded_because == (words,)
    assert (math.isinf(statement.smashed), math.isinf(statement.labels)) == parts
    assert str(statement) == f"no epsilon: {words}"
    assert ledger.delta(100.0) == 1


@pytest.mark.parametrize("channel", ["plain", "evaluation", "uncounted"])
def test_what_leaves_without_noise_ends_every_bound(channel: Channel) -> None:
    ledger = Ledger()
    ledger.charge(kept(0.5), Exposure(channel))
    statement = ledger.statement(DELTA)
    assert statement.epsilon == statement.smashed == statement.labels == math.inf
    assert statement.order is None
    assert len(statement.unbounded_because) == 1
    assert ledger.delta(100.0) == 1
    assert ledger.would_exceed(kept(0.1), max_epsilon=1e9, delta=DELTA)


def test_a_note_of_another_version_ends_every_bound() -> None:
    ledger, again = Ledger(), Ledger()
    ledger.charge(kept(0.5))
    ledger.post(Charge(notes=("leftover",)))
    again.load_state_dict(ledger.state_dict())
    for each in (ledger, again):
        statement = each.statement(DELTA)
        assert statement.epsilon == statement.smashed == statement.labels == math.inf
        assert statement.unbounded_because == (UNBOUNDED["unknown"],)
        assert each.delta(100.0) == 1
    assert again.total().notes == ("leftover",)


def test_batch_norm_ends_the_bound_of_the_smashed_data() -> None:
    ledger = Ledger()
    ledger.charge(kept(0.5), Exposure("batch-norm"))
    statement = ledger.statement(DELTA)
    assert statement.epsilon == statement.smashed == math.inf
    assert math.isfinite(statement.labels)
    assert "BatchNorm, or another layer across the batch" in str(statement)


def test_channels_without_a_number_stand_beside_it() -> None:
    plain, ledger = Ledger(), Ledger()
    plain.charge(kept(0.5))
    ledger.charge(kept(0.5), Exposure("gradients"), Exposure("training"))
    ledger.charge(Exposure("lower-segments"), Exposure("gradients"))
    assert ledger.epsilon(DELTA) == plain.epsilon(DELTA)
    statement = ledger.statement(DELTA)
    assert len(statement.outside) == 3
    assert "gradients sent to clients" in str(statement)
    assert str(statement).startswith("epsilon ")


def test_nothing_sent_is_nothing_spent() -> None:
    ledger = Ledger()
    ledger.charge(kept(0.0, noise=replace(NOISE, clip="none", sigma_y=0.0)))
    statement = ledger.statement(DELTA)
    assert (statement.epsilon, statement.order, statement.unbounded_because) == (0, None, ())


def test_the_budget_is_never_exceeded_and_asking_costs_nothing() -> None:
    ledger, budget, releases = Ledger(), 8.0, 0
    while not ledger.would_exceed(kept(0.5), max_epsilon=budget, delta=DELTA, epoch=releases):
        ledger.charge(kept(0.5), epoch=releases)
        releases += 1
    assert ledger.releases == releases > 10
    assert epsilon(releases * cost(0.5)) <= budget < epsilon((releases + 1) * cost(0.5))
    # Another batch of the same pass costs nothing more.
    assert not ledger.would_exceed(kept(0.5), max_epsilon=budget, delta=DELTA, epoch=releases - 1)


def test_other_gaussian_releases_are_charged_to_every_record() -> None:
    for ledger in (Ledger(), Ledger(records=3)):
        ledger.charge(kept(0.5), records=[0])
        ledger.charge(Gaussian(noise_multiplier=4.0, times=3))
        assert ledger.spent()[2] == pytest.approx(cost(0.5) + 3 / 32)
        assert ledger.releases == 4


def test_an_event_that_is_not_understood_raises_and_charges_nothing() -> None:
    ledger = Ledger()
    with pytest.raises(TypeError, match="dict is not an event that the ledger understands"):
        ledger.charge(kept(0.5), {"sigma": 1.0})  # type: ignore[arg-type]
    assert ledger.releases == 0
    assert ledger.epsilon(DELTA) == 0
    with pytest.raises(ValueError, match="channel is 'rumour'; it must be one of"):
        Exposure("rumour")  # type: ignore[arg-type]


@pytest.mark.parametrize("records", [None, 6])
@pytest.mark.parametrize("bounded", [True, False])
def test_a_restored_ledger_goes_on_exactly_as_one_that_never_stopped(
    records: int | None, bounded: bool
) -> None:
    rng = np.random.default_rng(0)
    noise = NOISE if bounded else replace(NOISE, sigma_y=0.0)
    steps = [
        (kept(float(rng.random()), noise=noise), int(epoch), rng.permutation(6)[:3])
        for epoch in np.repeat(np.arange(4), 2)
    ]
    through, ledger = (Ledger(records=records) for _ in range(2))
    for index, (release, epoch, batch) in enumerate(steps):
        for each in (through, ledger):
            each.charge(release, Exposure("gradients"), epoch=epoch, records=batch)
        if index == 4:
            state = json.loads(json.dumps(ledger.state_dict(), allow_nan=False))
            ledger = Ledger(records=records)
            ledger.load_state_dict(state)
    assert ledger.state_dict() == through.state_dict()
    assert ledger.statement(DELTA) == through.statement(DELTA)
    assert math.isfinite(ledger.epsilon(DELTA)) == bounded


@pytest.mark.parametrize("records", [None, 2])
def test_what_every_record_has_paid_without_a_bound_is_restored(records: int | None) -> None:
    """JSON has no infinity."""
    unbounded = Ledger()
    unbounded.charge(kept(0.5, noise=replace(NOISE, sigma_s=0.0)))
    ledger, again = Ledger(records=records), Ledger(records=records)
    ledger.post(unbounded.total())
    again.load_state_dict(json.loads(json.dumps(ledger.state_dict(), allow_nan=False)))
    assert again.spent()[2] == math.inf


@pytest.mark.parametrize("cost", ["nan", math.nan, -1.0])
@pytest.mark.parametrize("part", ["everywhere", "smashed", "labels", "before", "worst"])
def test_a_state_with_costs_that_cannot_be_is_refused(part: str, cost: Any) -> None:
    """With NaN among them, epsilon would be NaN, which is above no budget."""
    ledger = Ledger(records=None if part in ("before", "worst") else 1)
    state = ledger.state_dict()
    kept_costs = state["book"][part]
    state["book"][part] = [cost] * len(kept_costs) if isinstance(kept_costs, list) else cost
    with pytest.raises(ValueError, match="costs that are not numbers of at least 0"):
        ledger.load_state_dict(state)
    assert ledger.epsilon(DELTA) == 0


def test_a_state_of_another_ledger_is_refused_and_changes_nothing() -> None:
    ledger = Ledger()
    ledger.charge(kept(0.5))
    before = ledger.state_dict()
    exact, other = Ledger(records=2), Ledger("add-remove")
    broken: list[tuple[dict[str, Any], str]] = [
        (exact.state_dict(), "a ledger by passes cannot take a state by records"),
        (other.state_dict(), "cannot take a state of relation 'add-remove'"),
        ({**before, "version": 2}, "version 1, not 2"),
        ({"version": 1, "relation": "replace"}, "damaged"),
    ]
    for state, message in broken:
        with pytest.raises(ValueError, match=message):
            ledger.load_state_dict(state)
    assert ledger.state_dict() == before
    with pytest.raises(ValueError, match="3 values cannot take a state of 2"):
        Ledger(records=3).load_state_dict(exact.state_dict())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Ledger("swap"), "relation is 'swap'"),  # type: ignore[arg-type]
        (lambda: Ledger(records=0), "records is 0"),
        (lambda: Ledger().statement(1.0), "delta is 1.0"),
        (lambda: Ledger().delta(-1.0), "epsilon is -1.0"),
        (lambda: Ledger().would_exceed(max_epsilon=0, delta=DELTA), "max_epsilon is 0"),
        (lambda: Ledger(records=2).charge(kept(0.5)), "needs the records"),
        (lambda: Ledger(records=2).charge(kept(0.5), records=[2]), "the client has 0 to 1"),
        (lambda: Ledger(records=2).charge(kept(0.5), records=[0.5]), "are integers"),
        (lambda: Ledger().charge_series(kept(1.0), [0.5], epochs=[0, 1]), r"both are \(steps,\)"),
        (lambda: Ledger().charge_series(kept(1.0), [1.5], epochs=[0]), "0..1"),
        (
            lambda: Ledger().charge_series(kept(1.0, **SUMMED), [0.5, 0.5], epochs=[0, 0]),
            r"needs groups \(steps, k\)",
        ),
        (
            lambda: Ledger().charge_series(
                kept(1.0, **SUMMED), [0.5], epochs=[0], groups=[[0.25, 0.75]]
            ),
            "the client's own ratio in each",
        ),
        (lambda: Gaussian(noise_multiplier=0), "noise_multiplier is 0"),
        (lambda: Gaussian(noise_multiplier=math.inf), "noise_multiplier is inf"),
    ],
)
def test_wrong_input_is_one_sentence(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
