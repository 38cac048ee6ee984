"""The TensorBoard tracker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from flwr_splitmix.events import RunStarted
from flwr_splitmix.observers.trackers.tracker import Tracker, as_markdown


class TensorBoardTracker(Tracker):
    """Writes event files: `tensorboard --logdir RUN/tensorboard` shows them.

    Parameters
    ----------
    folder
        Where they are written; None uses `tensorboard/` in the run's directory.
    """

    def begin(self, event: RunStarted, config: Mapping[str, Any]) -> None:
        """Open the folder, and purge earlier entries of rounds that are repeated."""
        folder = self.place(event, "tensorboard")
        self._writer = SummaryWriter(str(folder), purge_step=event.first_round)
        self.text("configuration", as_markdown(config), event.first_round - 1)

    def numbers(self, values: Mapping[str, float], server_round: int) -> None:
        """Write one scalar per number, and flush, since a run may be killed."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, server_round)
        self._writer.flush()

    def text(self, name: str, text: str, server_round: int) -> None:
        """Write a text."""
        self._writer.add_text(name, text, server_round)

    def picture(self, name: str, image: np.ndarray, server_round: int) -> None:
        """Write an image."""
        self._writer.add_image(name, image, server_round, dataformats="HWC")

    def finish(self, summary: Mapping[str, Any], error: str) -> None:
        """Write the summary as a text, and close the writer."""
        full_summary = {**summary, **({"error": error} if error else {})}
        self.text("summary", as_markdown(full_summary), int(summary.get("rounds") or 0))
        self._writer.close()
