"""Inference at the client alone, once it has the trunk too (MixGuard, section 4.5)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.clients.ushape_client import UShapeClient
from flwr_splitmix.data.batches import fetch
from flwr_splitmix.data.texts.batch import TextBatch
from flwr_splitmix.hiding.mixguard import Calibration


class CalibratedTrunk(nn.Module):
    """A trunk with a client's calibrator behind it; it takes what the trunk takes.

    Put in place of the trunk it is what a tail was trained behind: for logits, for
    `segments.language.generate`, for `score_locally`.
    """

    def __init__(self, trunk: nn.Module, calibration: Calibration) -> None:
        super().__init__()
        self.trunk = trunk
        self.calibrator = calibration.calibrator

    def forward(self, hidden: Tensor, mask: Tensor | None = None, *cache: Any) -> Tensor:
        """Pass hidden states (b, T, d) through both; a cache goes to the trunk."""
        calibrated: Tensor = self.calibrator(self.trunk(hidden, mask, *cache))
        return calibrated


@torch.no_grad()
def score_locally(
    client: UShapeClient, trunk: nn.Module, kind: Literal["federated", "benchmark"]
) -> dict[str, float]:
    """Score a client's model on its test texts with nothing sent and nothing mixed.

    Parameters
    ----------
    trunk
        On the client's device: the server's, or a `CalibratedTrunk`.

    Returns
    -------
    Scores by name, as a split evaluation returns them.

    Raises
    ------
    ClientError
        If the client has no such test data.
    """
    data = client.tests[kind]
    if data is None:
        raise ClientError(f"this client has no {kind} test data")
    scores = client.scores()
    client.segments.eval()
    trunk.eval()
    size = client.batches.size
    examples = len(data)  # type: ignore[arg-type]
    for start in range(0, examples, size):
        example = fetch(data, np.arange(start, min(start + size, examples)))
        batch: TextBatch | None = scores.begin(TextBatch.of(example, client.device))
        while batch is not None:
            hidden = trunk(client.head(batch.ids, batch.mask), batch.mask)
            batch = scores.add(client.tail(hidden, batch.mask), batch)
    return scores.result()
