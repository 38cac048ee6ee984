"""The folders of the apps, and their run configurations."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

APPS = Path(__file__).resolve().parents[2] / "apps"


def app_run_config(app: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return an app's run configuration with some keys changed (`_` for `-`)."""
    described = tomllib.loads((APPS / app / "pyproject.toml").read_text(encoding="utf-8"))
    changed = {name.replace("_", "-"): value for name, value in overrides.items()}
    return {**described["tool"]["flwr"]["app"]["config"], **changed}
