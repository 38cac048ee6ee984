"""An export's folder: what may be removed of it, and what its description must have."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.runs.export.description import read_description
from flwr_splitmix.runs.export.folder import (
    FACTS,
    ExportError,
    check_files,
    new_folder,
    read_facts,
)


def described(folder: Path, **facts: Any) -> Path:
    folder.mkdir()
    (folder / FACTS).write_text(json.dumps({"format": 1, **facts}), encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", ["..", ".", "", "../other", "/etc", "a\\b", 3, "sub/.."])
def test_a_description_that_names_no_file_removes_nothing(name: object, tmp_path: Path) -> None:
    target = described(tmp_path / "model", files=[name])
    (target / "mine.txt").touch()
    with (
        pytest.raises(ExportError, match="not a file's name; choose another folder"),
        new_folder(target, force=True),
    ):
        pytest.fail("it began to export")
    assert sorted(file.name for file in target.iterdir()) == ["mine.txt", FACTS]
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_only_what_an_export_writes_is_removed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").touch()
    names = ["mine.txt", "kept", "model.onnx", "vocab.json", "lower.safetensors",
             "additional_chat_templates"]  # fmt: skip
    target = described(tmp_path / "model", files=[*names, FACTS])
    (target / "kept").mkdir()
    for name in names[:1] + names[2:4]:
        (target / name).touch()
    for name in names[4:]:
        (target / name).symlink_to(other)
    with new_folder(target, force=True) as folder:
        (folder / "README.md").touch()
    assert sorted(file.name for file in target.iterdir()) == ["README.md", "kept", "mine.txt"]
    assert [file.name for file in other.iterdir()] == ["mine.txt"]


def test_an_interrupted_export_leaves_no_folder_that_claims_to_be_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = described(tmp_path / "model", files=["config.json", "vocab.json", FACTS])
    for name in ("config.json", "mine.txt", "vocab.json"):
        (target / name).touch()
    remove = Path.unlink

    def interrupted(file: Path, missing_ok: bool = False) -> None:
        if file.name == "vocab.json":
            raise KeyboardInterrupt
        remove(file, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", interrupted)
        with pytest.raises(KeyboardInterrupt), new_folder(target, force=True) as folder:
            (folder / FACTS).touch()
    with pytest.raises(ExportError, match="holds no exported model"):
        read_facts(target)
    with new_folder(target, force=True) as folder:
        (folder / FACTS).touch()
    assert sorted(file.name for file in target.iterdir()) == ["mine.txt", FACTS]


def test_of_two_exports_at_once_the_slower_one_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "model"
    slower = new_folder(target)
    (slower.__enter__() / "README.md").touch()
    with new_folder(target) as folder:
        (folder / FACTS).write_text('{"format": 1}')
    with pytest.raises(ExportError, match=f"^{target} is not empty"):
        slower.__exit__(None, None, None)
    assert [file.name for file in tmp_path.rglob("*")] == ["model", FACTS]


def test_files_that_are_no_list_are_refused(tmp_path: Path) -> None:
    target = described(tmp_path / "model", files=3)
    with pytest.raises(ExportError, match="lists 3 among"), new_folder(target, force=True):
        pytest.fail("it began to export")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"format": 1, "files": ["\\ud800"]}'])
def test_a_description_that_cannot_be_read_is_said(text: str, tmp_path: Path) -> None:
    folder = described(tmp_path / "model")
    (folder / FACTS).write_text(text, encoding="utf-8")
    with (
        pytest.raises(ExportError, match=f"cannot read {folder / FACTS}: "),
        new_folder(folder, force=True),
    ):
        pytest.fail("it began to export")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "model"
    message = rf"{target} cannot be made \(.*\); choose a folder that can be written"
    with pytest.raises(ExportError, match=message), new_folder(target):
        raise AssertionError


@pytest.mark.parametrize("name", [FACTS, "lower.safetensors", "model.safetensors", "config.json"])
@pytest.mark.usefixtures("impatient")
def test_a_pipe_is_no_file_of_a_model(name: str, tmp_path: Path) -> None:
    target = described(tmp_path / "model")
    (target / name).unlink(missing_ok=True)
    os.mkfifo(target / name)
    with pytest.raises(ExportError) as raised:
        read_description(target)
    assert str(raised.value) == (
        f"cannot read {target / name}: it is not a regular file; export the run again"
    )


@pytest.mark.usefixtures("impatient")
def test_a_pipe_of_another_name_is_left_alone(tmp_path: Path) -> None:
    target = described(tmp_path / "model")
    os.mkfifo(target / "mine")
    check_files(target)
