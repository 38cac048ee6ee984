"""A strategy that was fitted in this process, as a system under attack."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from flwr_splitmix.attacks.attacked import Attacked
from flwr_splitmix.attacks.knowledge import Knowledge, Lowers
from flwr_splitmix.attacks.recorder import Recorder
from flwr_splitmix.attacks.recording.vault import Vault
from flwr_splitmix.clients import SplitClient
from flwr_splitmix.clients.split.lower_checks import describe_segment
from flwr_splitmix.data import ImageDataset
from flwr_splitmix.data.examples import fetch
from flwr_splitmix.links.arrays import to_tensors
from flwr_splitmix.segments import Geometry
from flwr_splitmix.strategies import SplitStrategy


class FitResult(Protocol):
    """The needed part of the result of `fit`."""

    @property
    def arrays(self) -> Any:
        """The averaged lower segment, as Flower's ArrayRecord."""


def attacked_fit(
    strategy: SplitStrategy,
    result: FitResult,
    clients: Sequence[SplitClient],
    recorder: Recorder,
    held_out: ImageDataset,
    *,
    fresh_lower: Callable[[int], nn.Module],
    options: Mapping[str, Any] | None = None,
) -> Attacked:
    """Return a strategy of any kind after `fit`, with its clients, as a system under attack.

    Parameters
    ----------
    strategy, result, clients
        As they are after `fit`, and what it has returned. Clients have an `ImageDataset` each, of
        one batch size.
    recorder
        An observer of that `fit`, which has seen the weights that clients began with.
    held_out
        Images that no client trained on: half are victims, half are the attacker's own.
    fresh_lower
        Makes a lower segment of the clients' architecture with fresh weights from a seed, as an
        attacker can.
    options
        The method's options, for labels in results.

    Raises
    ------
    TypeError
        If a client's data are not `ImageDataset`.
    ValueError
        If there are no clients, or nothing was recorded.
    """
    if not clients:
        raise ValueError("there are no clients to attack: hand over those of fit")
    parts: dict[int, ImageDataset] = {}
    for index, client in enumerate(clients):
        if not isinstance(client.batches.data, ImageDataset):
            raise TypeError(
                f"client {index} has {type(client.batches.data).__name__} for its data; attacks on "
                "images need an ImageDataset, such as client_split returns, or of your own images: "
                "ImageDataset(NumPy uint8 (n, C, H, W), NumPy labels, num_classes=...)"
            )
        parts[index] = client.batches.data
    if next(iter(recorder.trace.steps(1)), None) is None:
        raise ValueError(
            "the recorder holds no step: give it to the strategy before fit, observers=[recorder]"
        )
    one = clients[0]
    lowers: Lowers
    if strategy.aggregator.averages:  # a client's own weights are those before the average
        lowers = _with_weights(one.segment, to_tensors(result.arrays))
    else:
        lowers = {index: copy.deepcopy(each.segment).cpu() for index, each in enumerate(clients)}
    knowledge = Knowledge.of(
        strategy,
        parts[0],
        _geometry(one),
        clients=len(clients),
        batch_size=one.batches.size,
        fresh_lower=fresh_lower,
        lowers=lowers,
        first=_first_lower([client.segment for client in clients], recorder.first),
        options=options,
    )
    vault = Vault(parts, held_out, one.batches.size, strategy.seed)
    rows = strategy.rows
    measured = [row["accuracy"] for row in rows if row["accuracy"] is not None]
    summary = {"accuracy": measured[-1] if measured else None, "rounds": len(rows)}
    return Attacked(knowledge, recorder.trace, vault, summary)


def _with_weights(segment: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of a lower segment, on the CPU, with other weights."""
    segment_copy = copy.deepcopy(segment).cpu()
    segment_copy.load_state_dict(weights)
    return segment_copy


def _first_lower(
    segments: Iterable[nn.Module], weights: Mapping[str, Tensor] | None
) -> nn.Module | None:
    """Return the lower segment with the weights that were sent first; None if none was.

    It is that of a client whom they fit: others take no part.
    """
    shapes = {name: tensor.shape for name, tensor in (weights or {}).items()}
    for segment in segments if weights else ():
        state = segment.state_dict()
        if {name: tensor.shape for name, tensor in state.items()} == shapes:
            return _with_weights(segment, weights or {})
    return None


def _geometry(client: SplitClient) -> Geometry:
    geometry = getattr(client.segment, "geometry", None)
    if isinstance(geometry, Geometry):
        return geometry
    description = describe_segment(client.segment, fetch(client.batches.data, np.arange(1))[0])
    return Geometry(description.patches, description.width, description.prefix)
