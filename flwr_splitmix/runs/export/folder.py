"""The folder of an exported model: complete or absent, and overwritten only on request."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flwr_splitmix.files.names import is_bare
from flwr_splitmix.files.reading import check_regular, read_json
from flwr_splitmix.runs.errors import RunError

FACTS = "splitmix.json"
"""The file that describes a folder."""

_REPLACED = f".{FACTS}"
"""The name of an earlier export's description while that export is being removed."""

FORMAT = 1
"""Version of that file's format. Readers refuse higher versions."""

_TEMPLATES = "additional_chat_templates"
"""The only folder in an export: of a tokenizer with several templates."""

TOKENIZER = (
    r"(\w+_)?token\w*\.json|special_tokens_map\.json|merges\.txt|vocab\.(json|txt)|[\w.]+\.model"
    r"|chat_template\.\w+"
)
"""Pattern of the names of a tokenizer's files in an export."""

_WRITTEN = re.compile(
    rf"{FACTS}|README\.md|model\.onnx(\.data)?|[\w-]+\.safetensors|[\w-]+\.safetensors\.index\.json"
    rf"|(generation_)?config\.json|{TOKENIZER}|{_TEMPLATES}"
)
"""Names that an export writes; no others are removed."""


class ExportError(RunError):
    """A model cannot be exported, or a folder holds no exported model; the message is for users."""


def check_target(target: Path, *, force: bool) -> None:
    """Raise ExportError if an export may not be written to `target`.

    Parameters
    ----------
    force
        Whether existing files may be overwritten.
    """
    if target.exists() and not target.is_dir():
        raise ExportError(f"{target} is not a folder; the model needs one, or a name that is free")
    if target.is_dir() and any(target.iterdir()) and not force:
        raise ExportError(
            f"{target} is not empty{_of_what(target)}; choose another folder, or overwrite it with "
            "--force"
        )
    _earlier(target)


@contextlib.contextmanager
def new_folder(target: Path, *, force: bool = False) -> Iterator[Path]:
    """Yield an empty folder, whose files are moved to `target` if the block succeeds.

    With `force` they replace files of the same names, and the files of an earlier export are
    removed; anything else in `target` stays.

    Raises
    ------
    ExportError
        As for `check_target`, or if the folder cannot be created.
    """
    check_target(target, force=force)
    original, target = target, target.absolute()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    except OSError as error:
        raise ExportError(
            f"{original} cannot be made ({error.strerror}); choose a folder that can be written"
        ) from error
    try:
        yield staging
        check_target(original, force=force)  # again: another export may have been faster
        _remove_earlier(target)
        target.mkdir(exist_ok=True)
        # The description went first and comes last: a folder that has one is complete.
        for file in sorted(staging.iterdir(), key=lambda file: file.name == FACTS):
            os.replace(file, target / file.name)
    finally:
        shutil.rmtree(staging)


def write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write the description of a folder whose other files are complete: facts and file names."""
    files = sorted([*(file.name for file in folder.iterdir()), FACTS])
    described = {"format": FORMAT, **facts, "files": files}
    text = json.dumps(described, indent=2, allow_nan=False) + "\n"
    (folder / FACTS).write_text(text, encoding="utf-8")


def check_files(folder: Path) -> None:
    """Raise ExportError if a file of an exported model is not a regular file."""
    for file in folder.iterdir():
        if _WRITTEN.fullmatch(file.name) and file.name != _TEMPLATES:
            try:
                check_regular(file)
            except OSError as error:
                raise unreadable(file, error) from error


def read_facts(folder: Path, name: str = FACTS) -> dict[str, Any]:
    """Return the description of an exported model as it is, with a `format` that is known.

    Raises
    ------
    ExportError
        If the folder holds no description that this version can read.
    """
    file = folder / name
    try:
        facts = read_json(file)
    except (FileNotFoundError, NotADirectoryError):
        raise ExportError(
            f"{folder} holds no exported model ({FACTS} is missing); write one with: splitmix "
            "export RUN FOLDER"
        ) from None
    except (OSError, ValueError) as error:
        raise unreadable(file, error) from error
    if not isinstance(facts, dict) or not isinstance(facts.get("format"), int):
        raise ExportError(f"{file} does not describe an exported model")
    if facts["format"] > FORMAT:
        raise ExportError(
            f"{file} has format {facts['format']}, this version reads up to {FORMAT}; install a "
            "newer flwr-splitmix"
        )
    return facts


def unreadable(file: Path, reason: object) -> ExportError:
    """Return the error of a file of an exported model that cannot be read, with the remedy."""
    if isinstance(reason, PermissionError):
        return ExportError(f"cannot read {file}: {reason.strerror}; its owner may read it")
    return ExportError(f"cannot read {file}: {reason}; export the run again")


def _earlier(target: Path) -> list[Path]:
    """Return the files that an earlier export has left in a folder, besides its description.

    Raises
    ------
    ExportError
        If the description there lists anything but names of files.
    """
    description = FACTS if (target / FACTS).is_file() else _REPLACED
    if not (target / description).is_file():
        return []
    files = read_facts(target, description).get("files", [])
    for name in files if isinstance(files, list) else [files]:
        if not is_bare(name):
            raise ExportError(
                f"{target / description} lists {name!r} among the files of an earlier export, "
                "which is not a file's name; choose another folder"
            )
    return [target / name for name in files if name != FACTS and _WRITTEN.fullmatch(name)]


def _remove_earlier(target: Path) -> None:
    """Remove the files of an earlier export; of a link, only the link.

    Its description goes first, so that a part of a model is not taken for the whole; under its
    other name it lists the remaining files for the next export, if this one is interrupted.
    """
    files = _earlier(target)
    if (target / FACTS).is_file():
        os.replace(target / FACTS, target / _REPLACED)
    for file in files:
        if file.name == _TEMPLATES and file.is_dir() and not file.is_symlink():
            shutil.rmtree(file)
        elif file.is_symlink() or not file.is_dir():
            file.unlink(missing_ok=True)
    (target / _REPLACED).unlink(missing_ok=True)


def _of_what(target: Path) -> str:
    """Describe the export in a folder; "" if there is none."""
    if not (target / FACTS).is_file():
        return ""
    facts = read_facts(target)
    return f" (run {facts.get('run')} after round {facts.get('round')} was exported to it)"
