"""The ClientApp; a node's client is made by `flwr_splitmix.apps.language.client`."""

from flwr_splitmix import SplitClientApp
from flwr_splitmix.apps.language.client import client_fn

app = SplitClientApp(client_fn)
