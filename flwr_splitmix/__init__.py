"""Split learning for Flower.

The lower segment of a model stays with each client, the upper segment and the mixer live with the
ServerApp. Flower messages carry the rounds, a link carries the steps. Strategies are in
`flwr_splitmix.strategies`.
"""

from flwr_splitmix.client_app import SplitClientApp
from flwr_splitmix.clients import SplitClient
from flwr_splitmix.links import LocalLink, RayLink
from flwr_splitmix.runs import Run
from flwr_splitmix.schedule import WarmupCosine, adamw
from flwr_splitmix.segments import split_vision_model

__all__ = [
    "LocalLink",
    "RayLink",
    "Run",
    "SplitClient",
    "SplitClientApp",
    "WarmupCosine",
    "adamw",
    "split_vision_model",
]
