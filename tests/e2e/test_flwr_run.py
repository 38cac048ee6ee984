"""`flwr run apps/vision` as a user does it: what it prints and what it leaves behind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flwr_splitmix import Run
from flwr_splitmix.apps.vision.attacked import attacked_run
from flwr_splitmix.privacy import GaussianNoise, Release, ReleasePlan
from tests.apps import vision_app
from tests.e2e.flower_run import TINY, Ended, Runner, measured, run_here

pytestmark = pytest.mark.slow

CUTMIX = {**TINY, "strategy": "CutMixSL", "evaluation": "federated"}
PROMISED = {
    "strategy",
    "model",
    "clients",
    "rounds",
    "steps",
    "top1",
    "loss",
    "uplink_bytes",
    "downlink_bytes",
    "uplink_bytes_psl",
    "wall_s",
    "versions",
    "seed",
}
"""Keys of summary.json."""


def completed(ended: Ended) -> Run:
    assert ended.status == "finished:completed", ended.details + ended.log
    assert ended.run is not None
    return ended.run


@pytest.fixture(scope="module")
def cutmix(superlink: Runner, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder = tmp_path_factory.mktemp("cutmix")
    # Recorded: what it makes must be what it makes without.
    config = {**CUTMIX, "num-hosts": 0, "record-attacks": True}
    return superlink.run(config, folder, nodes=10, cpus=1)


def test_a_run_leaves_config_metrics_and_summary(cutmix: Ended) -> None:
    run = completed(cutmix)
    assert {f.name for f in run.path.iterdir()} == {
        "config.json",
        "begun.jsonl",  # clients that were asked for something, and when
        "metrics.parquet",
        "summary.json",
        "checkpoints",
        "clients",
        "lock",  # held while the run runs
        "flower.json",  # its id in Flower
        "inputs.json",  # classes, normalisation
        "record.json",  # what clients did, kinds of messages
        "attacks",  # it is recorded
    }
    assert run.config["strategy"] == "CutMixSL"
    assert run.config["batch-size"] == 25
    assert run.config["lr"] == vision_app.run_config()["lr"]
    assert run.summary is not None
    assert PROMISED - run.summary.keys() == set()
    facts = {key: run.summary[key] for key in ("strategy", "clients", "rounds", "steps", "seed")}
    assert facts == {"strategy": "CutMixSL", "clients": 10, "rounds": 2, "steps": 4, "seed": 0}
    assert run.summary["top1"] == run.rows[-1]["accuracy"] > 0
    assert run.summary["versions"].keys() >= {"python", "flwr", "flwr-splitmix", "torch"}
    assert [row["round"] for row in run.rows] == [1, 2]
    assert [row["clients_alive"] for row in run.rows] == [10, 10]


def test_two_clients_in_a_group_send_half_of_what_psl_sends(cutmix: Ended) -> None:
    summary = completed(cutmix).summary
    assert summary is not None
    assert summary["uplink_bytes"] == pytest.approx(0.5 * summary["uplink_bytes_psl"], rel=0.02)
    # 4 steps, 10 clients, 25 images: 16 patches of 192 float32 and a label of 8 bytes each.
    assert summary["uplink_bytes_psl"] == 4 * 10 * 25 * (16 * 192 * 4 + 8)


def test_a_run_through_flower_equals_one_in_this_process(cutmix: Ended, tmp_path: Path) -> None:
    local_run = run_here(CUTMIX, 10, tmp_path)
    assert measured(completed(cutmix)) == measured(local_run)


def test_a_recorded_run_says_so_and_can_be_attacked(cutmix: Ended) -> None:
    """The server's view of a simulation, with the truth from the run's configuration alone."""
    run = completed(cutmix)
    assert "this run RECORDS what its server sees, for attacks" in cutmix.log
    assert f"splitmix attack forget {run.id}" in cutmix.log
    case = attacked_run(run).case("server", trained=1000, held_out=20)
    recorded = [r for r in case.view.releases if r.server_round <= 2]
    assert {(r.server_round, r.step, r.client) for r in recorded} == {
        (r, s, c) for r in (1, 2) for s in (0, 1) for c in range(10)
    }
    assert int((~case.truth.trained).sum()) == 20


def test_the_log_has_one_readable_line_a_round(cutmix: Ended) -> None:
    lines = re.findall(r"round \d/\d \|.*", cutmix.log)
    pattern = (
        r"round {}/2 \| top-1 0\.\d{{4}} ± 0\.\d{{4}} \(federated\) \| loss \d\.\d{{4}} "
        r"\| \d+\.\d\d steps/s \| up \d+\.\d MB, down \d+\.\d MB \| 10 clients \| [\dmins ]+ left"
    )
    assert len(lines) == 2
    for number, line in enumerate(lines, start=1):
        assert re.fullmatch(pattern.format(number), line.strip()), line
    assert "Traceback" not in cutmix.log
    assert str(completed(cutmix).path) in cutmix.log


def test_runtime_dependencies_are_installed_by_default(cutmix: Ended) -> None:
    completed(cutmix)
    assert "App dependencies installed" in cutmix.log


def test_the_server_learns_from_frozen_edges_with_labels_of_its_own(
    runner: Runner, tmp_path: Path
) -> None:
    values = {
        **TINY,
        "strategy": "PatchShuffleSL",
        "depth": 2,
        "samples-per-client": 300,
        "warmup-epochs": 0.0,
        "evaluation": "federated",
        "evaluate-every": 2,
    }
    run = completed(runner.run(values, tmp_path))
    assert [(row["clients_alive"], row["clients_failed"]) for row in run.rows] == [(2, 0)] * 2
    assert {row["downlink_bytes"] for row in run.rows} == {0}
    assert run.summary is not None
    assert run.summary["uplink_bytes"] == run.summary["uplink_bytes_psl"]
    # With labels of other images it would be a tenth.
    assert run.rows[-1]["accuracy"] > 0.3


def test_a_privacy_budget_ends_the_run_before_it_is_exceeded(
    runner: Runner, tmp_path: Path
) -> None:
    noise = GaussianNoise(sigma_s=5.0, sigma_y=2.0)
    release = Release(noise=noise, patches=16, width=192)
    # Even masks: each client keeps half of the patches in every step, and a round is one pass.
    passes = [ReleasePlan(release=release, passes=n, delta=1e-5, kept=0.5, k=2) for n in (1, 2, 3)]
    first, second, third = (plan.epsilon() for plan in passes)
    values = {
        **TINY,
        "strategy": "DPCutMixSFL",
        "alpha": float("inf"),
        "sigma-s": 5.0,
        "sigma-y": 2.0,
        "max-epsilon": (second + third) / 2,
        "allow-averaging": True,
        "num-server-rounds": 4,
        "evaluation": "auto",
        "evaluate-every": 4,
    }
    ended = runner.run(values, tmp_path)
    run = completed(ended)
    assert "the run ends after round 3: the privacy budget of clients 0 and 1" in ended.log
    assert [row["epsilon"] for row in run.rows] == pytest.approx([first, second, second])
    assert [row["uplink_bytes"] > 0 for row in run.rows] == [True, True, False]
    # What was learned before is measured, on the server's own test images.
    assert [row["accuracy_kind"] for row in run.rows] == [None, None, "central"]
    assert run.summary is not None
    assert run.summary["rounds"] == 3
