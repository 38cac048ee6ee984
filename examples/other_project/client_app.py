from flwr.app import Context
from torch import Tensor, nn

from flwr_splitmix import SplitClient, SplitClientApp
from flwr_splitmix.data import client_split, load_images


class Lower(nn.Conv2d):  # images (b, 1, 32, 32) to smashed data (b, 16 patches, 64)
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).flatten(2).mT


def client_fn(context: Context) -> SplitClient:
    index, clients = (int(context.node_config[k]) for k in ("partition-id", "num-partitions"))
    data, _ = client_split(load_images("fashion-mnist-small"), index, clients)
    return SplitClient(Lower(1, 64, 8, stride=8), data, batch_size=50)


app = SplitClientApp(client_fn)
