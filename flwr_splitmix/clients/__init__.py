"""What lives at a client: lower segments, data, optimizers, and all that a server may call."""

from flwr_splitmix.clients.client import Client, ClientError, Order, exchange
from flwr_splitmix.clients.privacy_guard import PrivacyBudget
from flwr_splitmix.clients.split_client import SplitClient

__all__ = ["Client", "ClientError", "Order", "PrivacyBudget", "SplitClient", "exchange"]
