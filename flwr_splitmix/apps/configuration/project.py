"""The folder of an app: its kind, its components, and its keys with their defaults."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.configuration.toml import PLAIN, flatten, parse_toml

Kind = Literal["vision", "language", "own"]

_FLWR = re.compile(r"\s*flwr(?![\w.-])", re.IGNORECASE)
"""A requirement of Flower itself: Flower installs all that it needs, but not it."""

_PLAIN_FLWR = re.compile(r"\s*flwr(?![\w.\[-])", re.IGNORECASE)
"""The same without extras."""

_NAME = re.compile(r"[^\W\d_](?:[^\W_]|-){0,31}")
"""An app's name, as Flower takes it: letters of any alphabet."""


@dataclass(frozen=True)
class Project:
    """An app's folder.

    Parameters
    ----------
    folder
        Absolute path.
    name
        Name of the project.
    kind
        "vision" or "language" for apps that use this package's ServerApp; "own" for others.
    config
        Keys of the run configuration with their defaults.
    components
        Locations of "serverapp" and "clientapp", as "module:attribute".
    dependencies
        Requirements for which Flower installs packages for each run of the app, but for "flwr" in
        an app with fab-format-version = 1, which must name it.
    """

    folder: Path
    name: str
    kind: Kind
    config: Mapping[str, Any]
    components: Mapping[str, str]
    dependencies: Sequence[str] = ()


def open_project(folder: Path) -> Project:
    """Read an app's pyproject.toml.

    Raises
    ------
    ConfigError
        If the file is missing, cannot be read or is not of a Flower app, or if a component is not
        "module:attribute", or its file is missing or is not Python, or if Flower would refuse the
        app.
    """
    folder = folder.expanduser().resolve()
    file = folder / "pyproject.toml"
    try:
        described = parse_toml(file.read_text(encoding="utf-8"))
    except OSError:
        raise ConfigError(
            f"{folder} is not an app: it has no pyproject.toml; `splitmix new vision "
            "NAME` writes one"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    components = _table(described, "tool.flwr.app.components", file)
    config = _table(described, "tool.flwr.app.config", file)
    missing = [name for name in ("serverapp", "clientapp") if name not in components]
    if missing:
        raise ConfigError(
            f"{file} names no {missing[0]}; a Flower app has it in [tool.flwr.app.components]"
        )
    for kind in ("serverapp", "clientapp"):
        module, _, attribute = str(components[kind]).partition(":")
        if not module or not attribute:
            module = module or kind.replace("app", "_app")
            raise ConfigError(
                f"{file} has {kind} = {components[kind]!r}; it must be module:name, as in "
                f'{kind} = "{module}:app"'
            )
    project, flat = _table(described, "project", file), flatten(config)
    app = _table(described, "tool.flwr.app", file)
    _check_for_flower(file, project, app, flat)
    places = {kind: str(components[kind]) for kind in ("serverapp", "clientapp")}
    dependencies = _dependencies(project)
    if app.get("fab-format-version") == 1:
        dependencies = [each for each in dependencies if not _PLAIN_FLWR.match(each)]
    return Project(folder, str(project["name"]), _kind(folder, places), flat, places, dependencies)


def kind_of_run(config: Mapping[str, Any]) -> Kind:
    """Return the kind of app that a run's configuration is of, by a key that no other kind has."""
    if "task" in config:
        return "language"
    return "vision" if "image-size" in config else "own"


def _check_for_flower(
    file: Path, project: Mapping[str, Any], app: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    """Raise ConfigError for an app that Flower would refuse to pack."""
    needed = [
        ("project", project, "name", '"my-app"'),
        ("project", project, "version", '"1.0.0"'),
        ("tool.flwr.app", app, "publisher", '"my-name"'),
    ]
    if strict := app.get("fab-format-version") == 1:
        needed += [
            ("tool.flwr.app", app, "flwr-version-target", '"1.32.0"'),
            ("project", project, "license", '{ file = "LICENSE" }'),
        ]
    for table, entries, key, example in needed:
        if key not in entries:
            raise ConfigError(
                f"{file} has no {key} in [{table}], without which Flower runs no app; write there "
                f"{key} = {example}"
            )
    if strict and not any(_FLWR.match(e) and ">=" in e for e in _dependencies(project)):
        raise ConfigError(
            f"{file} has fab-format-version = 1, and no lowest version of flwr among the "
            "dependencies in [project], without which Flower runs no such app; write there "
            'dependencies = ["flwr>=1.32"]'
        )
    name = project["name"]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{file} has name = {name!r:.80}, which Flower refuses; it must be up to 32 letters, "
            "digits and '-', with a letter first"
        )
    for key, value in config.items():
        if not isinstance(value, PLAIN):
            raise ConfigError(
                f"{file} has {key} = {value!r:.80} in [tool.flwr.app.config], which Flower "
                "refuses; a value is a text, a number, true or false"
            )


def _dependencies(project: Mapping[str, Any]) -> list[str]:
    named = project.get("dependencies")
    return [str(each) for each in named] if isinstance(named, list) else []


def _table(described: Mapping[str, Any], name: str, file: Path) -> Mapping[str, Any]:
    """Return a table of a TOML file by its name with dots; {} if it has none."""
    table = described
    keys = name.split(".")
    for depth, key in enumerate(keys, 1):
        below = table.get(key, {})
        if not isinstance(below, Mapping):
            named = ".".join(keys[:depth])
            raise ConfigError(f"{file} has {named} = {below!r:.80}; it must be a table, [{name}]")
        table = below
    return table


def _kind(folder: Path, components: Mapping[str, str]) -> Kind:
    """Return the kind of an app, according to its components' imports."""
    imported: set[str] = set()
    for place in components.values():
        file = folder / (place.partition(":")[0].replace(".", "/") + ".py")
        if not file.is_file():
            raise ConfigError(
                f"{folder / 'pyproject.toml'} names {place!r}, but there is no {file}"
            )
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} cannot be read as Python: {error}") from None
        imported |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    kinds: tuple[Kind, ...] = ("vision", "language")
    for kind in kinds:
        if f"flwr_splitmix.apps.{kind}.server" in imported:
            return kind
    return "own"
