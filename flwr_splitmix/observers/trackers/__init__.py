"""Trackers: observers that send a run to TensorBoard, Weights & Biases, MLflow or a CSV file."""

from flwr_splitmix.observers.trackers.choice import TRACKERS, TrackerError, make_trackers
from flwr_splitmix.observers.trackers.tracker import Tracker

__all__ = ["TRACKERS", "Tracker", "TrackerError", "make_trackers"]
