"""A loss of one's own that keeps a state, over checkpoints."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from flwr_splitmix.runs import Run
from flwr_splitmix.schedule import constant
from flwr_splitmix.server.segments.upper import ServerSegment
from flwr_splitmix.strategies import PSL
from flwr_splitmix.testing.toy import Toy, sgd

TOY = Toy()


class RareClassesCount(nn.Module):
    """Cross-entropy, weighted by the classes' shares in the batches so far."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(3, dtype=torch.float64))

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the losses (b,)."""
        self.seen += targets.sum(0).detach()
        weight = self.seen.sum() / self.seen
        return -(targets * weight * logits.log_softmax(1)).sum(1)


def rounds(run: Run | None, number: int) -> list[float]:
    strategy = PSL(
        TOY.upper(), loss=RareClassesCount(), optimizer=sgd(0.1), schedule=constant, device="cpu",
        steps_per_round=3, run=run,
    )  # fmt: skip
    strategy.fit(TOY.make_clients(sgd(0.1)), number)
    return [row["loss"] for row in strategy.rows]


def test_a_resumed_run_goes_on_with_the_state_of_its_loss(tmp_path: Path) -> None:
    """Before: the state began anew, and nothing said so."""
    run = Run.create({}, name="PSL", home=tmp_path)
    rounds(run, 2)
    assert rounds(Run.open(run.id, home=tmp_path), 4) == rounds(None, 4)


def test_a_checkpoint_without_a_loss_s_state_leaves_it_as_it_is() -> None:
    before = ServerSegment(TOY.upper(), device="cpu")
    after = ServerSegment(TOY.upper(), loss=RareClassesCount(), device="cpu")
    after.restore(*before.state())
    assert isinstance(after.loss, RareClassesCount)
    assert after.loss.seen.tolist() == [1.0, 1.0, 1.0]
