"""An app's files as modules of the test's own process: the apps are not in the wheel."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

APPS = Path(__file__).resolve().parents[2] / "apps"


@cache
def app_module(app: str, name: str) -> ModuleType:
    """Import one file of an app; its own imports find the app's other files."""
    folder = APPS / app
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    if name.startswith(f"{app}_"):
        return importlib.import_module(name)
    # Every app has a server_app and a client_app: each gets a name of its own.
    spec = importlib.util.spec_from_file_location(f"splitmix_{app}_{name}", folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def app_run_config(app: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return an app's run configuration with some keys changed (`_` for `-`)."""
    described = tomllib.loads((APPS / app / "pyproject.toml").read_text())
    changed = {name.replace("_", "-"): value for name, value in overrides.items()}
    return {**described["tool"]["flwr"]["app"]["config"], **changed}
