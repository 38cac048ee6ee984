"""The client side: lower segments, data, optimizers, and everything that a server may call."""

from flwr_splitmix.clients.client import (
    NO_DATA,
    Client,
    ClientError,
    Order,
    WrappedError,
)
from flwr_splitmix.clients.exchanges import exchange
from flwr_splitmix.clients.guards.privacy_budget import PrivacyBudget
from flwr_splitmix.clients.split.client import SplitClient
from flwr_splitmix.clients.ushape.client import UShapeClient
from flwr_splitmix.clients.ushape.local_inference import score_locally
from flwr_splitmix.clients.ushape.mixguard_client import MixGuardClient
from flwr_splitmix.data.texts.text_set import TextSet
from flwr_splitmix.hiding import SentBatch

__all__ = [
    "NO_DATA",
    "Client",
    "ClientError",
    "MixGuardClient",
    "Order",
    "PrivacyBudget",
    "SentBatch",
    "SplitClient",
    "TextSet",
    "UShapeClient",
    "WrappedError",
    "exchange",
    "score_locally",
]
