"""docs/configuration.md lists every key of apps/vision with the default that it has."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.strategies import STRATEGIES

ROOT = Path(__file__).parents[2]
APP = ROOT / "apps" / "vision"


def documented() -> dict[str, tuple[str, Any]]:
    """Return type and default by key, from the page's tables."""
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| (\w+) \| `([^`]+)` \|", text, re.M)
    assert len(rows) == len({key for key, _, _ in rows}), "a key is listed twice"
    return {key: (kind, tomllib.loads(f"x = {default}")["x"]) for key, kind, default in rows}


def in_app() -> dict[str, Any]:
    loaded = tomllib.loads((APP / "pyproject.toml").read_text(encoding="utf-8"))
    config: dict[str, Any] = loaded["tool"]["flwr"]["app"]["config"]
    return config


def test_keys_and_defaults_are_those_of_the_app() -> None:
    assert {key: default for key, (_, default) in documented().items()} == in_app()


def test_strategies_have_the_options_that_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(APP))
    monkeypatch.delitem(sys.modules, "vision_config", raising=False)
    app = importlib.import_module("vision_config")
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    table = text[text.index("| strategies | ") :].split("\n\n")[0].splitlines()[2:]
    said = {}
    for names, _, keys in (line.strip("|").split(" | ") for line in table):
        for name in re.findall(r"`(\w+)`", names):
            said[name] = set(re.findall(r"`([\w-]+)`", keys))
    found = {}
    for name in STRATEGIES:
        noise = {"sigma-s": 1.0, "sigma-y": 1.0} if name.startswith("DP") else {}
        values = {**in_app(), "strategy": name, **noise}
        found[name] = app.VisionConfig.read(values).own_options()
    assert said == {
        name: {option.replace("_", "-") for option in options} for name, options in found.items()
    }


def test_types_are_those_of_the_defaults() -> None:
    kinds = {"string": str, "int": int, "float": float, "bool": bool}
    for key, (kind, default) in documented().items():
        assert type(default) is kinds[kind], key


def test_keys_are_those_that_the_app_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(APP))
    monkeypatch.delitem(sys.modules, "vision_config", raising=False)
    config = importlib.import_module("vision_config").VisionConfig

    assert set(documented()) == {field.replace("_", "-") for field in config.model_fields}
