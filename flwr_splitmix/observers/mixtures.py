"""Mixtures kept from a run: the clients of their patches, and each patch's strength."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.events import RoundBegun, RoundDone, RunStarted, StepDone
from flwr_splitmix.files.writing import write_json
from flwr_splitmix.mixers import Share
from flwr_splitmix.observers.observer import Observer

log = logging.getLogger("flwr.splitmix")

FILE = "mixtures.json"
"""Name of the file in a run's directory."""

_PIXELS = 16
"""Side of a patch in `Mixture.image`, in pixels."""


@dataclass(frozen=True)
class Mixture:
    """The first sample of a mixing group, as the mixer made it.

    Parameters
    ----------
    rows, columns
        Grid of the N patches; (1, N) if they form no grid.
    members
        For each client in the group: "client", its mixing ratio "lam", and "patches", whether it
        sent each of them (N).
    norms
        Euclidean norm of the mixed smashed data at each patch (N).
    """

    rows: int
    columns: int
    members: tuple[dict[str, Any], ...]
    norms: tuple[float, ...]

    def image(self) -> np.ndarray:
        """Return the norms as a grey image, uint8 (height, width, 3); the largest is white."""
        norms = np.asarray(self.norms).reshape(self.rows, self.columns)
        grey = (255 * norms / max(float(norms.max()), 1e-12)).astype(np.uint8)
        large = grey.repeat(_PIXELS, axis=0).repeat(_PIXELS, axis=1)
        return np.repeat(large[:, :, None], 3, axis=2)


class KeptMixtures(Observer):
    """Keeps the first mixtures of the newest round, and writes them to the run's directory.

    They are derived from smashed data. The server sees these anyway, but others may read the file:
    the norms of patches may show outlines in an image.

    Parameters
    ----------
    count
        Number of mixtures, each of a different mixing group.

    Attributes
    ----------
    newest
        The mixtures of the newest round; empty until its first step that has any.

    Raises
    ------
    ValueError
        If count is below 1.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"count is {count}; it must be at least 1")
        self.count = count
        self.newest: list[Mixture] = []
        self._directory: Path | None = None

    def on_start(self, event: RunStarted) -> None:
        """Store the run's directory."""
        self._directory = event.directory

    def on_begin(self, event: RoundBegun) -> None:
        """Forget the mixtures of the round before."""
        self.newest = []

    def on_step(self, event: StepDone) -> None:
        """Keep the mixtures of a round's first step that has any; the U shape has none."""
        plan, mixed = event.plan, event.mixed
        if self.newest or plan is None or mixed is None:
            return
        shape = plan.shape
        try:
            rows, columns = shape.rows_and_columns()
        except ValueError:  # the patches form no grid
            rows, columns = 1, shape.patches
        for row, source in enumerate(mixed.sources[: self.count]):
            members = tuple(
                {
                    "client": member.client,
                    "lam": member.share.lam,
                    "patches": _covered_tokens(member.share, shape.size)[shape.prefix :].tolist(),
                }
                for member in source.members
            )
            sample: Tensor = mixed.smashed[row * shape.batch, shape.prefix :]
            norms = tuple(sample.detach().float().norm(dim=-1).tolist())
            self.newest.append(Mixture(rows, columns, members, norms))

    def on_round(self, event: RoundDone) -> None:
        """Write the mixtures to the run's directory; a failure to do so does not stop the run."""
        if self._directory is None or not self.newest:
            return
        mixtures = [asdict(mixture) for mixture in self.newest]
        round_mixtures = {"round": event.server_round, "mixtures": mixtures}
        try:
            write_json(self._directory / FILE, round_mixtures, parents=False)
        except OSError as error:
            log.warning("the mixtures could not be written: %s", error.strerror or error)


def _covered_tokens(share: Share, size: tuple[int, int, int]) -> Tensor:
    """Return which tokens of the first sample a share's upload covers: bool (tokens,)."""
    batch, tokens, _ = size
    mixed = torch.zeros(batch, tokens, 1)
    share.place(mixed, torch.ones(share.upload_shape((batch, tokens, 1))))
    return mixed[0, :, 0] != 0
