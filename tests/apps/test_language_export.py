"""A run's model, exported, is what transformers loads and what the run had learned."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from flwr_splitmix.apps.language.export import main
from flwr_splitmix.clients import UShapeClient
from tests.apps.language_app import APP, Fitted, fit

DESCRIBED = APP / "pyproject.toml"


def run_of(fitted: Fitted) -> Any:
    assert fitted.strategy.recorder.run is not None
    return fitted.strategy.recorder.run


def export(fitted: Fitted, folder: Path, *arguments: str) -> int:
    run = run_of(fitted)
    home = run.path.parents[1]
    return main(DESCRIBED, [run.id, str(folder), "--run-dir", str(home), *arguments])


@torch.no_grad()
def logits_of(fitted: Fitted, client: UShapeClient, ids: torch.Tensor) -> torch.Tensor:
    mask = torch.ones_like(ids)
    trunk = fitted.strategy.trunk.module
    for part in (client.head, trunk, client.tail):
        part.eval()
    said: torch.Tensor = client.tail(trunk(client.head(ids, mask), mask), mask)
    return said


@torch.no_grad()
def answer(model: Any, ids: torch.Tensor) -> torch.Tensor:
    said: torch.Tensor = model.eval()(ids).logits
    return said


@pytest.mark.parametrize("task", ["classification", "generation"])
@pytest.mark.parametrize("options", [{}, {"lora_rank": 2}], ids=str)
def test_what_was_averaged_is_exported(task: str, options: dict[str, Any], tmp_path: Path) -> None:
    fitted = fit(tmp_path, strategy="USplitFL", task=task, lr=0.01, steps_per_round=3, **options)
    assert export(fitted, tmp_path / "model") == 0
    auto = AutoModelForCausalLM if task == "generation" else AutoModelForSequenceClassification
    model = auto.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    ids = torch.tensor([tokenizer("the cat sees a dog")["input_ids"]])
    client = fitted.clients[0]
    client.ends.load(averaged(fitted), "the averaged weights do not fit")
    logits = answer(model, ids)
    torch.testing.assert_close(logits, logits_of(fitted, client, ids), rtol=1e-4, atol=1e-5)


def averaged(fitted: Fitted) -> dict[str, torch.Tensor]:
    record = fitted.result.arrays
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}


def test_a_clients_own_head_and_tail_are_exported(tmp_path: Path) -> None:
    fitted = fit(tmp_path, strategy="USplitSL", task="generation", lr=0.01, steps_per_round=3)
    assert export(fitted, tmp_path / "model", "--client", "1") == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    ids = torch.arange(3, 9)[None]
    logits = answer(model, ids)
    torch.testing.assert_close(
        logits, logits_of(fitted, fitted.clients[1], ids), rtol=1e-4, atol=1e-5
    )
    other = logits_of(fitted, fitted.clients[0], ids)
    assert (logits - other).abs().max() > 1e-3


def test_what_cannot_be_exported_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted = fit(tmp_path, strategy="USplitSL", task="generation")
    assert export(fitted, tmp_path / "model") == 1
    assert "USplitSL leaves heads and tails with their clients; name one" in capsys.readouterr().err
    assert export(fitted, tmp_path / "model", "--client", "7") == 1
    assert "there is no state of client 7 here" in capsys.readouterr().err
    assert main(DESCRIBED, ["nothing", str(tmp_path), "--run-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    taken = tmp_path / "a_file"
    taken.touch()
    assert export(fitted, taken, "--client", "0") == 1
    assert "is no folder; the model needs one" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_the_command_exports_a_run_from_before_a_key_was_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted = fit(tmp_path / "runs", strategy="USplitFL")
    file = run_of(fitted).path / "config.json"
    config = json.loads(file.read_text())
    del config["support-scale"]
    file.write_text(json.dumps(config))
    command = str(APP / "export_run.py")
    folder = str(tmp_path / "model")
    options = ["--run-dir", str(run_of(fitted).path.parents[1])]
    monkeypatch.setattr(sys, "argv", [command, run_of(fitted).id, folder, *options])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_path(command, run_name="__main__")
    assert capsys.readouterr().out.startswith(f"{folder}: load it with transformers")
    AutoModelForCausalLM.from_pretrained(folder)
