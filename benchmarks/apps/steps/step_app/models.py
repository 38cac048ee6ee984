"""A ViT to be timed, whole and split, and clients for either model."""

from __future__ import annotations

import copy

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from flwr_splitmix import SplitClient, adamw, split_vision_model
from flwr_splitmix.schedule import constant

from .lenet import BATCH, CLASSES, CLIENTS, Split, images


def vit(depth: int) -> Split:
    """ViT-Tiny cut at the embedding: 64 patches of width 192 an image, 1.6 MB a client."""
    model = split_vision_model(patch_size=4, depth=depth, channels=3, seed=0)
    return Split(model.lower, model.upper, adamw(), 3)


class NearlyEmpty(nn.Module):
    """An upper segment that costs next to nothing but has a dense cut-layer gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(192, CLASSES)

    def forward(self, smashed: Tensor) -> Tensor:
        """Classify the mean patch."""
        logits: Tensor = self.head(smashed.mean(1))
        return logits


def make_client(client: int, model: Split) -> SplitClient:
    """Make one client with a lower segment of its own."""
    return SplitClient(
        copy.deepcopy(model.lower),
        TensorDataset(*images(client, model.channels)),
        batch_size=BATCH,
        optimizer=model.optimizer,
        schedule=constant,
        device="cpu",
    )


class Unsplit:
    """The whole model, trained on the concatenated batch as one would without any of this."""

    def __init__(self, model: Split) -> None:
        self.model = nn.Sequential(copy.deepcopy(model.lower), copy.deepcopy(model.upper))
        self.optimizer = model.optimizer(self.model.parameters())
        self.inputs, self.labels = images(0, model.channels, CLIENTS * BATCH)

    def __call__(self) -> None:
        """Take one step: forward, loss, backward, optimizer."""
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.model(self.inputs), self.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        loss.item()
