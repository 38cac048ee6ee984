"""A run that is stopped, however, resumes after its last finished round.

SIGTERM, a kill and `flwr stop` in a simulation (where the ServerApp is a thread of a process that
ends without it) leave no time to save what is in memory. So rounds between the checkpoints that
`checkpoint-every` asks for are written, too.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flwr_splitmix.runs import Run
from flwr_splitmix.strategies import PSL
from flwr_splitmix.testing.toy import Toy

TOY = Toy(clients=2)

PROGRAM = """
import os, signal, sys, threading
from flwr_splitmix.observers import Observer
from flwr_splitmix.runs import Run
from flwr_splitmix.strategies import PSL
from flwr_splitmix.testing.toy import Toy

home, run_id, how = sys.argv[1:]
toy = Toy(clients=2)
# A shell starts what is in the background with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
stopped = threading.Event()

class Stop(Observer):
    rounds = 0

    def on_begin(self, event):
        if event.server_round != 9:
            return
        if how == "exit":
            stopped.set()
            threading.Event().wait()
        os.kill(os.getpid(), getattr(signal, how))

def run():
    strategy = PSL(
        toy.upper(), device="cpu", steps_per_round=1, checkpoint_every=5, observers=[Stop()],
        run=Run.open(run_id, home=home),
    )
    strategy.fit(toy.make_clients(), 12)

if how == "exit":
    # As Flower ends a simulation: the main thread goes, and the ServerApp's with it.
    threading.Thread(target=run).start()
    stopped.wait()
    os._exit(0)
run()
"""


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "SIGKILL", "exit"])
def test_no_finished_round_is_lost(tmp_path: Path, how: str) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), run.id, how],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert "LinkError" not in process.stderr, process.stderr
    assert [row["round"] for row in run.rows] == list(range(1, 9))
    assert run.checkpoints.rounds() == [5, 8]

    whole, resumed = Run.create({}, name="whole", home=tmp_path), Run.open(run.id, home=tmp_path)
    for each in (whole, resumed):
        PSL(TOY.upper(), device="cpu", steps_per_round=1, checkpoint_every=5, run=each).fit(
            TOY.make_clients(), 12
        )
    assert [row["loss"] for row in resumed.rows] == [row["loss"] for row in whole.rows]
    assert resumed.checkpoints.rounds() == whole.checkpoints.rounds() == [10, 12]


def test_an_early_end_makes_a_checkpoint_that_is_waited_for(tmp_path: Path) -> None:
    class OverError(Exception):
        pass

    class Ends(PSL):
        def train_round(self, clients: object, server_round: int) -> int:
            if server_round == 4:
                raise OverError
            return super().train_round(clients, server_round)  # type: ignore[arg-type]

    run = Run.create({}, name="x", home=tmp_path)
    strategy = Ends(TOY.upper(), device="cpu", steps_per_round=1, checkpoint_every=5, run=run)
    with pytest.raises(OverError):
        strategy.fit(TOY.make_clients(), 12)
    (file,) = run.checkpoints.path.iterdir()
    assert file.name == "round-000003.safetensors"
