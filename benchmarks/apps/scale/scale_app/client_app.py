"""The ClientApp: a small ViT on the shipped images, equally many of them whatever the number."""

from __future__ import annotations

import copy
from functools import lru_cache

import numpy as np
from flwr.app import Context

from flwr_splitmix import SplitClient, SplitClientApp, split_vision_model
from flwr_splitmix.data import load_images
from flwr_splitmix.segments import SplitModel

BATCH, EXAMPLES = 32, 128


@lru_cache
def model() -> SplitModel:
    """ViT-Tiny with two blocks, 16 patches, cut at the embedding."""
    return split_vision_model(patch_size=8, depth=2, channels=1, seed=0)


def client_fn(context: Context) -> SplitClient:
    """Make the client of one node; 1,000 clients share the 6,000 images among them."""
    images = load_images("fashion-mnist-small", image_size=32).train
    first = int(context.node_config["partition-id"]) * EXAMPLES
    indices = (first + np.arange(EXAMPLES)) % len(images)
    return SplitClient(
        copy.deepcopy(model().lower), images.subset(indices), batch_size=BATCH, device="cpu"
    )


app = SplitClientApp(client_fn)
