"""The weights of the clients' segments at a checkpoint of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.finite import not_finite_in
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.checkpoints import Checkpoint, ClientStore, lower_of
from flwr_splitmix.runs.export.folder import ExportError
from flwr_splitmix.segments.shape_errors import out_of_memory
from flwr_splitmix.storage import StorageError, under
from flwr_splitmix.words import listed


def segment_weights(
    run: Run, checkpoint: Checkpoint, client: int | None, *, shared: bool, strategy: str, parts: str
) -> dict[str, Tensor]:
    """Return the weights of the clients' side at a checkpoint, and what its layers measured.

    Parameters
    ----------
    checkpoint
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
    if client is not None and (state := store.load(client, at_most=checkpoint.round)) is not None:
        return under("segment", state[1]) | under("buffer", state[1])
    if client is None and shared:
        return lower_of(checkpoint.tensors)
    stored_clients = store.clients(at_most=checkpoint.round)
    missing = f"there is no state of {'any client' if client is None else f'client {client}'} here"
    reason = f"{strategy} leaves {parts} with their clients"
    if not stored_clients and not shared:
        message = (
            f"{missing}: {reason}, and the nodes of a deployment keep them in their state-dir. Of "
            "such a run only averaged ones are here: use a strategy that averages them, as "
            "CutMixSFL and USplitFL do"
        )
    elif client is None:
        message = f"{reason}; name one with --client"
    else:
        hint = "; leave out --client: all clients have the same" if shared else ""
        only = f"only of: {listed(stored_clients)}" if stored_clients else "and none of any other"
        message = f"{missing}, {only}{hint}"
    raise ConfigError(f"run {run.id}: {message}")


@contextmanager
def fitting(run: Run, checkpoint: Checkpoint, keys: str) -> Iterator[None]:
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
            f"run {run.id}: the checkpoint of round {checkpoint.round} does not fit config.json "
            f"({keys}, ...): restore it"
        ) from error


def check_finite(run: Run, checkpoint: Checkpoint, segments: Mapping[str, nn.Module]) -> None:
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
        if wrong := not_finite_in(module):
            earlier = ", or move this checkpoint out of the run's folder to export the one before"
            raise ExportError(
                f"run {run.id}: the {segment} of the checkpoint of round {checkpoint.round} has "
                f"NaN or infinite weights ({wrong}): training has diverged; train again with a "
                f"lower lr{earlier if run.checkpoints.rounds()[0] < checkpoint.round else ''}"
            )
