"""A disk that fills up in the middle of a run costs checkpoints, not the run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

# A limit on the size of a file makes the kernel refuse a write half-way, as a full disk does.
PROGRAM = """
import json, resource, signal, sys
import torch
from torch.utils.data import TensorDataset
from flwr_splitmix import Run, SplitClient
from flwr_splitmix.events import RoundDone
from flwr_splitmix.observers import Observer
from flwr_splitmix.runs import RunError
from flwr_splitmix.strategies import CutMixSL

home, full_rounds = sys.argv[1], json.loads(sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
torch.set_num_threads(1)


class Disk(Observer):
    # Rounds are observed before they are written.
    def on_round(self, event: RoundDone) -> None:
        limit = 64 * 1024 if event.server_round in full_rounds else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


class Upper(torch.nn.Module):
    num_classes = 2

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8000), torch.nn.Linear(8000, 2))

    def forward(self, smashed: torch.Tensor) -> torch.Tensor:
        return self.layers(smashed.mean(dim=1))


torch.manual_seed(0)
clients = [
    SplitClient(
        torch.nn.Sequential(torch.nn.Linear(6, 4000), torch.nn.Linear(4000, 8)),
        TensorDataset(torch.randn(16, 4, 6), torch.randint(2, (16,))),
        batch_size=8,
    )
    for _ in range(2)
]
strategy = CutMixSL(Upper(), run=Run.create({}, name="disk", home=home), observers=[Disk()])
try:
    strategy.fit(clients, num_rounds=4)
    print("finished")
except RunError as error:
    print("RunError", error)
"""


def train(home: Path, full_rounds: list[int]) -> tuple[str, str, Any]:
    """Train 4 rounds, on a full disk at the end of some: (output, log, run)."""
    from flwr_splitmix import Run

    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(home), json.dumps(full_rounds)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip(), process.stderr, Run.open("latest", home=home)


def test_training_goes_on_while_the_disk_is_full(tmp_path: Path) -> None:
    output, log, run = train(tmp_path, [2, 3])
    assert output == "finished"
    warning = f"the checkpoint could not be written to {run.path}: File too large; what was written"
    assert log.count(warning) == 2
    # The clients finish rounds 3 and 4 before the disk has room again.
    assert log.count("its state could not be kept (File too large)") == 4
    assert "Traceback" not in log
    assert [row["round"] for row in run.rows] == [1, 2, 3, 4]
    assert run.checkpoints.rounds() == [1, 4]
    assert run.checkpoints.load().round == 4
    assert run.status == "finished"


def test_a_run_that_ends_on_a_full_disk_keeps_its_last_good_checkpoint(tmp_path: Path) -> None:
    output, log, run = train(tmp_path, [2, 3, 4])
    assert output.startswith("RunError the end of the run cannot be written to ")
    assert output.endswith(f"{run.path.name}: File too large; free space there and resume the run")
    assert "the checkpoint could not be written" in log
    assert run.checkpoints.rounds() == [1]
    assert run.checkpoints.load().round == 1
    assert run.status == "failed"
    # What was measured is small enough to have been written, and the run can be resumed.
    assert [row["round"] for row in run.rows] == [1, 2, 3, 4]
    files = [file.name for file in (run.path / "checkpoints").iterdir()]
    assert files == ["round-000001.safetensors"]
