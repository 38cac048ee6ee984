"""A language model in one piece, fine-tuned as the baseline of split fine-tuning."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flwr_splitmix.clients import ClientError, exchange
from flwr_splitmix.data.batches import fetch
from flwr_splitmix.data.texts.batch import NOTHING, TextBatch
from flwr_splitmix.experiments.baselines import WholeClient
from flwr_splitmix.scoring.texts import ClassScores


class WholeTexts(nn.Module):
    """Head, trunk and tail as one model: ids (b, T), -1 behind a text's end, to logits (b, L)."""

    def __init__(self, head: nn.Module, trunk: nn.Module, tail: nn.Module) -> None:
        super().__init__()
        self.head, self.trunk, self.tail = head, trunk, tail

    def forward(self, ids: Tensor) -> Tensor:  # noqa: D102
        mask = (ids != NOTHING).long()
        logits: Tensor = self.tail(self.trunk(self.head(ids.clamp(min=0), mask), mask), mask)
        return logits


class WholeTextClient(WholeClient):
    """A client that holds a whole language model, scored as a U-shaped one is."""

    @exchange
    def score(self) -> dict[str, Any]:
        """Score the model on the common test set; "scores" has the Matthews correlation."""
        data = self.tests["benchmark"]
        if data is None:
            raise ClientError("this client has no benchmark test data")
        size, batch = len(data), self.batches.size  # type: ignore[arg-type]
        scores = ClassScores()
        self.segment.eval()
        with torch.inference_mode():
            for start in range(0, size, batch):
                example = fetch(data, np.arange(start, min(start + batch, size)))
                scores.add(self._logits(example[0]), TextBatch.of(example, self.device))
        means = scores.result()
        return {
            "loss": size * means.pop("loss"),
            "correct": round(size * means.pop("accuracy")),
            "examples": size,
            "scores": means,
        }
