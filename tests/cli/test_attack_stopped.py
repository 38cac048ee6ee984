"""What `splitmix attack run` says and keeps of an attack whose end is not the usual one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from flwr_splitmix.runs import Run
from flwr_splitmix.runs.recording import attacks_dir, write_facts
from tests.apps import vision_fit

Splitmix = Callable[..., Result]

DECODER = ("--attack", "decoder", "--assume", "lower", "--victims", "8")


@pytest.fixture
def recorded(home: Path) -> Run:
    vision_fit.fit(
        home, 2, strategy="SFL", record_attacks=True, steps_per_round=1, num_server_rounds=1,
        samples_per_client=32, batch_size=8,
    )  # fmt: skip
    run = next(run for run in Run.list(home) if run.config.get("strategy") == "SFL")
    write_facts(run, {"clients": 2})
    return run


def test_an_attack_that_was_cut_short_says_so(splitmix: Splitmix, recorded: Run) -> None:
    """It was shown as one of full effort that found nothing."""
    cut = (*DECODER, "--scale", "cpu", "--seconds", "0")
    done = splitmix("attack", "run", recorded.id, *cut)
    assert done.exit_code == 0, done.output
    assert "stopped after 0." in " ".join(done.stdout.split())
    assert "before its full effort" in done.stderr
    shown = " ".join(splitmix("attack", "show", recorded.id).stdout.split())
    assert "scale cpu, seed 0, stopped after 0." in shown
    assert "that it does not beat a floor says nothing" in shown
    told = json.loads(splitmix("attack", "run", recorded.id, *cut, "--format", "json").stdout)
    assert told[0]["stopped_after"] >= 0


def test_a_result_that_was_cut_short_does_not_replace_a_complete_one(
    splitmix: Splitmix, recorded: Run
) -> None:
    done = splitmix("attack", "run", recorded.id, *DECODER)
    assert (done.exit_code, "stopped" in done.stdout + done.stderr) == (0, False), done.output
    (scores,) = attacks_dir(recorded).glob("results/*/scores.json")
    complete = scores.read_text(encoding="utf-8")
    assert json.loads(complete)["stopped_after"] is None
    cut = splitmix("attack", "run", recorded.id, *DECODER, "--seconds", "0")
    assert cut.exit_code == 0, cut.output
    assert "this result is not kept" in cut.stderr
    assert scores.read_text(encoding="utf-8") == complete
