"""A case to attack: what an adversary received of some images, and the truth for the score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from flwr_splitmix.attacks.base import View
from flwr_splitmix.attacks.knowledge import Knowledge
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.recording.reader import StepReader
from flwr_splitmix.attacks.recording.steps import Step
from flwr_splitmix.attacks.recording.vault import Truth, Vault, joined_images
from flwr_splitmix.attacks.release import Origin, Release
from flwr_splitmix.attacks.simulation import passes
from flwr_splitmix.seeding import generator


class Case(NamedTuple):
    """A view, for the attack, and the truth behind it, for the score only."""

    view: View
    truth: Truth


class Victims:
    """Images with their releases, as one adversary receives them, and the truth of each.

    Parameters
    ----------
    reader
        Reads steps as the adversary does.
    """

    def __init__(self, reader: StepReader) -> None:
        self._reader = reader
        self._pictures: list[Pictures] = []
        self._trained: list[Tensor] = []
        self._releases: list[Release] = []
        self._origins: list[Origin] = []

    def add_recorded(self, steps: Sequence[Step], vault: Vault) -> None:
        """Add the images of recorded steps, on which clients trained, and their releases.

        Raises
        ------
        VaultError
            As `Vault.placed`.
        """
        if not steps:
            return
        pictures, placed = vault.placed(steps)
        self._add_images(pictures, trained=True)
        for step, batches in zip(steps, placed, strict=True):
            self._add_releases(step, batches, vault.orders_of(step))

    def release(
        self,
        knowledge: Knowledge,
        pictures: Pictures,
        owners: Tensor | None,
        *,
        trained: bool,
        repeats: int,
        include: int | None,
        gradients: bool,
        seed: int,
    ) -> None:
        """Release images by the trained system, without training, and add both.

        Parameters
        ----------
        knowledge
            The trained system.
        owners
            (n,): each image's client; None: steps draw the clients.
        trained
            Whether the images were trained on.
        repeats
            How often each image is released; each pass over the images is a separate round.
        include
            A client that takes part in every step.
        gradients
            Whether the releases have gradients and losses.
        """
        start = self._add_images(pictures, trained=trained)
        last = max((release.server_round for release in self._releases), default=0)
        for turn in range(repeats):
            for step, batches, orders in passes(
                knowledge,
                pictures.images,
                pictures.labels,
                generator(seed, "after", int(trained), turn),
                lowers=knowledge.lowers,
                batch_size=knowledge.batch_size,
                gradients=gradients,
                server_round=last + 1 + turn,
                include=include,
                owners=owners,
            ):
                moved = {client: rows + start for client, rows in batches.items()}
                self._add_releases(step, moved, orders)

    def case(self, knowledge: Knowledge) -> Case:
        """Return the case, of an adversary that knows `knowledge`."""
        view = View(self._reader.adversary, self._releases, knowledge)
        return Case(
            view, Truth(joined_images(self._pictures), torch.cat(self._trained), self._origins)
        )

    def _add_images(self, pictures: Pictures, *, trained: bool) -> int:
        """Add images, all trained on or none; return how many were there before."""
        start = sum(map(len, self._pictures))
        self._pictures.append(pictures)
        self._trained.append(torch.full((len(pictures),), trained))
        return start

    def _add_releases(
        self, step: Step, batches: Mapping[int, Tensor], orders: Mapping[int, Tensor]
    ) -> None:
        """Add what is released in a step; `batches` are rows of all images, int64 (b,)."""
        rows = batches.get(self._reader.member)
        labels = None if rows is None else torch.cat([p.labels for p in self._pictures])[rows]
        self._releases += self._reader.releases(replace(step, ids=batches), labels)
        self._origins += self._reader.origins(step, batches, orders)
