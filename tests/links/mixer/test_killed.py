"""A mixer's process that is ended during a run, and started again."""

from __future__ import annotations

import logging
import math
from contextlib import ExitStack
from pathlib import Path

import pytest

from flwr_splitmix import Run
from flwr_splitmix.links import MixerLink
from flwr_splitmix.sandbox.certificates import make_certificates
from flwr_splitmix.sandbox.superlink import free_port
from flwr_splitmix.testing.agreement import check_same_results, read_results
from tests.links.kept import results
from tests.links.mixer.noisy import alone, elsewhere, epsilons, new_run, through
from tests.links.mixer.process import MixerProcess
from tests.links.mixer.test_ledger_lost import After
from tests.links.mixer.test_lost import In
from tests.links.mixer.third_party import grid_of, make, start

pytestmark = pytest.mark.slow


def test_a_mixer_process_that_is_replaced_has_no_number_for_the_run(tmp_path: Path) -> None:
    """It has the old one's seed and mixes alike, but does not know what the old one sent."""
    files = make_certificates(tmp_path / "certificates")
    run = new_run(tmp_path, "replaced")
    with ExitStack() as stack:
        first = stack.enter_context(MixerProcess(tmp_path, files, f"127.0.0.1:{free_port()}"))

        def replace() -> None:
            assert first.end() == 0
            stack.enter_context(MixerProcess(tmp_path, files, first.address))

        link = MixerLink(first.address, first.token, ca=files.ca, run=run.id)
        observers = [After(1, replace)]
        nodes = tmp_path / "nodes"
        mixed = through(link, nodes, "DPMixSL", 2, run=run, secrets=True, observers=observers)
    local = alone("DPMixSL", 2, secrets=True, run=new_run(tmp_path, "local"))
    assert local.recorder.run is not None
    check_same_results(read_results(local.recorder.run), results(run, nodes))
    assert epsilons(mixed) == [epsilons(local)[0], math.inf]
    assert "the mixer's ledger lacks round 1;" in elsewhere(mixed).report()


def test_a_killed_mixer_costs_its_round_and_the_next_one_finds_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = make_certificates(tmp_path / "certificates")
    run = Run.create({}, name="killed", home=tmp_path)
    with ExitStack() as stack:
        first = stack.enter_context(MixerProcess(tmp_path, files, f"127.0.0.1:{free_port()}"))

        def kill() -> None:
            first.kill()
            stack.enter_context(MixerProcess(tmp_path, files, first.address))

        link = MixerLink(first.address, first.token, ca=files.ca, run=run.id, reattach_timeout=2.0)
        grid = grid_of(tmp_path / "nodes")
        with caplog.at_level(logging.WARNING, "flwr.splitmix"):
            start(make("CutMixSL", link, run, observers=[In(2, 1, kill)]), grid, 3)
        grid.wait()
    assert [row["round"] for row in run.rows] == [1, 3]
    assert [row["clients_alive"] for row in run.rows] == [4, 4]
    lost = f"round 2 is lost, the run continues: the mixer at {first.address} (link-via) is gone"
    assert lost in caplog.text
