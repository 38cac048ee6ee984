"""The ClientApp; a node's client is made by `flwr_splitmix.apps.vision.client`."""

from flwr_splitmix import SplitClientApp
from flwr_splitmix.apps.vision.client import client_fn
from flwr_splitmix.apps.vision.partitions import PARTITIONS, answer_partitions

app = SplitClientApp(client_fn)
app.query(PARTITIONS)(answer_partitions)
