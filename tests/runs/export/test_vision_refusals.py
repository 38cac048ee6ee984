"""Exports of vision models that are refused or interrupted: one sentence, and nothing is left."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from flwr_splitmix.apps.vision.export import export_vision
from flwr_splitmix.data.images.preprocessing import Preprocessing
from flwr_splitmix.runs.export import onnx_file
from flwr_splitmix.runs.export.folder import ExportError
from flwr_splitmix.runs.export.vision import LOWER
from tests.runs.export.conftest import Exported

Make = Callable[..., Exported]
Splitmix = Callable[..., Result]


@pytest.mark.parametrize("damage", ["cut short", "missing", "of another model"])
def test_damaged_weights_are_named_with_a_remedy(
    make: Make, splitmix: Splitmix, pictures: list[Path], damage: str, tmp_path: Path
) -> None:
    splitmix("export", make("CutMixSFL").run.id, tmp_path / "model")
    weights = tmp_path / "model" / LOWER
    match damage:
        case "cut short":
            weights.write_bytes(weights.read_bytes()[:100])
        case "missing":
            weights.unlink()
        case _:
            save_file({"weight": torch.zeros(1)}, weights)
    refused = splitmix("predict", tmp_path / "model", pictures[0])
    assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1), refused.output
    assert str(weights) in refused.stderr
    assert "; export the run again" in refused.stderr


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_predict_nothing(
    make: Make, splitmix: Splitmix, pictures: list[Path], value: float, tmp_path: Path
) -> None:
    """Otherwise classes would be printed with the probability nan, and the exit code be 0."""
    splitmix("export", make("CutMixSFL").run.id, tmp_path / "model")
    weights = tmp_path / "model" / LOWER
    tensors = load_file(weights)
    name = next(key for key, tensor in tensors.items() if tensor.is_floating_point())
    tensors[name].view(-1)[0] = value
    save_file(tensors, weights)
    refused = splitmix("predict", tmp_path / "model", pictures[0])
    message = (
        f"cannot read {weights}: its weights {name} have NaN or infinite numbers; export the run"
    )
    assert (refused.exit_code, refused.stderr) == (1, f"{message} again\n")


@pytest.mark.parametrize("differences", [[0.5, 0.0], [math.nan, 0.0], [0.0, math.nan]], ids=str)
def test_an_onnx_file_that_computes_otherwise_is_refused(
    make: Make,
    splitmix: Splitmix,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    differences: list[float],
) -> None:
    pytest.importorskip("onnx", reason="needs the extra `onnx`")
    computed = iter(differences)
    monkeypatch.setattr(onnx_file, "_difference", lambda *arguments: next(computed))
    monkeypatch.setattr(torch.onnx, "export", lambda *arguments, **options: None)
    refused = splitmix("export", make("CutMixSFL").run.id, tmp_path / "model", "--onnx")
    assert refused.exit_code == 1
    assert "the ONNX file computes otherwise than torch: logits differ by " in refused.stderr
    assert refused.stderr.endswith(" 0.5\n" if 0.5 in differences else " nan\n")
    assert list(tmp_path.iterdir()) == []


class Branching(nn.Module):
    """Takes another way by what the pixels are, which no graph has."""

    def forward(self, pixels: Tensor) -> Tensor:
        means: Tensor = pixels.flatten(1).mean(1, keepdim=True)
        return means if float(means.sum()) > 0.5 else -means


class ExporterError(Exception):
    """An error of a library, of a kind that nobody expects."""


def test_a_model_that_torch_cannot_export_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """Not in hundreds of lines of a traceback."""
    pytest.importorskip("onnx", reason="needs the extra `onnx`")
    steps = Preprocessing(1, (8, 8), 8, (0.5,), (0.5,))
    with pytest.raises(ExportError, match=r"torch cannot write this model .* without --onnx$"):
        onnx_file.write_onnx(tmp_path / "model.onnx", Branching(), steps)


def test_a_file_that_onnxruntime_cannot_run_is_refused_in_a_sentence(
    make: Make, splitmix: Splitmix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnx", reason="needs the extra `onnx`")

    def fail(*arguments: Any) -> float:
        raise ExporterError("index: 0 Got: 1 Expected: 3")

    monkeypatch.setattr(onnx_file, "_difference", fail)
    monkeypatch.setattr(torch.onnx, "export", lambda *arguments, **options: None)
    refused = splitmix("export", make("CutMixSFL").run.id, tmp_path / "model", "--onnx")
    assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1)
    assert (
        "cannot run the ONNX file that torch makes of this model (ExporterError): export it"
        in refused.stderr
    )
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten_unasked(make: Make, splitmix: Splitmix, tmp_path: Path) -> None:
    run, folder = make("CutMixSFL").run, tmp_path / "model"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    refused = splitmix("export", run.id, folder)
    assert refused.exit_code == 1
    assert "is not empty; choose another folder, or overwrite it with --force" in refused.stderr
    assert [file.name for file in folder.iterdir()] == ["mine.txt"]
    assert splitmix("export", run.id, folder, "--force").exit_code == 0
    refused = splitmix("export", run.id, folder)
    assert f"(run {run.id} after round 1 was exported to it)" in refused.stderr
    described = json.loads((folder / "splitmix.json").read_text())
    described["files"].append("model.onnx")  # as after --onnx, which takes its time
    (folder / "splitmix.json").write_text(json.dumps(described))
    (folder / "model.onnx").touch()
    assert splitmix("export", run.id, folder, "--force").exit_code == 0
    assert not (folder / "model.onnx").exists()
    assert (folder / "mine.txt").read_text() == "mine"
    plain_file = tmp_path / "file"
    plain_file.touch()
    refused = splitmix("export", run.id, plain_file, "--force")
    assert "is not a folder; the model needs one" in refused.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "model"]


def test_what_is_wrong_is_one_sentence(
    make: Make, splitmix: Splitmix, pictures: list[Path], tmp_path: Path
) -> None:
    run = make("CutMixSFL").run
    assert "there is no run 'nothing'" in splitmix("export", "nothing", tmp_path / "model").stderr
    assert splitmix("export", run.id, tmp_path / "model").exit_code == 0
    (tmp_path / "no.png").write_text("no picture")
    cases = {
        ("predict", tmp_path, pictures[0]): "holds no exported model (splitmix.json is missing)",
        ("predict", pictures[0], pictures[0]): "holds no exported model (splitmix.json is missing)",
        ("predict", tmp_path / "model"): 'give pictures or --text "...", one of the two',
        ("predict", tmp_path / "model", "--text", "x"): "holds a vision model; give it IMAGE...",
        ("predict", tmp_path / "model", tmp_path / "no.png"): "no.png cannot be read as a picture",
        (
            "predict",
            tmp_path / "model",
            tmp_path / "x.png",
        ): "x.png cannot be read as a picture: No",
    }
    for arguments, sentence in cases.items():
        refused = splitmix(*arguments)
        assert refused.exit_code == 1
        assert sentence in refused.stderr
        assert refused.stderr.count("\n") == 1
    (tmp_path / "model" / "lower.safetensors").write_bytes(b"nonsense")
    refused = splitmix("predict", tmp_path / "model", pictures[0])
    assert refused.exit_code == 1
    assert "lower.safetensors" in refused.stderr


def test_an_interrupted_export_leaves_nothing(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("flwr_splitmix.runs.export.vision.save", full)
    run = make("CutMixSFL").run
    with pytest.raises(OSError, match="no space left"):
        export_vision(run, tmp_path / "model", run.config, client=None, onnx=False, force=False)
    assert list(tmp_path.iterdir()) == []


def test_a_client_has_no_negative_number(make: Make, splitmix: Splitmix, tmp_path: Path) -> None:
    run = make("CutMixSFL").run
    refused = splitmix("export", run.id, tmp_path / "model", "--client", "-1")
    assert (refused.exit_code, "'--client'" in refused.stderr) == (2, True)


def test_a_full_disk_is_named_with_a_remedy(make: Make, tmp_path: Path) -> None:
    """Errno 28 alone does not help. A limit on the size of files stands in for the disk."""
    script = (
        "import resource, signal\n"
        "from flwr_splitmix.cli import app\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "app()\n"
    )
    run, folder = make("CutMixSFL").run, tmp_path / "model"
    arguments = ["export", run.id, str(folder), "--run-dir", str(run.path.parents[1])]
    process = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )
    assert (process.returncode, process.stderr) == (
        1,
        f"{folder} cannot be written (File too large); choose a folder on a disk with room\n",
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminated_export_leaves_nothing(
    number: signal.Signals,
    make: Make,
    splitmix: Splitmix,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missed: list[int] = []

    def terminated(*arguments: Any, **options: Any) -> bytes:
        os.kill(os.getpid(), number)
        return b""

    monkeypatch.setattr("flwr_splitmix.runs.export.vision.save", terminated)
    before = signal.signal(number, lambda number, frame: missed.append(number))
    try:
        completed = splitmix("export", make("CutMixSFL").run.id, tmp_path / "model")
    finally:
        signal.signal(number, before)
    assert (missed, completed.exit_code) == ([], 130)
    assert list(tmp_path.iterdir()) == []


def test_an_apps_defaults_do_not_say_what_trained_a_scripts_run(
    make: Make, splitmix: Splitmix, tmp_path: Path
) -> None:
    """A card would name the app's strategy, and what it hides, over untrained weights."""
    run = make("SFL").run
    (run.path / "config.json").write_text('{"model": "lenet5", "seed": 0}')
    app = Path(__file__).resolve().parents[3] / "apps" / "vision"
    refused = splitmix("export", run.id, tmp_path / "model", "--app", app)
    assert refused.exit_code == 1
    assert "its configuration names no strategy, and --app cannot say" in refused.stderr
    assert "run.checkpoints.load().tensors" in refused.stderr
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("changed", [{"depth": 2}, {"image-size": 64}], ids=str)
def test_a_configuration_that_does_not_fit_the_checkpoint_is_said(
    changed: dict[str, Any], make: Make, splitmix: Splitmix, tmp_path: Path
) -> None:
    run = make("CutMixSFL").run
    copy = tmp_path / "runs" / run.id
    shutil.copytree(run.path, copy)
    (copy / "config.json").write_text(json.dumps({**run.config, **changed}))
    refused = splitmix("export", run.id, tmp_path / "model", "--run-dir", tmp_path)
    assert (refused.exit_code, refused.stderr) == (
        1,
        f"run {run.id}: the checkpoint of round 1 does not fit config.json (model, depth, "
        "image-size, dataset, ...): restore it\n",
    )
    assert not (tmp_path / "model").exists()
