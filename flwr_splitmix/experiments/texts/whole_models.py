"""A whole language model, fine-tuned as the baseline of split fine-tuning."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flwr_splitmix.clients import ClientError, exchange
from flwr_splitmix.data.examples import ExampleSet, fetch
from flwr_splitmix.data.masked_batch import NOTHING, MaskedBatch
from flwr_splitmix.experiments.baselines import WholeClient
from flwr_splitmix.scoring.texts import ClassScores, Scores, text_loss


class WholeTexts(nn.Module):
    """Head, trunk and tail as one model.

    It maps ids (b, T), -1 beyond a text's end, to logits (b, L) or (b, T, V).
    """

    def __init__(self, head: nn.Module, trunk: nn.Module, tail: nn.Module) -> None:
        super().__init__()
        self.head, self.trunk, self.tail = head, trunk, tail

    def forward(self, ids: Tensor) -> Tensor:  # noqa: D102
        mask = (ids != NOTHING).long()
        logits: Tensor = self.tail(self.trunk(self.head(ids.clamp(min=0), mask), mask), mask)
        return logits


class WholeTextClient(WholeClient):
    """A client with a whole language model, scored like a U-shaped one.

    Parameters
    ----------
    scores
        Factory of an evaluation's scores.
    model, data, **options
        As for `WholeClient`.
    """

    def __init__(
        self,
        model: nn.Module,
        data: ExampleSet,
        *,
        scores: Scores = ClassScores,
        **options: Any,
    ) -> None:
        super().__init__(model, data, **options)
        self.scores = scores

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a batch, over texts or over tokens with a label."""
        return text_loss(logits, labels)

    @exchange
    def score(self) -> dict[str, Any]:
        """Score the model on the common test set.

        Returns
        -------
        "loss" and "correct", to be divided by "examples" (means over texts for classification,
        over the answers' tokens for generation); and "scores" with the other scores.
        """
        data = self.tests["benchmark"]
        if data is None:
            raise ClientError("this client has no benchmark test data")
        size, step = len(data), self.batches.size  # type: ignore[arg-type]
        scores = self.scores()
        self.segment.eval()
        with torch.inference_mode():
            for start in range(0, size, step):
                example = fetch(data, np.arange(start, min(start + step, size)))
                batch: MaskedBatch | None = scores.begin(MaskedBatch.of(example, self.device))
                while batch is not None:
                    ids = batch.inputs.masked_fill(batch.mask == 0, NOTHING)
                    batch = scores.add(self._logits(ids), batch)
        means = scores.result()
        right = size * means.pop("accuracy")
        return {
            "loss": size * means.pop("loss"),
            "correct": right if "perplexity" in means else round(right),
            "examples": size,
            "scores": means,
        }
