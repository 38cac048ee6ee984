"""Inference at the client alone, once it also has the trunk (MixGuard, section 4.5)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import nn

from flwr_splitmix.clients.evaluation_sets import evaluation_set
from flwr_splitmix.clients.ushape.client import UShapeClient
from flwr_splitmix.data.examples import fetch
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.seeding import derive_seed, seeded_draws


@torch.no_grad()
def score_locally(
    client: UShapeClient, trunk: nn.Module, kind: Literal["federated", "benchmark"]
) -> dict[str, float]:
    """Score a client's model on its test texts, without sending or mixing anything.

    Parameters
    ----------
    trunk
        The server's trunk, or `client.hiding.local_trunk` of it, on the client's device.

    Returns
    -------
    Scores by name, as a split evaluation returns them.

    Raises
    ------
    ClientError
        If the client has no test data of this kind.
    """
    data = evaluation_set(client.tests, kind)
    scores = client.scores()
    client.segments.eval()
    trunk.eval()
    size = client.batches.size
    examples = len(data)  # type: ignore[arg-type]
    with seeded_draws(client.device, derive_seed(0, "local inference")):
        for start in range(0, examples, size):
            places = np.arange(start, min(start + size, examples))
            example = fetch(data, places, floats=client.batches.floats)
            batch: MaskedBatch | None = scores.begin(MaskedBatch.of(example, client.device))
            while batch is not None:
                hidden = trunk(client.head(batch.inputs, batch.mask), batch.mask)
                batch = scores.add(client.tail(hidden, batch.mask), batch)
    return scores.result()
