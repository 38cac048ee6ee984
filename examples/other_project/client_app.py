"""What a node has: its images and the lower segment."""

import torch
from flwr.app import Context
from torch import Tensor, nn
from torch.utils.data import Subset

from flwr_splitmix import SplitClient, SplitClientApp
from flwr_splitmix.data import load_images


class Lower(nn.Module):
    """Images (b, 1, 32, 32) to smashed data (b, 16 patches, 64)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, 64, kernel_size=8, stride=8)
        self.position = nn.Parameter(0.02 * torch.randn(16, 64))

    def forward(self, images: Tensor) -> Tensor:
        """Embed each patch of 8 x 8 pixels."""
        return torch.add(self.embed(images).flatten(2).mT, self.position)


def client_fn(context: Context) -> SplitClient:
    """Give node i of n every n-th image."""
    i, n = (int(context.node_config[key]) for key in ("partition-id", "num-partitions"))
    data = Subset(load_images("fashion-mnist-small").train, range(i, 6000, n))
    return SplitClient(Lower(), data, batch_size=50)


app = SplitClientApp(client_fn)
