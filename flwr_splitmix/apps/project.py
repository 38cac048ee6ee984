"""The folder of an app: its kind, its keys with their defaults, and a user's changes to them."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flwr_splitmix.apps.config_error import ConfigError, unknown_key
from flwr_splitmix.files import read_whole

Kind = Literal["vision", "language", "own"]

PATHS = {
    "dataset", "test-dataset", "public", "model", "run-dir",
    "ssl-certfile", "ssl-keyfile", "ssl-ca-certfile", "link-client-ca",
    "link-via-token",
}  # fmt: skip
"""Keys that may name a file or a folder."""

NO_PATHS = {"fashion-mnist-small", "fashion-mnist-multi", "generated", "small"}
"""Names of shipped or generated data and models, even if files of these names exist."""

_PAIR = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")
"""A pair key=value, as Flower parses `--run-config`."""

_FLWR = re.compile(r"\s*flwr(?![\w.-])", re.IGNORECASE)
"""A requirement of Flower itself, which Flower never installs."""

_NAME = re.compile(r"[^\W\d_](?:[^\W_]|-){0,31}")
"""An app's name, as Flower takes it: letters of any alphabet."""

_PLAIN = (bool, int, float, str)


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
        Packages that Flower installs for each run of the app: all that it names but Flower itself.
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
        described = _parsed(file.read_text(encoding="utf-8"))
    except OSError:
        raise ConfigError(
            f"{folder} is no app: it has no pyproject.toml; `splitmix new vision NAME` writes one"
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
    project, flat = _table(described, "project", file), _flat(config)
    _check_for_flower(file, project, _table(described, "tool.flwr.app", file), flat)
    places = {kind: str(components[kind]) for kind in ("serverapp", "clientapp")}
    dependencies = [each for each in _dependencies(project) if not _FLWR.match(each)]
    return Project(folder, str(project["name"]), _kind(folder, places), flat, places, dependencies)


def kind_of_run(config: Mapping[str, Any]) -> Kind:
    """Return the kind of app that a run's configuration is of, by a key that no other kind has."""
    if "task" in config:
        return "language"
    return "vision" if "image-size" in config else "own"


def _check_for_flower(
    file: Path, project: Mapping[str, Any], app: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    """Raise ConfigError for what Flower refuses when it packs an app."""
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
    for table, held, key, example in needed:
        if key not in held:
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
            f"{file} has name = {name!r:.80}, which Flower refuses; allowed are up to 32 letters, "
            "digits and '-', with a letter first"
        )
    for key, value in config.items():
        if not isinstance(value, _PLAIN):
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


def _parsed(text: str) -> dict[str, Any]:
    """Parse TOML.

    Raises
    ------
    ValueError
        If it is none, has a number that is too long, or is nested too deeply.
    """
    try:
        described = tomllib.loads(text)
        _flat(described)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return described


def _flat(config: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Flatten nested tables of a configuration to keys with dots, as Flower does."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{before}{key}.")
        else:
            flat[before + key] = value
    return flat


def read_overrides(texts: Sequence[str], here: Path) -> dict[str, Any]:
    """Read the values of `--run-config`: pairs "key=value ...", or TOML files.

    Pairs may change what a file before them has; otherwise each key is given once.

    Parameters
    ----------
    texts
        Texts given as `--run-config`.
    here
        Working directory of the command; relative paths that exist in it become absolute.

    Raises
    ------
    ConfigError
        With one sentence for each value that cannot be read, and each key that is given twice.
    """
    values: dict[str, Any] = {}
    said: set[str] = set()  # keys of pairs
    problems: list[str] = []
    for text in texts:
        if text.endswith(".toml") and "=" not in text:
            of_file = _of_file(here / Path(text).expanduser())
            problems += [
                f"--run-config has {key} twice, the second time in {text}; write it once"
                for key in of_file
                if key in values
            ]
            values |= of_file
            continue
        end = 0
        for match in _PAIR.finditer(text):
            if stray := text[end : match.start()].strip():
                problems.append(_stray(stray, match[0]))
            end = match.end()
            key, written = match[1], match[2]
            if key in said:
                problems.append(f"--run-config has {key} twice; write it once")
                continue
            said.add(key)
            try:
                values[key] = _value(key, written)
            except ConfigError as error:
                problems.append(str(error))
        if stray := text[end:].strip():
            problems.append(_stray(stray, ""))
    if problems:
        raise ConfigError("; ".join(problems))
    return {key: absolute(key, value, here) for key, value in values.items()}


def absolute(key: str, value: Any, here: Path) -> Any:
    """Return the value of a key, with an existing relative path as an absolute one.

    An app does not run in the user's working directory.
    """
    if key not in PATHS or not isinstance(value, str) or not value or value in NO_PATHS:
        return value
    path = Path(value)
    if path.is_absolute() or value.startswith("~"):
        return value
    return str((here / path).resolve()) if key == "run-dir" or (here / path).exists() else value


def _of_file(path: Path) -> dict[str, Any]:
    try:
        return _flat(_parsed(read_whole(path).decode("utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--run-config names {path}, which cannot be read: {error}") from None


def _stray(text: str, following: str) -> str:
    if match := re.search(r"([^\s=]+)=$", text):
        return f"--run-config has '{match[0]}' without a value; write {match[1]}=VALUE"
    if re.search(r"\s=|=\s|=$", text) or following.startswith("="):
        return f"--run-config has a blank beside the '=' at {text!r}; write key=value without"
    return f"--run-config has {text!r}, which is no key=value; texts with blanks need quotes"


def _value(key: str, written: str) -> Any:
    try:
        value = _parsed(f"value = {written}")["value"]
    except tomllib.TOMLDecodeError:
        if written in ("True", "False"):
            raise ConfigError(
                f"{key} is {written}; true and false are written in lower case: "
                f"{key}={written.lower()}"
            ) from None
        if not written.isprintable():
            raise ConfigError(
                f"{key} is {written!r:.80}, which has a line break or another control character; "
                "write it in one line, without"
            ) from None
        if number := _as_toml(written):
            raise ConfigError(
                f"{key} is {written}, which is no number of TOML; write --run-config "
                f"{key}={number}, or \"{key}='{written}'\" for a text"
            ) from None
        raise ConfigError(
            f"{key} is {written}, a text without quotes; write --run-config "
            f"\"{key}='{written.strip(chr(34) + chr(39))}'\""
        ) from None
    except ValueError as error:
        raise ConfigError(f"{key} is {written:.80}, which cannot be read: {error}") from None
    if not isinstance(value, _PLAIN):
        raise ConfigError(f"{key} is {written}; a value is a text, a number, true or false")
    return value


def _as_toml(written: str) -> str | None:
    """Return a number of Python's spelling in TOML's, such as 0.1 for .1; None for a text."""
    for kind in (int, float):
        try:
            return str(kind(written))
        except ValueError:
            continue
    return None


def run_values(project: Project, texts: Sequence[str], here: Path) -> dict[str, Any]:
    """Return the run configuration: the app's own, with the user's changes.

    Raises
    ------
    ConfigError
        If a value cannot be read, or the app has no such key.
    """
    changed = read_overrides(texts, here)
    unknown = [key for key in changed if key not in project.config]
    if unknown:
        raise ConfigError("; ".join(unknown_key(key, project.config) for key in unknown))
    return {**project.config, **changed}
