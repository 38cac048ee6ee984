"""Files of a matrix that are damaged, or of a victim that was copied in part."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flwr_splitmix.cli import app
from flwr_splitmix.experiments.privacy.cells import MatrixCell, Place
from flwr_splitmix.experiments.privacy.grid import run_tasks
from flwr_splitmix.experiments.privacy.named import PRIVACY_EXPERIMENTS
from flwr_splitmix.experiments.privacy.noise import chosen_noise
from flwr_splitmix.experiments.privacy.rows import ROWS
from flwr_splitmix.experiments.privacy.tasks import Task
from flwr_splitmix.experiments.privacy.texts.rows import TEXT_ROWS, EqualRow
from flwr_splitmix.experiments.privacy.texts.sizes import SUMS, TEXT_SIZES
from flwr_splitmix.files.writing import write_json
from flwr_splitmix.runs import RunError
from tests.experiments.privacy.test_matrix import DECODER, place_in

ROW = TEXT_ROWS["NoPeekSL-equal"]
assert isinstance(ROW, EqualRow)
SEARCHED = ROW.with_noise(1.0)


@pytest.fixture
def trained(tmp_path: Path) -> Place:
    """Return a place where the noise of a row was found, and its victim was trained for that."""
    place = Place(tmp_path, TEXT_SIZES["smoke"], SUMS)
    write_json(place.noise(ROW), {"dcor_weight": 1.0})
    folder = place.victim(SEARCHED, 0)
    folder.mkdir(parents=True)
    (folder / "victim.safetensors").write_bytes(b"x" * 1000)
    write_json(folder / "done.json", {"accuracy": 0.5, "training_seconds": 3.0})
    return place


def failures_of(task: Task, place: Place) -> list[str]:
    failures = run_tasks([task], place, apart=False, on_progress=lambda _: None)
    return [progress.words for progress in failures]


def test_a_victim_that_was_copied_in_part_is_not_done(
    trained: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, copy = Task("victim", ROW, 0), shutil.copyfile

    def full(source: os.PathLike[str], target: str, **options: bool) -> str:
        if not target.endswith(".safetensors"):
            return str(copy(source, target, **options))
        Path(target).write_bytes(b"x" * 10)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", full)
        (words,) = failures_of(task, trained)
    assert "No space left on device" in words
    assert not task.done(trained)
    assert failures_of(task, trained) == []
    assert task.done(trained)
    copied = {file.name: file.read_bytes() for file in trained.victim(ROW, 0).iterdir()}
    assert copied == {f.name: f.read_bytes() for f in trained.victim(SEARCHED, 0).iterdir()}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"accura', "its JSON is damaged at line 1, column 2"),
        ("[]", "it holds no JSON object"),
        ("{}", "no 'accuracy'"),
        ('{"accuracy": "good"}', "could not convert string to float: 'good'"),
    ],
)
def test_a_damaged_utility_is_named_with_its_remedy(
    content: str, reason: str, trained: Place
) -> None:
    file = trained.victim(SEARCHED, 0) / "done.json"
    file.write_text(content)
    (words,) = failures_of(Task("victim", ROW, 0), trained)
    assert words == f"cannot read {file}: {reason}; remove it, and the victim is trained again"


@pytest.mark.parametrize("content", ["", "[]", '{"row": "DPSL"}', '{"sigma_s": "much"}'])
def test_damaged_noise_is_named_with_its_remedy(content: str, tmp_path: Path) -> None:
    place = place_in(tmp_path)
    file = place.noise(ROWS["DPSL"])
    file.parent.mkdir(parents=True)
    file.write_text(content)
    with pytest.raises(RunError) as raised:
        chosen_noise(ROWS["DPSL"], place, "sigma_s")
    assert str(raised.value).startswith(f"cannot read {file}: ")
    assert str(raised.value).endswith("; remove it, and the noise is searched for again")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "its JSON is damaged at line 1, column 1"),
        ("[]", "it holds no JSON object"),
        ("{}", "no 'state'"),
        ('{"state": "half"}', "state is 'half'"),
        ('{"state": "done"}', "no 'metrics'"),
        ('{"state": "not applicable"}', "no 'reason'"),
        ('{"state": "done", "metrics": [{"metric": "MSE"}]}', "no 'value'"),
        (
            '{"state": "done", "metrics": [{"metric": "MSE", "value": null}]}',
            "value is None, which is not a number",
        ),
        (
            '{"state": "done", "metrics": [], "accuracy": "good"}',
            "could not convert string to float: 'good'",
        ),
    ],
)
@pytest.mark.parametrize("command", ["matrix", "experiment"])
def test_a_damaged_cell_is_named_with_its_remedy(
    command: str, content: str, reason: str, tmp_path: Path
) -> None:
    if command == "matrix":
        cell = MatrixCell(ROWS["PSL"], DECODER, 0)
        typed = ["attack", "matrix", "images", "--cells", "PSL:decoder", "--show"]
    else:
        _, cell = next(PRIVACY_EXPERIMENTS["cutmixsl-table3"].cells([0]))
        typed = ["experiment", "show", "cutmixsl-table3", "--scale", "smoke"]
    file = cell.file(place_in(tmp_path))
    file.parent.mkdir(parents=True)
    file.write_text(content)
    shown = CliRunner().invoke(app, [*typed, "--run-dir", str(tmp_path)])
    assert (shown.exit_code, shown.stdout) == (1, ""), shown.exception
    assert shown.stderr == f"cannot read {file}: {reason}; remove it, and the cell is run again\n"
