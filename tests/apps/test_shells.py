"""The app folders hold shells: what they do is in the library, and Flower finds it there."""

from __future__ import annotations

import ast
import importlib.util
import pickletools
import sys
import tomllib
from types import ModuleType

import pytest
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from ray import cloudpickle

from flwr_splitmix import SplitClientApp
from tests.apps.app_config import APPS

KINDS = {"serverapp": ServerApp, "clientapp": ClientApp}

every_app = pytest.mark.parametrize("app", ["vision", "language"])


def shell(app: str, name: str) -> ModuleType:
    """Load one file of an app; every app has a server_app and a client_app."""
    file = APPS / app / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"shell_{app}_{name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@every_app
def test_a_shell_has_the_component_that_flower_is_told_of(app: str) -> None:
    described = tomllib.loads((APPS / app / "pyproject.toml").read_text(encoding="utf-8"))
    components = described["tool"]["flwr"]["app"]["components"]
    assert components.keys() == KINDS.keys()
    for component, place in components.items():
        name, attribute = place.split(":")
        assert isinstance(getattr(shell(app, name), attribute), KINDS[component])


@every_app
def test_a_shell_imports_the_library_and_flower_only(app: str) -> None:
    """Then nothing loads torch before the library does."""
    for file in (APPS / app).glob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        imported = {
            name.split(".")[0]
            for node in ast.walk(tree)
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [str(node.module)]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        assert imported <= {"flwr", "flwr_splitmix", *sys.stdlib_module_names}, file


@every_app
def test_a_host_finds_client_fn_by_its_name(app: str) -> None:
    """Without the app's folder on its path: what travels is the name of a place in the library."""
    component = shell(app, "client_app").app
    assert isinstance(component, SplitClientApp)
    pickled = cloudpickle.dumps(component.client_fn)  # type: ignore[no-untyped-call]
    assert {name for _, name, _ in pickletools.genops(pickled) if isinstance(name, str)} == {
        f"flwr_splitmix.apps.{app}.client",
        "client_fn",
    }
