"""`splitmix export`: writes a run's trained model to a folder."""

from __future__ import annotations

import errno
import signal
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from flwr_splitmix.cli.terminal import RunDirectory, RunName, terminated_as_interrupted
from flwr_splitmix.runs import RunError
from flwr_splitmix.runs.selection import select_one

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def export(
    run: RunName,
    folder: Annotated[Path, typer.Argument(help="Folder to write the model to.")],
    client: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="The client (partition-id) whose segment to export, if clients have their own.",
        ),
    ] = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Also write model.onnx, checked with onnxruntime.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    app: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the run's app, for keys missing in a run of an earlier version."
        ),
    ] = None,
    run_dir: RunDirectory = None,
) -> None:
    """Write the trained model of a run's newest checkpoint to a folder, with a model card."""
    opened = select_one(run, run_dir)
    defaults = {} if app is None else _defaults(app)
    from flwr_splitmix.apps.kept.export import export_run  # loads torch

    try:
        with terminated_as_interrupted(signal.SIGHUP):  # what was written so far is removed
            facts = export_run(
                opened, folder, client=client, onnx=onnx, force=force, defaults=defaults
            )
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            raise RunError(
                f"{folder} cannot be written ({error.strerror}); choose a folder on a disk with "
                "room"
            ) from error
        hint = "; give the folder of the run's app with --app" if _is_missing_key(error) else ""
        raise RunError(f"{error}{hint}") from error
    whose = "" if client is None else f", with the segment of client {client}"
    typer.echo(f"{folder}: run {opened.id} after round {facts['round']}{whose}")
    typer.echo(_how_to_load(facts))


def _is_missing_key(error: Exception) -> bool:
    return str(error).startswith("run-config lacks")


def _defaults(app: Path) -> dict[str, Any]:
    """Return the run configuration in an app's pyproject.toml."""
    file = app / "pyproject.toml"
    try:
        described = tomllib.loads(file.read_text(encoding="utf-8"))
        config: dict[str, Any] = described["tool"]["flwr"]["app"]["config"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunError(f"--app {app}: its pyproject.toml cannot be read: {error}") from error
    return config


def _how_to_load(facts: dict[str, Any]) -> str:
    if facts["kind"] == "language":
        return "load it with transformers' from_pretrained"
    if facts["timm"]:
        return "load model.safetensors with timm's create_model(..., checkpoint_path=): README.md"
    return f"there is no file for timm's create_model: {facts['timm_lacks']}"
