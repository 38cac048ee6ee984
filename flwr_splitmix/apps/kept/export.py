"""Export of a run's model to a folder, by the app that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr_splitmix.apps.configuration.project import kind_of_run
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.export.folder import ExportError, check_target

_WEIGHTS = (
    "the weights of an app or a script of your own are in run.checkpoints.load().tensors "
    "(docs/own-app.md)"
)


def export_run(
    run: Run,
    folder: Path,
    *,
    client: int | None = None,
    onnx: bool = False,
    force: bool = False,
    defaults: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the model of a run's newest checkpoint to a folder.

    Parameters
    ----------
    client
        Client whose segment is exported; None: the segment that was averaged, or that all clients
        share.
    onnx
        Whether to export a vision model also as ONNX.
    force
        Whether existing files may be overwritten.
    defaults
        Values of keys that a run of an earlier version lacks.

    Returns
    -------
    The content of the folder's splitmix.json.

    Raises
    ------
    ExportError, ConfigError, StorageError
        If the folder is not free, the run belongs to neither app, it has no checkpoint, its
        weights are not finite, or its clients' segments differ and no client is named.
    OSError
        If the folder cannot be written.
    """
    check_target(folder, force=force)
    if "strategy" not in run.config:  # a default would be a false statement about privacy
        raise ExportError(
            f"run {run.id} is of neither app: its configuration names no strategy, and --app "
            f"cannot say which one trained it; {_WEIGHTS}"
        )
    config = {**(defaults or {}), **run.config}
    kind = kind_of_run(config)
    if kind == "language":
        from flwr_splitmix.apps.language.export import export_language  # loads transformers

        if onnx:
            raise ExportError(
                "--onnx is for vision models; a language model is exported for transformers, "
                "whose own tools write ONNX"
            )
        return export_language(run, folder, config, client=client, force=force)
    if kind == "vision":
        from flwr_splitmix.apps.vision.export import export_vision

        return export_vision(run, folder, config, client=client, onnx=onnx, force=force)
    raise ExportError(
        f"run {run.id} is of neither app: its configuration does not say how its model is made; "
        f"{_WEIGHTS}"
    )
