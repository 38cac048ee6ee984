"""The vault: the images of each recorded batch. Only scoring uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.recording.steps import Batches, Orders, Step
from flwr_splitmix.attacks.release import Origin
from flwr_splitmix.data import ImageDataset
from flwr_splitmix.data.batches import batch_indices
from flwr_splitmix.mixers import NoisyShare

NO_TRUTH = (
    "the run was trained on other data, or the client lost a step; there is no truth to score "
    "against"
)


class VaultError(RuntimeError):
    """A run's recording does not belong to these images."""


@dataclass(frozen=True)
class Truth:
    """The truth behind the releases of one view.

    Parameters
    ----------
    pictures
        All victims' images.
    trained
        bool (n,): whether an image was trained on; the others were held out.
    origins
        For each release of the view, in order, the origin of its rows in `pictures`.
    """

    pictures: Pictures
    trained: Tensor
    origins: Sequence[Origin]


@dataclass(frozen=True)
class Vault:
    """The clients' images, and how a run drew its batches from them.

    The examples of a batch follow from the run's seed, so nothing is asked of a client, and the
    trace contains none of its data.

    Parameters
    ----------
    data
        Training images, by client.
    held_out
        Images that no client trained on.
    batch_size, seed
        The run's batch size and seed.
    orders
        By client and batch number, the order of patches drawn by its frozen edge, if known.
    """

    data: Mapping[int, ImageDataset] = field(repr=False)
    held_out: ImageDataset = field(repr=False)
    batch_size: int
    seed: int
    orders: Mapping[tuple[int, int], Tensor] = field(default_factory=dict, repr=False)

    def drawn(self, step: Step) -> dict[int, Tensor]:
        """Return the indices of each client's examples in a recorded step, int64 (b,).

        Raises
        ------
        VaultError
            If the recorded labels are not those of these images.
        """
        drawn = {}
        for client in sorted(step.uploads):
            if client < 0:
                raise VaultError(
                    "the run recorded mixtures that a third party made (link-via), and nothing "
                    "says whose images they hold: there is no truth to score against; record a run "
                    "without link-via, and attack it as the adversary 'upper only'"
                )
            data = self.data.get(client)
            if data is None:
                raise VaultError(f"the run recorded client {client}, whose images are not here")
            rows = batch_indices(
                len(data), self.batch_size, self.seed, client, step.drawn.get(client, 0)
            )
            labels = step.uploads[client].labels
            if isinstance(labels, Tensor) and not np.array_equal(labels.numpy(), data.labels[rows]):
                raise VaultError(
                    f"client {client} sent other labels in step {step.number} of round "
                    f"{step.server_round} than its images here have: {NO_TRUTH}"
                )
            drawn[client] = torch.from_numpy(rows)
        return drawn

    def orders_of(self, step: Step) -> Orders:
        """Return the orders drawn by the frozen edges in a recorded step, if known."""
        at = {client: (client, step.drawn.get(client, 0)) for client in step.uploads}
        return {client: self.orders[key] for client, key in at.items() if key in self.orders}

    def placed(self, steps: Sequence[Step]) -> tuple[Pictures, list[Batches]]:
        """Return the images of recorded steps, each once, and each batch's positions in them.

        Raises
        ------
        VaultError
            As `drawn`; also if noisy labels are clearly not those of these images.
        """
        drawn = [self.drawn(step) for step in steps]
        self._check_noisy_labels(steps, drawn)
        used: dict[int, np.ndarray] = {}
        for client in sorted({client for batches in drawn for client in batches}):
            client_rows = [batches[client].numpy() for batches in drawn if client in batches]
            used[client] = np.unique(np.concatenate(client_rows))
        start, starts = 0, {}
        for client, rows in used.items():
            starts[client] = start
            start += len(rows)
        parts = [Pictures.of(self.data[client], rows) for client, rows in used.items()]
        placed: list[Batches] = []
        for batches in drawn:
            within = {c: np.searchsorted(used[c], rows.numpy()) for c, rows in batches.items()}
            placed.append({c: torch.from_numpy(at) + starts[c] for c, at in within.items()})
        return joined_images(parts), placed

    def _check_noisy_labels(self, steps: Sequence[Step], drawn: Sequence[Batches]) -> None:
        """Compare the mean weight of these images' classes with that of all others.

        In noisy labels of these images the difference is about the mixing ratio, less if they are
        clamped; in those of others it is about 0. With too much noise to decide, nothing is raised.
        """
        differences: dict[int, list[tuple[Tensor, float]]] = {}
        for step, batches in zip(steps, drawn, strict=True):
            for client, rows in batches.items():
                classes = self.data[client].labels[rows.numpy()]
                labels = step.uploads[client].labels
                if isinstance(labels, Tensor) or classes.ndim > 1:
                    continue
                for share, soft in zip(step.plan.shares(client), labels, strict=True):
                    if isinstance(share, NoisyShare) and soft is not None:
                        weights = soft.double().gather(1, torch.tensor(classes)[:, None])[:, 0]
                        others = (soft.double().sum(1) - weights) / max(soft.shape[1] - 1, 1)
                        differences.setdefault(client, []).append(
                            (weights - others, _expected(share))
                        )
        for client, parts in differences.items():
            apart = torch.cat([part for part, _ in parts])
            error = float(apart.std()) / len(apart) ** 0.5
            expected = float(np.mean([difference for _, difference in parts]))
            if float(apart.mean()) + 3 * error < expected / 4:
                raise VaultError(
                    f"client {client} sent noisy labels that are not those of its images here: "
                    f"{NO_TRUTH}"
                )


def _expected(share: NoisyShare) -> float:
    """Return the mean difference between a noisy label's own class and another one."""
    if not share.noise.clamp_labels:
        return share.lam
    levels = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    noise = share.noise.sigma_y * torch.special.ndtri(levels)
    weight, scale = (share.lam, 1.0) if share.noise.label_noise == "after" else (1.0, share.lam)
    return scale * float(((weight + noise).clamp(0, 1) - noise.clamp(0, 1)).mean())


def joined_images(parts: Sequence[Pictures]) -> Pictures:
    """Return the images of several sets as one set, in order."""
    return Pictures(torch.cat([p.images for p in parts]), torch.cat([p.labels for p in parts]))
