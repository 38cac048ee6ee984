"""`splitmix check` says what noise will cost, and a run's ledger then says as much."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.apps.checking.report import Report
from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.vision.data import sizes_of_clients
from flwr_splitmix.apps.vision.model import segments_of
from flwr_splitmix.apps.vision.noise_cost import remark_noise
from tests.apps.vision_fit import ONE_STEP, fit, read

NOISY: dict[str, Any] = {
    **ONE_STEP, "strategy": "DPCutMixSL", "depth": 1, "sigma_s": 20.0, "sigma_y": 5.0,
}  # fmt: skip


def remarks(nodes: int | None = 4, **values: Any) -> list[str]:
    config = read(**{**NOISY, **values})
    report = Report("app", nodes or 2, nodes_known=nodes is not None)
    sizes = [] if nodes is None else sizes_of_clients(config, nodes)
    strategy = config.trial()
    strategy.fraction_train = config.fraction_train
    remark_noise(config, segments_of(config), strategy, sizes, report)
    return report.remarks


def planned(nodes: int | None, **values: Any) -> float:
    (remark,) = remarks(nodes, **values)
    assert remark.startswith("planned privacy: epsilon ")
    return float(remark.split()[3])


def about_and_at_most(nodes: int, **values: Any) -> tuple[float, float]:
    remark = remarks(nodes, **values)[0]
    match = re.match(
        r"planned privacy: epsilon about (\S+), at most (\S+), at delta 1e-05 ", remark
    )
    if match is None:  # a client is drawn in every round
        return (planned(nodes, **values),) * 2
    return float(match[1]), float(match[2])


@pytest.mark.parametrize(
    ("values", "n", "least"),
    [
        ({"alpha": math.inf}, 2, 0.999),
        ({"alpha": math.inf, "k": 3, "k_times": True}, 3, 0.9),
        ({"strategy": "DPSL", "samples_per_client": 10}, 2, 0.999),
        ({"strategy": "DPSL", "samples_per_client": 3}, 2, 0.999),  # with replacement
        ({"strategy": "CutoutSL"}, 2, 0.999),
        ({"strategy": "DPCutMixSFL", "cut_at": "blocks.0", "alpha": math.inf}, 2, 0.99),
        ({}, 3, 0.6),
        ({"strategy": "DPMixSL"}, 2, 0.5),
        ({"rounding": "largest-remainder"}, 2, 0.5),
        (
            {"alpha": math.inf, "smashed_noise": "all", "clamp_labels": False,
             "trusted_mixer": True}, 2, 0.999,
        ),
    ],
)  # fmt: skip
def test_a_runs_ledger_says_what_was_planned(
    values: dict[str, Any], n: int, least: float, tmp_path: Path
) -> None:
    steps = {"steps_per_round": 5, **values}  # two batches of four in a pass, or one pass a batch
    ledger = fit(tmp_path, n, **{**NOISY, **steps}).row["epsilon"]
    assert least * planned(n, **steps) <= ledger <= 1.001 * planned(n, **steps)


UNEQUAL: dict[str, Any] = {
    "samples_per_client": 0, "partition": "dirichlet", "partition_alpha": 0.3, "batch_size": 100,
    "steps_per_round": 0, "num_server_rounds": 2, "model": "lenet5", "depth": 0,
}  # fmt: skip
"""Clients with 1 to 15 batches of 100 images, and a small model."""


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("values", "n", "least"),
    [
        ({"strategy": "DPSL"}, 8, 0.999),
        ({"alpha": math.inf, "k": 3}, 7, 0.6),  # of four clients one is left over
    ],
)
def test_a_ledger_says_what_was_planned_for_the_clients_that_are_drawn(
    seed: int, values: dict[str, Any], n: int, least: float, tmp_path: Path
) -> None:
    """A round's length depends on the clients drawn: a plan with the mean length lies below."""
    values = {**UNEQUAL, **values, "seed": seed, "fraction_train": 0.5}
    about, most = about_and_at_most(n, **values)
    ledger = fit(tmp_path, n, **{**NOISY, **values}).last["epsilon"]
    assert least * about <= ledger <= 1.001 * about <= 1.001 * most


def test_the_client_with_fewest_images_decides_if_all_are_in_every_round(tmp_path: Path) -> None:
    values = {**UNEQUAL, "strategy": "DPSL"}
    ledger = fit(tmp_path, 5, **{**NOISY, **values}).last["epsilon"]
    assert ledger == pytest.approx(planned(5, **values), rel=1e-3)


def test_the_bound_is_what_the_worst_draw_costs() -> None:
    """Of clients with equal data that is a client in every round, as if all were drawn."""
    values = {"num_server_rounds": 12, "steps_per_round": 4, "alpha": math.inf}
    about, most = about_and_at_most(8, fraction_train=0.5, **values)
    assert about < most == planned(8, **values)
    assert (
        "as seed 0 draws the clients, and at most 24 passes over 8 images, if one is in "
        in (remarks(8, fraction_train=0.5, **values)[0])
    )
    assert most == planned(None, fraction_train=0.5, **values)
    assert "; a client in every round;" in remarks(None, fraction_train=0.5, **values)[0]


def test_steps_without_some_clients_leave_others_over() -> None:
    """Late ones are skipped, or their budgets are spent: two full groups become one and a half."""
    steps = {"steps_per_round": 40}
    skipping = {"straggler": "skip", "link": "stream"}
    (remark,) = remarks(4, **steps, **skipping)
    assert "groups of k = 2 of 2 to 4 clients, some left over;" in remark
    assert planned(4, **steps) < planned(3, **steps) <= planned(4, **steps, **skipping)
    limit = planned(4, **steps) / 2
    remark, _ = remarks(4, **steps, max_epsilon=limit)
    assert "groups of k = 2 of 2 to 4 clients, some left over;" in remark
    summed = {**steps, "smashed_noise": "all", "clamp_labels": False}
    alone = planned(4, **summed, **skipping)
    assert planned(4, **summed, **skipping, trusted_mixer=True) == alone


