"""The MLflow tracker."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.utils.time import get_current_time_millis

from flwr_splitmix.events import RunStarted
from flwr_splitmix.files.json_values import finite
from flwr_splitmix.observers.trackers.tracker import Tracker

_EXPERIMENT = "flwr-splitmix"
_TAG = "splitmix.run"


class MlflowTracker(Tracker):
    """Sends a run to MLflow: to $MLFLOW_TRACKING_URI, or a folder `mlruns` beside all runs.

    A resumed run continues the same MLflow run, which is found by a tag.

    Parameters
    ----------
    folder
        Folder of the file store; None chooses as above.
    """

    def begin(self, event: RunStarted, config: Mapping[str, Any]) -> None:
        """Start an MLflow run, or continue the one of this run."""
        self._client = MlflowClient(tracking_uri=self._uri(event))
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _EXPERIMENT)
        existing = self._client.get_experiment_by_name(name)
        experiment = existing.experiment_id if existing else self._client.create_experiment(name)
        tag_filter = f"tags.`{_TAG}` = '{event.run_id}'"
        earlier = self._client.search_runs([experiment], tag_filter) if event.run_id else []
        if earlier:
            self._id = earlier[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {_TAG: event.run_id} if event.run_id else {}
        called = str(config.get("label") or event.run_id or event.strategy)
        self._id = self._client.create_run(experiment, run_name=called, tags=tags).info.run_id
        for key, value in config.items():
            self._client.log_param(self._id, key, value)

    def _uri(self, event: RunStarted) -> str | None:
        if self.folder is None and os.environ.get("MLFLOW_TRACKING_URI"):
            return None
        # A folder needs no server and no database, but MLflow requires this opt-in.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        # One store for all runs of a directory, so that MLflow can compare them.
        folder = self.folder or self.place(event, "").parents[1] / "mlruns"
        return folder.resolve().as_uri()

    def numbers(self, values: Mapping[str, float], server_round: int) -> None:
        """Log the round's numbers."""
        timestamp = get_current_time_millis()
        metrics = [Metric(name, value, timestamp, server_round) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def text(self, name: str, text: str, server_round: int) -> None:
        """Log a text as an artifact."""
        self._client.log_text(self._id, text, f"{name}/round-{server_round:06d}.txt")

    def picture(self, name: str, image: np.ndarray, server_round: int) -> None:
        """Log an image as an artifact."""
        self._client.log_image(self._id, image, f"{name}/round-{server_round:06d}.png")

    def finish(self, summary: Mapping[str, Any], error: str) -> None:
        """Log the summary as an artifact, and mark the run as finished or failed."""
        self._client.log_dict(self._id, finite(summary), "summary.json")
        if error:
            self._client.set_tag(self._id, "error", error[:500])
        self._client.set_terminated(self._id, "FAILED" if error else "FINISHED")
