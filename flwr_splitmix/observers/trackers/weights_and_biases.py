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

_QUIET: dict[str, Any] = {
    "console": "off",  # Flower's log
    "host": "",
    "program": "splitmix",  # not the path of the script
    "disable_git": True,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}
"""Settings under which the library sends nothing of the machine: no log, no name, no repository, no
command and folder of the process, no hardware, no packages."""


class WandbTracker(Tracker):
    """Sends a run to Weights & Biases, following its own settings and environment variables.

    Nothing about the machine is sent unless an environment variable asks for it, as
    `WANDB_X_DISABLE_STATS=false` does for the load of processors. A resumed run continues under
    the same id.

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
            settings=wandb.Settings(**_settings()),
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


def _settings() -> dict[str, Any]:
    """Return the quiet settings that no environment variable of the library sets."""
    return {name: v for name, v in _QUIET.items() if f"WANDB_{name.upper()}" not in os.environ}


def offline() -> WandbTracker:
    """Make the tracker that writes to disk only."""
    return WandbTracker(mode="offline")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
