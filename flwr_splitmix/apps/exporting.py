"""Export of a run's model to a folder: the part common to both apps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.apps.project import kind_of_run
from flwr_splitmix.apps.run_config import AppConfig, ConfigError
from flwr_splitmix.files import finite
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.checkpoints import Checkpoint, ClientStore, lower_of
from flwr_splitmix.runs.epsilon import counts_mixtures, epsilon_facts
from flwr_splitmix.runs.export.folder import ExportError, check_target
from flwr_splitmix.segments.shape_errors import out_of_memory
from flwr_splitmix.storage import StorageError, under

_MOST_CLIENTS = 10  # named in an error message


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
            "cannot say which one trained it"
        )
    config = {**(defaults or {}), **run.config}
    kind = kind_of_run(config)
    if kind == "language":
        from flwr_splitmix.apps.language.export import export_language

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
        "the weights of an app or a script of your own are in run.checkpoints.load().tensors "
        "(docs/own-app.md)"
    )


def segment_weights(
    run: Run, kept: Checkpoint, client: int | None, *, shared: bool, strategy: str, parts: str
) -> dict[str, Tensor]:
    """Return the weights of the clients' side at a checkpoint, and what its layers measured.

    Parameters
    ----------
    kept
        The checkpoint.
    client
        Client whose segment is returned; None for the shared one.
    shared
        Whether all clients have the same weights: they were averaged, or are never trained.
    strategy, parts
        The strategy, and the clients' parts in the error message, such as "lower segments".

    Raises
    ------
    ConfigError
        If weights differ and no client is named, or the client's state is not on this machine:
        a deployed node keeps it.
    """
    store = ClientStore(run.clients_dir)
    if client is not None and (state := store.load(client, at_most=kept.round)) is not None:
        return under("segment", state[1]) | under("buffer", state[1])
    if client is None and shared:
        return lower_of(kept.tensors)
    there = store.clients(at_most=kept.round)
    missing = f"there is no state of {'any client' if client is None else f'client {client}'} here"
    own = f"{strategy} leaves {parts} with their clients"
    if not there and not shared:
        said = (
            f"{missing}: {own}, and the nodes of a deployment keep them in their state-dir. Of "
            "such a run only averaged ones are here: use a strategy that averages them, as "
            "CutMixSFL and USplitFL do"
        )
    elif client is None:
        said = f"{own}; name one with --client"
    else:
        hint = "; leave out --client: all clients have the same" if shared else ""
        said = f"{missing}, {_listed(there)}{hint}"
    raise ConfigError(f"run {run.id}: {said}")


@contextmanager
def fitting(run: Run, kept: Checkpoint, keys: str) -> Iterator[None]:
    """Say of weights that a model does not take that the run's files do not fit together.

    Parameters
    ----------
    keys
        Keys that make the model, such as "model, depth".

    Raises
    ------
    ConfigError
        If the block raises what torch does for weights of another model.
    """
    try:
        yield
    except (AttributeError, RuntimeError) as error:
        if isinstance(error, (RunError, StorageError)) or out_of_memory(error):
            raise
        raise ConfigError(
            f"run {run.id}: the checkpoint of round {kept.round} does not fit config.json "
            f"({keys}, ...): restore it"
        ) from error


def check_finite(run: Run, kept: Checkpoint, segments: Mapping[str, nn.Module]) -> None:
    """Refuse weights of a run that has diverged; a constant may be infinite, as in a mask.

    Parameters
    ----------
    segments
        The segments with the checkpoint's weights, by their name in the error message.

    Raises
    ------
    ExportError
        If a parameter is NaN or infinite, or a buffer NaN.
    """
    for segment, module in segments.items():
        wrong = [name for name, p in module.named_parameters() if not bool(p.isfinite().all())]
        wrong += [name for name, b in module.named_buffers() if bool(b.isnan().any())]
        if wrong:
            earlier = ", or move this checkpoint out of the run's folder to export the one before"
            raise ExportError(
                f"run {run.id}: the {segment} of the checkpoint of round {kept.round} has NaN or "
                f"infinite weights ({wrong[0]}): training has diverged; train again with a lower "
                f"lr{earlier if run.checkpoints.rounds()[0] < kept.round else ''}"
            )


def _listed(clients: Sequence[int]) -> str:
    if not clients:
        return "and none of any other"
    more = len(clients) - _MOST_CLIENTS
    named = ", ".join(map(str, clients[:_MOST_CLIENTS]))
    return f"only of: {named}{f' and {more} more' if more > 0 else ''}"


def parts_of(meta: Mapping[str, Any]) -> int:
    """Return into how many parts the data were divided, as nodes said; else how many trained."""
    said = set(meta.get("partitions", {}).values()) - {0}
    return said.pop() if len(said) == 1 else len(meta["trained"])


def facts_of(
    run: Run, config: AppConfig, kept: Checkpoint, client: int | None, *, averaged: bool
) -> dict[str, Any]:
    """Return the model card's facts about a run at a checkpoint, for either app."""
    values = config.model_dump(by_alias=True)
    rows = [row for row in run.rows if row["round"] <= kept.round]
    measured = [row for row in rows if row["accuracy"] is not None]
    return {
        "run": run.id,
        "round": kept.round,
        "rounds": values["num-server-rounds"],
        "client": client,
        "model": _public_name(values["model"]),
        "strategy": values["strategy"],
        "dataset": _public_name(values["dataset"]),
        "partition": values["partition"],
        "clients": len(kept.meta["trained"]),
        "parts": parts_of(kept.meta),
        "seed": values["seed"],
        "averaged": averaged,
        "accuracy": None
        if not measured
        else {
            "value": measured[-1]["accuracy"],
            "kind": measured[-1]["accuracy_kind"],
            "round": measured[-1]["round"],
        },
        **finite(
            epsilon_facts(
                rows[-1] if rows else {}, values["strategy"], mixtures=counts_mixtures(values)
            )
        ),
        "delta": values.get("delta"),
        "versions": {"flwr-splitmix": version("flwr-splitmix"), "torch": torch.__version__},
    }


def _public_name(source: str) -> str:
    """Return a model's or data set's name; of an absolute path only the last part.

    Cards are published, and must not contain local paths.
    """
    return Path(source).name if Path(source).expanduser().is_absolute() else source
