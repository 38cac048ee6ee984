"""Damaged recordings and results of attacks: each file is named with its remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result

from flwr_splitmix.runs import Run
from flwr_splitmix.runs.attack_recording import attacks_dir, write_facts
from flwr_splitmix.storage import save_tensors
from tests.apps.app_config import app_run_config

Splitmix = Callable[..., Result]


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ("", "its JSON is damaged at line 1, column 1"),
        ("[]", "it holds no JSON object"),
        ("{}", "method: Field required"),
        ('{"method": "SFL", "attack": "x", "adversary": "y", "measures": [{"metric": 3}]}',
         "measures.0.metric: Input should be a valid string"),
    ],
)  # fmt: skip
def test_damaged_scores_are_named_with_their_remedy(
    scores: str, message: str, splitmix: Splitmix, finished: Run
) -> None:
    file = attacks_dir(finished) / "results" / "linear-server" / "scores.json"
    file.parent.mkdir(parents=True)
    file.write_text(scores, encoding="utf-8")
    result = splitmix("attack", "show", finished.id)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.startswith(f"cannot read {file}: {message}")
    assert "; remove the folder that it is in, and run the attack again" in result.stderr


def test_a_field_of_a_later_version_is_no_damage(splitmix: Splitmix, finished: Run) -> None:
    measure = {"metric": "MSE", "value": 1.0, "low": 0.9, "high": 1.1, "floor": 2.0, "new": 3}
    scores = {"method": "SFL", "attack": "x", "adversary": "y", "measures": [measure], "new": 3}
    folder = attacks_dir(finished) / "results" / "x-y"
    folder.mkdir(parents=True)
    (folder / "scores.json").write_text(json.dumps(scores), encoding="utf-8")
    assert "MSE" in splitmix("attack", "show", finished.id).stdout


def test_small_numbers_have_digits(splitmix: Splitmix, finished: Run) -> None:
    """As 0.0000, 2e-10 and 4e-5 would look the same."""
    measure = {"metric": "MSE", "value": 2e-10, "low": 1e-10, "high": 4e-5, "floor": 0.9375}
    scores = {"method": "SFL", "attack": "x", "adversary": "y", "measures": [measure]}
    folder = attacks_dir(finished) / "results" / "x-y"
    folder.mkdir(parents=True)
    (folder / "scores.json").write_text(json.dumps(scores), encoding="utf-8")
    shown = " ".join(splitmix("attack", "show", finished.id).stdout.split())
    assert "MSE 2e-10 1e-10 .. 4e-05 - - 0.9375" in shown
    forgotten = splitmix("attack", "forget", finished.id).stdout
    assert forgotten.startswith(f"removed all results of attacks on run {finished.id}: ")


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("victims", torch.zeros(3, dtype=torch.int64)),
        ("errors", torch.zeros(2, 2)),
        ("sent", torch.zeros(2, 1, 8, 9, dtype=torch.uint8)),
        ("guesses", torch.zeros(2, 1, 8, 8)),
        ("originals", torch.zeros(0, dtype=torch.uint8)),
    ],
)
def test_pictures_of_other_shapes_are_named(
    name: str, changed: torch.Tensor, splitmix: Splitmix, finished: Run
) -> None:
    pictures = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    arrays = dict.fromkeys(("originals", "sent", "guesses"), pictures)
    arrays |= {"victims": torch.arange(2), "errors": torch.zeros(2), name: changed}
    names = dict.fromkeys(("method", "attack", "adversary"), "x")
    folder = attacks_dir(finished) / "results" / "x-y"
    folder.mkdir(parents=True)
    (folder / "scores.json").write_text(json.dumps({**names, "measures": []}), encoding="utf-8")
    save_tensors(folder / "pictures.safetensors", arrays, names)
    result = splitmix("attack", "show", finished.id, "-o", str(folder / "grid.png"))
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1), result.exception
    message = (
        f"cannot read {folder / 'pictures.safetensors'}: its arrays are not pictures of victims"
    )
    assert result.stderr.startswith(f"{message}; remove the folder that it is in")


@pytest.mark.parametrize("facts", [{}, {"clients": None}, {"clients": "2"}, {"clients": 0}])
def test_a_recording_without_its_number_of_clients_is_damaged(
    facts: dict[str, object], splitmix: Splitmix, finished: Run
) -> None:
    config = app_run_config("vision", {"strategy": "CutMixSL"})
    (finished.path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_facts(finished, facts)
    result = splitmix("attack", "run", finished.id, "--attack", "linear")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "recording.json: clients is " in result.stderr
    assert "record again (record-attacks)" in result.stderr


def test_what_cannot_be_forgotten_is_said(
    splitmix: Splitmix, finished: Run, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "recording.json").touch()
    for target in (elsewhere, tmp_path / "nowhere"):
        attacks_dir(finished).symlink_to(target)
        result = splitmix("attack", "forget", finished.id)
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
        assert f"is a link to {target}, so nothing was removed" in result.stderr
        attacks_dir(finished).unlink()
    assert (elsewhere / "recording.json").exists()
    attacks_dir(finished).touch()
    result = splitmix("attack", "forget", finished.id)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "is a file, so nothing was removed" in result.stderr
