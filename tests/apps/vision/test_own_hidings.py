"""Facts of a hiding that no method of the catalogue has are asked of it, and not of its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flwr_splitmix.apps.checking.report import Report
from flwr_splitmix.apps.ushape.noise import remark_spending
from flwr_splitmix.apps.vision.attacked import attacked_run
from flwr_splitmix.apps.vision.attacked_ushape import AttackedImages
from flwr_splitmix.apps.vision.ushape_check import advise, remark_noise
from flwr_splitmix.apps.vision.ushape_keys import IMAGE_USHAPE
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import DPForward, Hiding, SentBatch
from flwr_splitmix.hiding.charges import PlannedClient
from flwr_splitmix.runs import RunError
from flwr_splitmix.strategies import USHAPE_STRATEGIES, UShapeStrategy
from tests.apps.ushape_fit import fit, read
from tests.apps.ushape_work import UNHURRIED


class Halved(Hiding):
    """Sends two messages whose sum is the hidden states."""

    mixes_batch = False

    @classmethod
    def messages_per_batch(cls, options: Mapping[str, Any]) -> int:
        return 2

    def obfuscate(self, batch: MaskedBatch) -> SentBatch:
        hidden = self.side.head(batch.inputs, batch.mask)
        part = torch.rand_like(hidden)
        return SentBatch([hidden - part, part], batch.mask, batch)

    def recover(self, outputs: Sequence[Tensor], sent: SentBatch) -> Tensor:
        return torch.stack(list(outputs)).sum(0)


class Blended(Hiding):
    """Sends means of neighbours, and states nothing of it."""

    def obfuscate(self, batch: MaskedBatch) -> SentBatch:
        hidden = self.side.head(batch.inputs, batch.mask)
        return SentBatch([(hidden + hidden.roll(1, 0)) / 2], batch.mask, batch)


class TwiceCharged(DPForward):
    """Charges each record twice."""

    def charge(self, kind: str, records: np.ndarray) -> None:
        for _ in range(2):
            super().charge(kind, records)


@pytest.fixture(autouse=True)
def _strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    for hiding in (Halved, Blended, TwiceCharged):
        name = f"{hiding.__name__}SL"
        kind: Any = type(name, (UShapeStrategy,), {"hiding": hiding})
        monkeypatch.setitem(USHAPE_STRATEGIES, name, kind)
        monkeypatch.setitem(IMAGE_USHAPE, name, kind)


def test_each_message_of_a_batch_is_advised_on() -> None:
    plain, twice = (
        advise(read(strategy=name), 2, {**UNHURRIED, "server_flops": 1.0}).cuts[0]
        for name in ("USplitSL", "HalvedSL")
    )
    mask = plain.uplink_bytes - plain.downlink_bytes
    assert twice.uplink_bytes - mask == 2 * (plain.uplink_bytes - mask)
    assert twice.downlink_bytes == 2 * plain.downlink_bytes


def test_several_messages_of_a_batch_are_not_attacked_as_one(tmp_path: Path) -> None:
    """An attack on the first alone would leave the others out."""
    fitted = fit(tmp_path, strategy="HalvedSL")
    with pytest.raises(RunError, match="HalvedSL send 2 messages for a batch"):
        attacked_run(fitted.run)


def test_a_hiding_that_mixes_a_batch_is_attacked_as_one_that_does(tmp_path: Path) -> None:
    """Images are not compared with what a head makes of parts of a batch."""
    attacked = attacked_run(fit(tmp_path, strategy="BlendedSL").run)
    assert isinstance(attacked, AttackedImages)
    assert attacked.knowledge.mixes_batch


def test_no_epsilon_is_planned_by_what_another_class_charges() -> None:
    report = Report("vision", 2, nodes_known=True)
    remark_noise(read(strategy="TwiceChargedSL"), report)
    (remark,) = report.remarks
    assert remark.startswith(
        "this run's epsilon is not known beforehand: TwiceCharged does not say"
    )


def test_a_hiding_that_says_what_it_charges_has_a_plan() -> None:
    class Stated(TwiceCharged):
        planned_charges = DPForward.planned_charges

    report, config = Report("vision", 2, nodes_known=True), read(strategy="DPForwardSL")
    planned = PlannedClient(
        batch_size=4,
        head_learns=True,
        returns=True,
        averaged=False,
        padded=False,
        scored=False,
        tested=0,
    )
    remark_spending(config, Stated(), planned, [8], report, record="image")
    assert report.remarks[0].startswith("planned privacy: epsilon ")
