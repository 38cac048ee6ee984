"""docs/configuration.md lists every key of every app with the default that it has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.apps.language.config import LanguageConfig
from flwr_splitmix.apps.run_config import AppConfig
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.strategies import STRATEGIES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "configuration.md"
BOTH = "Both apps"
APPS: dict[str, type[AppConfig]] = {"vision": VisionConfig, "language": LanguageConfig}

every_app = pytest.mark.parametrize("app", APPS)


def section(title: str) -> str:
    """Return what stands under a heading of the second level."""
    parts = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.M)
    (found,) = (part for part in parts if part.startswith(f"{title}\n"))
    return found


def documented(app: str) -> dict[str, tuple[str, Any]]:
    """Return type and default by key, from the tables of an app and of both apps."""
    text = section(f"`apps/{app}`") + section(BOTH)
    rows = re.findall(r"^\| `([\w-]+)` \| (\w+) \| `([^`]+)` \|", text, re.M)
    assert len(rows) == len({key for key, _, _ in rows}), "a key is listed twice"
    return {key: (kind, tomllib.loads(f"x = {default}")["x"]) for key, kind, default in rows}


def in_app(app: str) -> dict[str, Any]:
    file = ROOT / "apps" / app / "pyproject.toml"
    loaded = tomllib.loads(file.read_text(encoding="utf-8"))
    config: dict[str, Any] = loaded["tool"]["flwr"]["app"]["config"]
    return config


@every_app
def test_keys_and_defaults_are_those_of_the_app(app: str) -> None:
    assert {key: default for key, (_, default) in documented(app).items()} == in_app(app)


def test_strategies_have_the_options_that_the_page_says() -> None:
    text = section("`apps/vision`")
    table = text[text.index("| strategies | ") :].split("\n\n")[0].splitlines()[2:]
    said = {}
    for names, _, keys in (line.strip("|").split(" | ") for line in table):
        for name in re.findall(r"`(\w+)`", names):
            said[name] = set(re.findall(r"`([\w-]+)`", keys))
    found = {}
    for name in STRATEGIES:
        noise = {"sigma-s": 1.0, "sigma-y": 1.0} if name.startswith("DP") else {}
        found[name] = VisionConfig.read(
            {**in_app("vision"), "strategy": name, **noise}
        ).own_options()
    assert said == {
        name: {option.replace("_", "-") for option in options} for name, options in found.items()
    }


@every_app
def test_types_are_those_of_the_defaults(app: str) -> None:
    kinds = {"string": str, "int": int, "float": float, "bool": bool}
    for key, (kind, default) in documented(app).items():
        assert type(default) is kinds[kind], key


@every_app
def test_keys_are_those_that_the_app_checks(app: str) -> None:
    fields = APPS[app].model_fields
    assert set(documented(app)) == {field.replace("_", "-") for field in fields}


def test_what_both_apps_have_stands_in_one_place() -> None:
    shared = set(re.findall(r"^\| `([\w-]+)` \|", section(BOTH), re.M))
    for app, other in (("vision", "language"), ("language", "vision")):
        assert shared <= in_app(app).keys() & in_app(other).keys()
