"""A recorded run of apps/vision in the U shape: every label is read by replaying the tails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flwr_splitmix.apps.vision.attacked import attacked_run
from flwr_splitmix.apps.vision.attacked_ushape import AttackedImages
from flwr_splitmix.attacks.base import Guess
from flwr_splitmix.attacks.case import Case
from flwr_splitmix.attacks.fitted import Budget, NotApplicable
from flwr_splitmix.attacks.images.labels_replay import LabelsReplay
from flwr_splitmix.attacks.tails import TailReplay
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.attack_recording import trace_dir
from tests.apps.test_vision_ushape_attacked import attack, measured
from tests.apps.ushape_fit import fit

RECORDED: dict[str, Any] = {
    "num_server_rounds": 3,
    "steps_per_round": 2,
    "batch_size": 6,
    "samples_per_client": 18,
    "record_attacks": True,
    "dataset": "fashion-mnist-small",
}


def case_of(run: Run) -> Case:
    """Return the case of all recorded images, and of no others."""
    attacked = attacked_run(run)
    assert isinstance(attacked, AttackedImages)
    return attacked.case("server", trained=72, held_out=0)


def guess_of(case: Case, budget: Budget | None = None) -> Guess:
    replay = LabelsReplay()
    replay.fit(case.view, None, budget or Budget("smoke"))
    return replay.run(case.view)


def read_by_round(case: Case, guess: Guess) -> dict[int, float]:
    """Return the share of labels that are right, by round."""
    right: dict[int, list[bool]] = {}
    for label, (number, row) in zip(guess.values.tolist(), guess.where, strict=True):
        source = int(case.truth.origins[number].sources[row, 0])
        matches = right.setdefault(case.view.releases[number].server_round, [])
        matches.append(label == int(case.truth.pictures.labels[source]))
    return {server_round: sum(matches) / len(matches) for server_round, matches in right.items()}


def said_of_clients(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if message.startswith("client ")]


def without(run: Run, *places: tuple[int, int]) -> None:
    """Remove steps of a recording."""
    for server_round, number in places:
        (trace_dir(run) / f"step-{server_round:06d}-{number:06d}.safetensors").unlink()


@pytest.mark.parametrize("strategy", ["USplitSL", "USplitFL", "NaiveMixSL", "NoPeekSL"])
def test_all_labels_of_all_rounds_are_read_and_none_is_given(
    strategy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fitted = fit(tmp_path, **RECORDED, strategy=strategy)
    case = case_of(fitted.run)
    guess = guess_of(case)
    assert len(guess.where) == 2 * 3 * 2 * 6
    assert read_by_round(case, guess) == {1: 1.0, 2: 1.0, 3: 1.0}
    assert float(guess.confidence.min()) > 0
    assert said_of_clients(caplog) == []


def test_the_replayed_tail_is_the_clients_own(tmp_path: Path) -> None:
    fitted = fit(tmp_path, **RECORDED, strategy="USplitSL")
    tails = case_of(fitted.run).view.tails
    assert tails is not None
    replay = TailReplay(tails, 1)
    for step in tails.steps():
        replay.meet(step)
        assert replay.follow(step).misfit < 1e-3
    parameters = dict(fitted.clients[1].tail.named_parameters())
    for name, parameter in replay.tail.named_parameters():
        torch.testing.assert_close(parameter, parameters[name], rtol=0, atol=1e-5)


def test_the_command_shows_it(tmp_path: Path) -> None:
    fitted = fit(tmp_path, **RECORDED, strategy="USplitFL")
    (entry,) = measured(attack(fitted, "--attack", "labels-replay", "--victims", "24")).values()
    assert (entry["metric"], entry["value"]) == ("labels read", 1.0)


def test_without_a_recording_it_does_not_apply(tmp_path: Path) -> None:
    fitted = fit(tmp_path, **{**RECORDED, "record_attacks": False}, strategy="USplitSL")
    refused = attack(fitted, "--attack", "labels-replay", "--victims", "12", "--assume", "lower")
    assert refused.exit_code == 1
    assert "record-attacks=true" in " ".join(refused.output.split())


def test_where_tails_alone_learn_nothing_is_returned(tmp_path: Path) -> None:
    fitted = fit(tmp_path, **RECORDED, strategy="USplitFL", learns="tail")
    with pytest.raises(NotApplicable, match="no gradients"):
        guess_of(case_of(fitted.run))


def test_a_recording_that_begins_late_says_so_unless_tails_are_averaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fitted = fit(tmp_path / "own", **RECORDED, strategy="USplitSL")
    without(fitted.run, (1, 0))
    with pytest.raises(NotApplicable, match="begins with step 1 of round 1, and its tail is not"):
        guess_of(case_of(fitted.run))
    averaged = fit(tmp_path / "averaged", **RECORDED, strategy="USplitFL")
    without(averaged.run, *((1, number) for number in range(2)))
    case = case_of(averaged.run)
    shares = read_by_round(case, guess_of(case))
    assert shares.keys() == {2, 3}
    assert min(shares.values()) > 0.9
    assert any("steps before step 0 of round 2 are missing" in line for line in caplog.messages)


def test_a_missing_step_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fitted = fit(tmp_path, **RECORDED, strategy="USplitSL")
    without(fitted.run, (2, 0))
    case = case_of(fitted.run)
    shares = read_by_round(case, guess_of(case))
    assert shares[1] == 1
    assert shares[3] > 0.5
    first, second = said_of_clients(caplog)
    assert first.startswith("client 0: from step 1 of round 2 on")
    assert second.startswith("client 1: from step 1 of round 2 on")
    assert "steps before step 1 of round 2 are missing" in first


def test_a_spent_budget_leaves_labels_of_a_tail_that_no_longer_learns(tmp_path: Path) -> None:
    fitted = fit(tmp_path, **RECORDED, strategy="USplitSL")
    case = case_of(fitted.run)
    budget = Budget("smoke")
    budget.stop.set()
    guess = guess_of(case, budget)
    assert len(guess.where) == 72
    assert budget.cut.is_set()
