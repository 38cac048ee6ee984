"""Clients of another app, imported because the SuperLink was started in its folder, are refused."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flwr_splitmix.clients import ClientError
from flwr_splitmix.links.ray.shadowed import check_own_modules


def app(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return str(folder)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]


OWN = "def client_fn(context):\n    pass\n"


@pytest.mark.parametrize("module", ["shadowed_client", "shadowed_package.client_app"])
@pytest.mark.parametrize(
    ("differs", "is_app"),
    [("client_fn", True), ("helper", True), ("nothing", True), ("client_fn", False)],
)
def test_files_of_another_app_are_named(
    module: str, differs: str, is_app: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the run would train the other app's clients, without a word."""
    file = f"{module.replace('.', '/')}.py"
    files = {file: f"import shadowed_helper\n{OWN}", "shadowed_helper.py": "N = 1\n"}
    if "." in module:
        files["shadowed_package/__init__.py"] = ""
    changed = {"client_fn": {file: OWN}, "helper": {"shadowed_helper.py": ""}, "nothing": {}}
    folder = app(tmp_path / "first", files)
    described = {"pyproject.toml": "[tool.flwr.app]\n" if is_app else "[project]\n"}
    run = app(tmp_path / "second", described | files | changed[differs])
    monkeypatch.setattr(sys, "path", [folder, *sys.path, run])
    client_fn = importlib.import_module(module).client_fn
    if differs == "nothing" or not is_app:
        check_own_modules(client_fn)
        return
    name = next(iter(changed[differs]))
    with pytest.raises(ClientError, match="started in the folder of another app") as caught:
        check_own_modules(client_fn)
    assert str(caught.value).startswith(
        f"{folder}/{name} was imported, but the app that is run has"
    )
    assert f"({run}/{name})" in str(caught.value)


def test_modules_of_installed_packages_stand_alone() -> None:
    from flwr_splitmix.apps.vision.client import client_fn

    check_own_modules(client_fn)
    check_own_modules(lambda context: None)
