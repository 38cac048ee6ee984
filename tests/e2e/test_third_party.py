"""`apps/vision` on a real SuperLink, three SuperNodes and a mixer that is a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.attacks.recorder import Recorder
from flwr_splitmix.attacks.recording.steps import Step
from flwr_splitmix.privacy.journal import read_journal
from flwr_splitmix.runs.attack_recording import trace_dir
from flwr_splitmix.sandbox.deployment import LocalDeployment
from flwr_splitmix.testing.agreement import check_same_results, read_results
from tests.e2e.flower_run import TINY, Deployed, run_here
from tests.links.mixer.process import MixerProcess
from tests.links.mixer.third_party import SEED

pytestmark = pytest.mark.slow

NODES = 3
VALUES: dict[str, Any] = {
    **TINY,
    "strategy": "CutMixSL",
    "server-update": "sum",
    "k": NODES,
    "min-patches": 1,
    "seed": SEED,
    "min-nodes": NODES,
    "num-server-rounds": 1,
    "attach-timeout": 240.0,
}


@pytest.fixture(scope="module")
def deployed() -> Iterator[Deployed]:
    """Start a deployment; afterwards nothing of it may be left."""
    with LocalDeployment(NODES, environment={"OMP_NUM_THREADS": "1"}) as deployment:
        yield Deployed(deployment)
    assert deployment.processes() == []


@pytest.fixture
def mixer(deployed: Deployed, tmp_path: Path) -> Iterator[MixerProcess]:
    """Start the mixer, as another party would; at the end it is asked to end."""
    with MixerProcess(tmp_path, deployed.flower.certificates) as process:
        yield process
        assert process.end() == 0


def over(mixer: MixerProcess) -> dict[str, Any]:
    """Return the keys of a run whose mixer it is."""
    # The authority that the nodes are told is the mixer's; a certificate the run has none.
    return {
        "link-via": mixer.address,
        "link-via-token": str(mixer.token),
        "ssl-certfile": "",
        "ssl-keyfile": "",
    }


def test_a_run_over_a_mixer_equals_one_in_this_process(
    deployed: Deployed, mixer: MixerProcess, tmp_path: Path
) -> None:
    values = {**VALUES, **over(mixer), "record-attacks": True}
    ended = deployed.run(values, tmp_path / "deployed")
    assert ended.status == "finished:completed", ended.details + ended.log + mixer.log()
    assert ended.run is not None
    assert f"mixer link: nodes dial {mixer.address}, with TLS, and so does this run" in ended.log
    assert [row["clients_alive"] for row in ended.run.rows] == [NODES]
    local_run = run_here(VALUES, NODES, tmp_path)
    check_same_results(read_results(local_run), deployed.results(ended.run))
    # The server's own record: one whole mixture a step, of nobody by name.
    steps = list(Recorder(directory=trace_dir(ended.run)).trace.steps())
    assert len(steps) == sum(row["steps"] for row in ended.run.rows)
    for step in steps:
        assert isinstance(step, Step)
        assert set(step.uploads) == {-1}
        assert [t.shape[1] for t in step.uploads[-1].smashed if t is not None] == [16]
    # Each node has uploaded some patches of the 16, and written down how many.
    for node in deployed.flower.nodes:
        audit = read_journal(node.state_dir / f"audit-{node.index}.jsonl")
        tensors = [item for entry in audit if entry["exchange"] == "step" for item in entry["sent"]]
        patch_counts = [item["shape"][1] for item in tensors if item["name"] == "smashed"]
        assert len(patch_counts) == len(steps)
        assert all(0 < patches < 16 for patches in patch_counts)


def test_with_noise_the_mixers_epsilon_is_that_of_sums(
    deployed: Deployed, mixer: MixerProcess, tmp_path: Path
) -> None:
    noise = {
        "strategy": "DPCutMixSL",
        "sigma-s": 9.0,
        "sigma-y": 4.0,
        "smashed-noise": "all",
        "clamp-labels": False,
    }
    ended = deployed.run({**VALUES, **noise, **over(mixer)}, tmp_path / "deployed")
    assert ended.status == "finished:completed", ended.details + ended.log + mixer.log()
    assert ended.run is not None
    (row,) = ended.run.rows
    trusted = run_here({**VALUES, **noise, "trusted-mixer": True}, NODES, tmp_path / "sums")
    single = run_here({**VALUES, **noise}, NODES, tmp_path / "single")
    assert row["epsilon"] == trusted.rows[0]["epsilon"] < single.rows[0]["epsilon"]
    assert row.get("epsilon_by_client") is None
    assert ended.run.summary is not None
    assert "by the mixer's ledger, of mixtures alone: epsilon" in ended.run.summary["privacy"]
