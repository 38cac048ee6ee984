"""A loss of one's own that keeps a state, which checkpoints do not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.runs import Run
from flwr_splitmix.strategies import PSL
from flwr_splitmix.testing.toy import Toy

TOY = Toy()


class RareClassesCount(nn.Module):
    """Cross-entropy, weighted by the classes' shares in the batches so far."""

    class_counts: Tensor

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.counts = counts
        self.register_buffer("class_counts", torch.ones(3, dtype=torch.float64))

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the losses (b,)."""
        if self.counts:
            self.class_counts += targets.sum(0).detach()
        weight = self.class_counts.sum() / self.class_counts
        return -(targets * weight * logits.log_softmax(1)).sum(1)


@pytest.mark.parametrize(("counts", "times"), [(True, 1), (False, 0)])
def test_that_a_state_is_not_kept_is_told_once(
    counts: bool, times: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run.create({}, name="PSL", home=tmp_path)
    strategy = PSL(
        TOY.upper(), loss=RareClassesCount(counts), device="cpu", steps_per_round=2, run=run
    )
    strategy.fit(TOY.make_clients(), 2)
    warning = "the loss RareClassesCount has a state that changes in training, which checkpoints do"
    assert caplog.text.count(warning) == times
