"""Messages and results of `splitmix attack run` where an attack does not end as usual."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from flwr_splitmix.attacks.running import images
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.attack_recording import attacks_dir, forget, write_facts
from tests.apps import vision_fit

Splitmix = Callable[..., Result]

LINEAR = ("--attack", "linear", "--victims", "8")
DECODER = ("--attack", "decoder", "--assume", "lower", "--victims", "8")


@pytest.fixture
def recorded(home: Path) -> Run:
    vision_fit.fit(
        home, 2, strategy="SFL", record_attacks=True, steps_per_round=1, num_server_rounds=1,
        samples_per_client=32, batch_size=8,
    )  # fmt: skip
    run = next(run for run in Run.all(home) if run.config.get("strategy") == "SFL")
    write_facts(run, {"clients": 2})
    return run


def test_an_attack_that_was_cut_short_says_so(splitmix: Splitmix, recorded: Run) -> None:
    """It must not pass for one of full effort that found nothing."""
    cut = (*DECODER, "--scale", "cpu", "--seconds", "0")
    result = splitmix("attack", "run", recorded.id, *cut)
    assert result.exit_code == 0, result.output
    assert "stopped after 0." in " ".join(result.stdout.split())
    assert "before its full effort" in result.stderr
    shown = " ".join(splitmix("attack", "show", recorded.id).stdout.split())
    assert "scale cpu, seed 0, 24 samples, --victims 8, stopped after 0." in shown
    assert "that it does not beat a floor is no evidence" in shown
    entries = json.loads(splitmix("attack", "run", recorded.id, *cut, "--format", "json").stdout)
    assert entries[0]["stopped_after"] >= 0


def test_a_result_that_was_cut_short_does_not_replace_a_complete_one(
    splitmix: Splitmix, recorded: Run
) -> None:
    result = splitmix("attack", "run", recorded.id, *DECODER)
    assert (result.exit_code, "stopped" in result.stdout + result.stderr) == (0, False), (
        result.output
    )
    (scores,) = attacks_dir(recorded).glob("results/*/scores.json")
    complete = scores.read_text(encoding="utf-8")
    assert json.loads(complete)["stopped_after"] is None
    cut = splitmix("attack", "run", recorded.id, *DECODER, "--seconds", "0")
    assert cut.exit_code == 0, cut.output
    assert "this result is not kept" in cut.stderr
    assert scores.read_text(encoding="utf-8") == complete


def test_a_recording_that_is_removed_during_an_attack_does_not_come_back(
    splitmix: Splitmix, recorded: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise private images would be written to a folder that `attack forget` has removed."""

    def forgetting(*arguments: Any, **options: Any) -> Any:
        forget(recorded)
        return run(*arguments, **options)

    run = images.run_on_images
    monkeypatch.setattr(images, "run_on_images", forgetting)
    result = splitmix("attack", "run", recorded.id, *LINEAR)
    assert result.exit_code == 1
    assert result.stderr.endswith(
        f"the recording of run {recorded.id} was removed during the attack, so its result is not "
        "kept\n"
    )
    assert "MSE" in result.stdout
    assert not attacks_dir(recorded).exists()


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_result_that_cannot_be_written_is_printed_first(
    form: str, splitmix: Splitmix, recorded: Run
) -> None:
    """Otherwise the scores of the whole attack would be lost."""
    blocked = attacks_dir(recorded) / "results"
    blocked.touch()  # a file where the folder should be
    result = splitmix("attack", "run", recorded.id, *LINEAR, "--format", form)
    assert (result.exit_code, "MSE" in result.stdout) == (1, True)
    message = result.stderr.splitlines()[-1]
    assert message.startswith(f"the result could not be kept: {blocked}")
    assert message.endswith("run the attack again")
