"""Differential privacy of what crosses the cut: the mechanism and its accounting.

The names here need no torch. The mechanism on tensors is in `flwr_splitmix.privacy.mechanism`, the
papers' formulas are in `flwr_splitmix.privacy.paper`, and the adapter for Flower's accounting tools
is in `flwr_splitmix.privacy.flower`.
"""

from flwr_splitmix.privacy.account import RunAccount
from flwr_splitmix.privacy.calibration import ReleasePlan
from flwr_splitmix.privacy.events import Event, Exposure, Gaussian, Relation, Release
from flwr_splitmix.privacy.ledger import Ledger
from flwr_splitmix.privacy.masks import RandomMasks
from flwr_splitmix.privacy.noise import GaussianNoise
from flwr_splitmix.privacy.statement import Statement

__all__ = [
    "Event",
    "Exposure",
    "Gaussian",
    "GaussianNoise",
    "Ledger",
    "RandomMasks",
    "Relation",
    "Release",
    "ReleasePlan",
    "RunAccount",
    "Statement",
]
