"""The apps that `splitmix new` writes: they are those of the repository, and they train."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest
from flwr.app import ArrayRecord
from typer.testing import CliRunner

from flwr_splitmix.apps.checking.app import check_app
from flwr_splitmix.apps.language.client import client_fn as text_client
from flwr_splitmix.apps.language.config import LanguageConfig
from flwr_splitmix.apps.language.server import build_trunk, initial_arrays, make_strategy
from flwr_splitmix.cli import app
from flwr_splitmix.cli.apps.new import FILES, Template
from tests.apps.app_config import APPS
from tests.apps.language_app import TINY
from tests.apps.vision_app import context

SOURCES = {
    "vision": APPS / "vision",
    "language": APPS / "language",
    "own": APPS.parent / "examples" / "other_project",
}


def make(kind: str, folder: Path) -> Path:
    result = CliRunner().invoke(app, ["new", kind, str(folder)])
    assert result.exit_code == 0, result.output
    assert "splitmix run" in result.output
    has_keys = (
        "config" in tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    )
    assert ("Its keys are in" in result.output) is has_keys
    return folder


@pytest.mark.parametrize("kind", [kind.value for kind in Template])
def test_an_app_is_the_repositorys_under_another_name(kind: str, tmp_path: Path) -> None:
    folder = make(kind, tmp_path / "my-app")
    assert sorted(file.name for file in folder.iterdir()) == sorted(FILES)
    for name in FILES:
        original = (SOURCES[kind] / name).read_text(encoding="utf-8")
        assert (files("flwr_splitmix.templates") / kind / name).read_text() == original
        if name != "pyproject.toml":
            assert (folder / name).read_text(encoding="utf-8") == original
    written, source = (
        tomllib.loads((place / "pyproject.toml").read_text(encoding="utf-8"))
        for place in (folder, SOURCES[kind])
    )
    assert written["project"].pop("name") == "my-app"
    assert source["project"].pop("name") != "my-app"
    assert written == source


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    folder = make("own", tmp_path / "mine")
    original = (folder / "client_app.py").read_text()
    again = CliRunner().invoke(app, ["new", "vision", str(folder)])
    assert again.exit_code == 1
    assert "exists already" in again.stderr
    assert (folder / "client_app.py").read_text() == original


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    cases = {
        tmp_path / "file" / "abc": "cannot be written: Not a directory; name another folder",
        tmp_path / "link": "exists already",
    }
    for folder, message in cases.items():
        result = CliRunner().invoke(app, ["new", "own", str(folder)])
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1), result.exception
        assert result.stderr.startswith(f"{folder} {message}")


def test_a_name_that_flower_would_refuse_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["new", "own", str(tmp_path / ("a" * 33))])
    assert result.exit_code == 1
    assert "it must be up to 32 small letters, digits and '-'" in result.stderr
    assert not list(tmp_path.iterdir())
    make("own", tmp_path / ("a" * 32))


def test_a_name_that_no_package_may_have_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["new", "own", str(tmp_path / "My App")])
    assert result.exit_code == 1
    assert "'My App' is not an app's name" in result.stderr
    assert not list(tmp_path.iterdir())
    result = CliRunner().invoke(app, ["new", "own", str(tmp_path / "2nd")])
    assert (result.exit_code, "with a letter first" in result.stderr) == (1, True)


def test_the_commands_to_try_can_be_pasted(tmp_path: Path) -> None:
    folder = tmp_path / "my apps" / "mine"
    result = CliRunner().invoke(app, ["new", "own", str(folder)])
    assert f"splitmix check '{folder}'" in result.output
    assert f"splitmix run '{folder}' --nodes 4" in result.output


def test_a_refusal_does_not_load_torch(tmp_path: Path) -> None:
    script = (
        "import sys; from typer.testing import CliRunner; from flwr_splitmix.cli import app\n"
        f"done = CliRunner().invoke(app, ['new', 'own', {str(tmp_path)!r}])\n"
        "assert done.exit_code == 1, done.output\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_an_app_of_ones_own_is_checked_and_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make("own", tmp_path / "mine")
    report = check_app(folder, here=tmp_path, nodes=4)
    assert report.problems == []
    assert report.facts["client 0"].startswith("1500 training examples in batches of 50")
    assert "16 patches x 64" in report.facts["lower segment"]
    monkeypatch.syspath_prepend(str(folder))
    client_app = importlib.import_module("client_app")
    try:
        from torch import nn

        from flwr_splitmix.strategies import CutMixSFL

        clients = [client_app.client_fn(context(i, 4, {})) for i in range(4)]
        upper = nn.Sequential(nn.Flatten(), nn.Linear(16 * 64, 10))
        strategy = CutMixSFL(upper, num_classes=10, steps_per_round=2, device="cpu")
        strategy.fit(clients, 1, initial_arrays=ArrayRecord(clients[0].segment.state_dict()))
        (row,) = strategy.rows
        assert (row["clients_alive"], row["steps"]) == (4, 2)
    finally:
        importlib.sys.modules.pop("client_app")  # type: ignore[attr-defined]


def test_a_segment_that_cannot_train_on_one_example_is_checked(tmp_path: Path) -> None:
    folder = make("own", tmp_path / "mine")
    file = folder / "client_app.py"
    code = file.read_text(encoding="utf-8")
    flat = "nn.BatchNorm1d(1024)(super().forward(images).flatten(1)).unflatten(1, (16, 64))"
    changed = code.replace("super().forward(images).flatten(2).mT", flat)
    assert changed != code
    file.write_text(changed, encoding="utf-8")
    report = check_app(folder, here=tmp_path, nodes=4)
    assert report.problems == []
    assert "16 patches x 64" in report.facts["lower segment"]


def test_a_language_app_is_checked_and_trains(tmp_path: Path) -> None:
    folder = make("language", tmp_path / "words")
    assert check_app(folder, here=tmp_path).ok
    described = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    tiny = {name.replace("_", "-"): value for name, value in TINY.items()}
    values = {**described["tool"]["flwr"]["app"]["config"], **tiny}
    config = LanguageConfig.read(values)
    clients = [text_client(context(i, 2, values)) for i in range(2)]
    strategy = make_strategy(config, build_trunk(config), None)
    strategy.fit(clients, 1, initial_arrays=initial_arrays(config))
    (row,) = strategy.rows
    assert (row["clients_alive"], row["steps"]) == (2, 1)
