"""A user's changes to an app's keys: `--run-config`, as pairs or as TOML files."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flwr_splitmix.apps.configuration.error import ConfigError, unknown_key
from flwr_splitmix.apps.configuration.project import Kind, Project
from flwr_splitmix.apps.configuration.toml import PLAIN, flatten, parse_toml
from flwr_splitmix.files.reading import read_whole

PATHS = {
    "dataset", "test-dataset", "public", "model", "run-dir",
    "ssl-certfile", "ssl-keyfile", "ssl-ca-certfile", "link-client-ca",
    "link-via-token",
}  # fmt: skip
"""Keys that may name a file or a folder; for "model" see `absolute`."""

NO_PATHS = {"fashion-mnist-small", "fashion-mnist-multi", "generated", "small"}
"""Names of shipped or generated data and models, even if files of these names exist."""

_ALLOWED = "a value is a text, a number, true or false"

_PAIR = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")
"""A pair key=value, as Flower parses `--run-config`."""

_SEPARATOR = re.compile(r"'[^']*'|\"[^\"]*\"|(?<![=\s])([\s,;]*[,;]\s*)(?=[\w.-]+=|\s*$)")
"""A text in quotes, or (group 1) a comma or semicolon behind a value, before a key or the end."""


def read_overrides(texts: Sequence[str], directory: Path, kind: Kind) -> dict[str, Any]:
    """Read the values of `--run-config`: pairs "key=value ...", or TOML files.

    Pairs may change what a file before them has; otherwise each key is given once.

    Parameters
    ----------
    texts
        Texts given as `--run-config`.
    directory
        Working directory of the command; relative paths that exist in it become absolute.
    kind
        The app's kind, which decides what "model" is; see `absolute`.

    Raises
    ------
    ConfigError
        With one sentence for each value that cannot be read, and each key that is given twice.
    """
    values: dict[str, Any] = {}
    pair_keys: set[str] = set()
    problems: list[str] = []
    for text in texts:
        if text.endswith(".toml") and "=" not in text:
            of_file = _of_file(directory / Path(text).expanduser())
            problems += [
                f"{key} is {value!r:.80} in {text}; {_ALLOWED}"
                for key, value in of_file.items()
                if not isinstance(value, PLAIN)
            ]
            problems += [
                f"--run-config has {key} twice, the second time in {text}; write it once"
                for key in of_file
                if key in values
            ]
            values |= of_file
            continue
        if (blanks := _without_separators(text).rstrip()) != text.rstrip():
            quoted = shlex.quote(blanks) if '"' in blanks else f'"{blanks}"'
            problems.append(
                "--run-config has a comma or semicolon behind a value; blanks separate keys: write "
                f"--run-config {quoted}"
            )
        end = 0
        for match in _PAIR.finditer(blanks):
            if stray := blanks[end : match.start()].strip():
                problems.append(_stray(stray, match[0]))
            end = match.end()
            key, written = match[1], match[2]
            if key in pair_keys:
                problems.append(f"--run-config has {key} twice; write it once")
                continue
            pair_keys.add(key)
            try:
                values[key] = _value(key, written)
            except ConfigError as error:
                problems.append(str(error))
        if stray := blanks[end:].strip():
            problems.append(_stray(stray, ""))
    if problems:
        raise ConfigError("; ".join(problems))
    return {key: absolute(key, value, directory, kind) for key, value in values.items()}


def absolute(key: str, value: Any, directory: Path, kind: Kind) -> Any:
    """Return the value of a key, with an existing relative path as an absolute one.

    An app does not run in the user's working directory. "model" is a path in the language app, and
    a name in the vision app, also beside a folder of that name. In an app of its own it may be
    either, and is taken for a path if it has a "/".
    """
    if key not in PATHS or not isinstance(value, str) or not value or value in NO_PATHS:
        return value
    if key == "model" and (kind == "vision" or (kind == "own" and "/" not in value)):
        return value
    path = Path(value)
    if path.is_absolute() or value.startswith("~"):
        return value
    return (
        str((directory / path).resolve())
        if key == "run-dir" or (directory / path).exists()
        else value
    )


def _of_file(path: Path) -> dict[str, Any]:
    try:
        return flatten(parse_toml(read_whole(path).decode("utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--run-config names {path}, which cannot be read: {error}") from None


def _without_separators(text: str) -> str:
    """Return pairs with blanks instead of commas or semicolons between them."""
    if "{" in text:  # a table of TOML, which is refused as such
        return text
    return _SEPARATOR.sub(lambda found: " " if found[1] else found[0], text)


def _stray(text: str, following: str) -> str:
    if match := re.search(r"([^\s=]+)=$", text):
        return f"--run-config has '{match[0]}' without a value; write {match[1]}=VALUE"
    if re.search(r"\s=|=\s|=$", text) or following.startswith("="):
        return f"--run-config has a blank beside the '=' at {text!r}; write key=value without"
    return f"--run-config has {text!r}, which is not key=value; texts with blanks need quotes"


def _value(key: str, written: str) -> Any:
    try:
        value = parse_toml(f"value = {written}")["value"]
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
                f"{key} is {written}, which is not a TOML number; write --run-config "
                f"{key}={number}, or \"{key}='{written}'\" for a text"
            ) from None
        raise ConfigError(
            f"{key} is {written}, a text without quotes; write --run-config "
            f"\"{key}='{written.strip(chr(34) + chr(39))}'\""
        ) from None
    except ValueError as error:
        raise ConfigError(f"{key} is {written:.80}, which cannot be read: {error}") from None
    if not isinstance(value, PLAIN):
        raise ConfigError(f"{key} is {written}; {_ALLOWED}")
    return value


def _as_toml(written: str) -> str | None:
    """Return a number of Python's spelling in TOML's, such as 0.1 for .1; None for a text."""
    for kind in (int, float):
        try:
            return str(kind(written))
        except ValueError:
            continue
    return None


def run_values(project: Project, texts: Sequence[str], directory: Path) -> dict[str, Any]:
    """Return the run configuration: the app's own, with the user's changes.

    Raises
    ------
    ConfigError
        If a value cannot be read, or the app has no such key.
    """
    changed = read_overrides(texts, directory, project.kind)
    unknown = [key for key in changed if key not in project.config]
    if unknown:
        raise ConfigError("; ".join(unknown_key(key, project.config) for key in unknown))
    return {**project.config, **changed}
