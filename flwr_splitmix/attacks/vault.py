"""The vault: which images each recorded batch held. Only scores open it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.release import Origin
from flwr_splitmix.attacks.steps import Batches, Orders, Step
from flwr_splitmix.data import ImageDataset
from flwr_splitmix.data.batches import batch_indices


class VaultError(RuntimeError):
    """What a run recorded is not what these images give."""


@dataclass(frozen=True)
class Truth:
    """What is behind the releases of one view.

    Parameters
    ----------
    pictures
        All victims' images.
    trained
        bool (n,): whether an image was trained on; others were held out.
    origins
        For each release of the view, in its order, where its rows come from in `pictures`.
    """

    pictures: Pictures
    trained: Tensor
    origins: Sequence[Origin]


@dataclass(frozen=True)
class Vault:
    """The clients' images, and how a run drew its batches from them.

    Which examples a batch held follows from the run's seed, so that nothing is asked of a client
    and nothing of its data is in the trace.

    Parameters
    ----------
    data
        By client, its training images.
    held_out
        Images that no client trained on.
    batch_size, seed
        Of the run.
    orders
        By client and number of its batch, where its frozen edge put its patches: as far as it is
        known.
    """

    data: Mapping[int, ImageDataset] = field(repr=False)
    held_out: ImageDataset = field(repr=False)
    batch_size: int
    seed: int
    orders: Mapping[tuple[int, int], Tensor] = field(default_factory=dict, repr=False)

    def drawn(self, step: Step) -> dict[int, Tensor]:
        """Return by client which of its examples a recorded step held, int64 (b,).

        Raises
        ------
        VaultError
            If the labels that were recorded are not those of these images.
        """
        drawn = {}
        for client in sorted(step.uploads):
            data = self.data.get(client)
            if data is None:
                raise VaultError(
                    f"the run recorded client {client}, of which there are no images here"
                )
            rows = batch_indices(
                len(data), self.batch_size, self.seed, client, step.drawn.get(client, 0)
            )
            labels = step.uploads[client].labels
            if isinstance(labels, Tensor) and not np.array_equal(labels.numpy(), data.labels[rows]):
                raise VaultError(
                    f"client {client} sent other labels in step {step.number} of round "
                    f"{step.server_round} than its images here have: the run was trained on other "
                    "data, or the client lost a step; there is no truth to score against"
                )
            drawn[client] = torch.from_numpy(rows)
        return drawn

    def orders_of(self, step: Step) -> Orders:
        """Return where the frozen edges of a recorded step put its patches, where it is known."""
        at = {client: (client, step.drawn.get(client, 0)) for client in step.uploads}
        return {client: self.orders[key] for client, key in at.items() if key in self.orders}

    def placed(self, steps: Sequence[Step]) -> tuple[Pictures, list[Batches]]:
        """Return the images of recorded steps, each once, and where each batch's are among them."""
        drawn = [self.drawn(step) for step in steps]
        used: dict[int, np.ndarray] = {}
        for client in sorted({client for batches in drawn for client in batches}):
            own = [batches[client].numpy() for batches in drawn if client in batches]
            used[client] = np.unique(np.concatenate(own))
        start, starts = 0, {}
        for client, rows in used.items():
            starts[client] = start
            start += len(rows)
        parts = [Pictures.of(self.data[client], rows) for client, rows in used.items()]
        placed: list[Batches] = []
        for batches in drawn:
            within = {c: np.searchsorted(used[c], rows.numpy()) for c, rows in batches.items()}
            placed.append({c: torch.from_numpy(at) + starts[c] for c, at in within.items()})
        return joined(parts), placed


def joined(parts: Sequence[Pictures]) -> Pictures:
    """Return the images of several sets as one, in their order."""
    return Pictures(torch.cat([p.images for p in parts]), torch.cat([p.labels for p in parts]))