@pytest.mark.parametrize("strategy", ["DPMixSL", "DPCutMixSL"])
def test_sums_of_uploads_that_are_rounded_on_the_wire_are_planned_as_seen_alone(
    strategy: str,
) -> None:
    values = {"strategy": strategy, "smashed_noise": "all", "clamp_labels": False}
    alone, summed, rounded = (
        planned(4, **values, link="stream", **more)
        for more in (
            {"wire_dtype": "bfloat16"},
            {"trusted_mixer": True},
            {"trusted_mixer": True, "wire_dtype": "bfloat16"},
        )
    )
    assert summed < rounded == alone


def test_who_is_left_over_in_many_steps_is_planned_to_send_everything() -> None:
    """Masks drawn in each step do not average that out."""
    steps = {"steps_per_round": 200}
    fixed = planned(3, regroup="epoch", **steps)
    assert fixed == planned(3, grouping="speed", **steps) > planned(3, **steps)
    assert planned(2, regroup="epoch", **steps) == planned(2, **steps)  # nobody is left over


@pytest.mark.parametrize("regroup", ["step", "epoch"])
def test_who_is_skipped_is_not_planned_to_send_everything(regroup: str) -> None:
    skipped = planned(3, leftover="skip", regroup=regroup, steps_per_round=200)
    assert skipped == planned(2, steps_per_round=200)
    assert "full groups of k = 2;" in remarks(3, leftover="skip")[0]


@pytest.mark.parametrize(
    ("values", "why", "remedy"),
    [
        ({"sigma_y": 0.0}, "sigma-y is 0.0", "sigma-y above 0"),
        ({"sigma_s": 0.0}, "sigma-s is 0.0", "sigma-s above 0"),
        ({"clip": "none"}, "clip is 'none'", "clip 'patch', 'range' or 'sample'"),
        ({"evaluation": "federated"}, "evaluation is 'federated'", "evaluation 'benchmark' or"),
        ({"sigma_s": 1e-9}, "below the resolution of float32", "larger sigma-s and sigma-y"),
        (
            {"strategy": "DPSL", "model": "resnet18", "depth": 0},
            "has BatchNorm", "a model without BatchNorm before the cut",
        ),
    ],
)  # fmt: skip
def test_a_run_without_epsilon_is_told_why_and_what_gives_one(
    values: dict[str, Any], why: str, remedy: str
) -> None:
    (remark,) = remarks(**values)
    assert remark.startswith("this run has no epsilon: ")
    assert why in remark
    assert f"it would have one with {remedy}" in remark


def test_averaging_is_not_covered() -> None:
    (remark,) = remarks(strategy="DPCutMixSFL")
    assert "Not covered: gradients sent to clients; lower segments sent to be averaged" in remark
    assert "averaged" not in remarks()[0]


def test_what_is_not_known_is_said() -> None:
    assert "full groups of k = 2;" in remarks(nodes=None)[0]
    assert "groups of k = 2 of 3 clients, 1 left over;" in remarks(3)[0]
    (remark,) = remarks(nodes=None, samples_per_client=0)
    assert "`splitmix check --nodes` reports it" in remark


@pytest.mark.parametrize("strategy", ["DPCutMixSL", "DPMixSL", "DPSL", "VanillaCutMixSL"])
def test_a_budget_below_one_batch_is_an_error(strategy: str) -> None:
    with pytest.raises(ConfigError, match=r"max-epsilon is 4, but with sigma-s 0.01 and sigma-y"):
        remarks(strategy=strategy, sigma_s=0.01, sigma_y=0.01, max_epsilon=4.0)


def test_the_round_in_which_a_budget_ends_is_said(tmp_path: Path) -> None:
    values = {"alpha": math.inf, "num_server_rounds": 9, "steps_per_round": 2}
    assert len(remarks(2, **values, max_epsilon=1e6)) == 1
    limit = planned(2, **{**values, "num_server_rounds": 4}) * 1.001
    _, remark = remarks(2, **values, max_epsilon=limit)
    assert "reaches it in about round 5 of 9" in remark
    fitted = fit(tmp_path, 2, **{**NOISY, **values}, max_epsilon=limit)
    assert len(fitted.rows) == 5
    assert fitted.strategy.stop_reason.startswith("the privacy budget of ")
    enough = [float(word) for word in remark.replace(",", "").split() if word[:1].isdigit()][-2:]
    quiet = {"sigma_s": enough[0], "sigma_y": enough[1]}
    assert len(remarks(2, **{**values, **quiet}, max_epsilon=limit)) == 1


@pytest.mark.parametrize("limit", [5.0, 6.0, 7.0, 9.0, 11.0])
def test_the_noise_with_which_it_would_last_is_enough(limit: float) -> None:
    """It is rounded up: the nearest of three digits is too little for every third limit."""
    values = {"num_server_rounds": 5, "steps_per_round": 20, "max_epsilon": limit}
    _, remark = remarks(4, **values, sigma_s=6.0, sigma_y=6.0)
    assert "and then sends nothing more; it would last with sigma-s " in remark
    sigma_s, sigma_y = (float(word) for word in remark.split("sigma-s ")[1].split(" and sigma-y "))
    assert len(remarks(4, **values, sigma_s=sigma_s, sigma_y=sigma_y)) == 1


def test_without_noise_nothing_is_said() -> None:
    assert remarks(strategy="CutMixSL", sigma_s=0.0, sigma_y=0.0) == []
