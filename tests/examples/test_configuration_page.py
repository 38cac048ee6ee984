"""docs/configuration.md lists every key of every app with the default that it has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.apps.configuration.run_config import AppConfig
from flwr_splitmix.apps.language.config import LanguageConfig
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.methods import BY_NAME, plain_options
from flwr_splitmix.methods.tables import TABLES, options_table, renewed
from flwr_splitmix.strategies import STRATEGIES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "configuration.md"
BOTH = "Both apps"
APPS: dict[str, type[AppConfig]] = {"vision": VisionConfig, "language": LanguageConfig}

every_app = pytest.mark.parametrize("app", APPS)


def section(title: str) -> str:
    """Return what stands under a heading of the second level."""
    parts = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.M)
    (body,) = (part for part in parts if part.startswith(f"{title}\n"))
    return body


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


@pytest.mark.parametrize("name", STRATEGIES)
def test_own_options_are_keys_that_the_app_hands_on(name: str) -> None:
    """The methods in the page's table, which is made from the catalogue."""
    noise = {"sigma-s": 1.0, "sigma-y": 1.0} if "noise" in BY_NAME[name].needs else {}
    handed_on = VisionConfig.read({**in_app("vision"), "strategy": name, **noise}).own_options()
    assert set(plain_options(STRATEGIES[name])) == handed_on.keys()


@pytest.mark.parametrize("page", ["configuration.md", "methods.md"])
def test_tables_of_strategies_are_those_of_the_catalogue(page: str) -> None:
    """If not: python -m flwr_splitmix.methods docs/methods.md docs/configuration.md."""
    text = (PAGE.parent / page).read_text(encoding="utf-8")
    assert text == renewed(text)
    shown = re.findall(r"^<!-- table: (.+) -->$", text, re.M)
    assert shown == [name for name in TABLES if (name == "options") == (page != "methods.md")]


def test_a_table_is_renewed_in_its_place() -> None:
    page = "before\n\n<!-- table: options -->\nold\n<!-- end of table -->\nafter\n"
    begin, end = "<!-- table: options -->\n\n", "\n\n<!-- end of table -->\nafter\n"
    assert renewed(page) == f"before\n\n{begin}{options_table()}{end}"
    with pytest.raises(ValueError, match="table: options --> has no line <!-- end of table -->"):
        renewed("<!-- table: options -->\n| strategies |\n")


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
