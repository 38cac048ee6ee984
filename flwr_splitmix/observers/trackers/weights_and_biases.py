"""The tracker for Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import wandb

from flwr_splitmix.events import RunStarted
from flwr_splitmix.observers.trackers.tracker import Tracker

_PROJECT = "flwr-splitmix"


class WandbTracker(Tracker):
    """Sends a run to Weights & Biases, following its own settings and environment variables.

    A resumed run continues under the same id.

    Parameters
    ----------
    folder
        Where the library keeps its files, in `wandb/`; None uses the run's directory.
    mode
        None follows WANDB_MODE; "offline" writes to disk only, for a later `wandb sync`.
    """

    def __init__(self, folder: str | None = None, mode: Literal["offline"] | None = None) -> None:
        super().__init__(folder)
        self.mode = mode

    def begin(self, event: RunStarted, config: Mapping[str, Any]) -> None:
        """Start a Weights & Biases run, or continue the one of this run."""
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            id=event.run_id,
            name=str(config.get("label") or event.run_id or event.strategy),
            group=event.strategy,
            config=dict(config),
            dir=str(self.place(event, "")),
            resume="allow" if event.run_id else None,
            mode=self.mode,
            # Do not capture Flower's log.
            settings=wandb.Settings(console="off"),
        )
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")

    def numbers(self, values: Mapping[str, float], server_round: int) -> None:
        """Log the round's numbers."""
        self._run.log({**values, "round": server_round})

    def text(self, name: str, text: str, server_round: int) -> None:
        """Log a text."""
        self._run.log({name: wandb.Html(f"<pre>{_escaped(text)}</pre>"), "round": server_round})

    def picture(self, name: str, image: np.ndarray, server_round: int) -> None:
        """Log an image."""
        self._run.log({name: wandb.Image(image), "round": server_round})

    def finish(self, summary: Mapping[str, Any], error: str) -> None:
        """Write the summary and finish the run, with exit code 1 if it failed."""
        self._run.summary.update({**summary, "error": error} if error else dict(summary))
        self._run.finish(exit_code=1 if error else 0)


def offline() -> WandbTracker:
    """Make the tracker that writes to disk only."""
    return WandbTracker(mode="offline")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
