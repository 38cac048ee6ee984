"""A further method of the U shape: a file in `strategies/`, one in `hiding/`, and an entry."""

from __future__ import annotations

from typing import Any

import pytest

from flwr_splitmix.words import epsilon_text
from tests.strategies.added_method import Copy

HIDING = '''"""Veiled: clips each example's hidden states and adds noise; a ledger counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding.charges import Charges, PlannedClient
from flwr_splitmix.hiding.exchanged import ClientSide, SentBatch
from flwr_splitmix.hiding.hiding import Hiding
from flwr_splitmix.hiding.record_ledger import RecordLedger
from flwr_splitmix.privacy.covering_noise import CoveringNoise
from flwr_splitmix.privacy.mechanism import add_noise, clip_smashed
from flwr_splitmix.privacy.noise import GaussianNoise
from flwr_splitmix.privacy.statement import Statement


class Veiled(Hiding):
    """Clips, and adds noise in multiples of the clipping norm."""

    accounts = True
    rests_on = ("obfuscate",)
    own_masks = False
    mixes_batch = False

    def __init__(
        self, noise_multiplier: float = 1.0, clip_norm: float = 1.0, delta: float = 1e-5
    ) -> None:
        super().__init__()
        self.noise_multiplier, self.clip_norm, self.delta = noise_multiplier, clip_norm, delta
        self.noise = GaussianNoise(
            sigma_s=noise_multiplier * clip_norm, sigma_y=0.0, clip="sample", clip_norm=clip_norm
        )
        self.covering = CoveringNoise(
            sigma=self.noise.sigma_s, moved=2 * clip_norm, bound=clip_norm
        )
        self.ledger = RecordLedger()

    def attach(self, side: ClientSide) -> None:
        """Begin a round."""
        super().attach(side)
        self.ledger.begin_round(side, self.covering)

    def charge(self, kind: str, records: np.ndarray) -> None:
        """Charge each example for a message."""
        attempt = 0 if kind == "train" else self.side.attempt
        self.ledger.charge(kind, records, self.covering, attempt=attempt)

    def planned_charges(self, planned: PlannedClient) -> Charges:
        """Return the charge of a message."""
        return Charges(delta=self.delta, noise=self.covering, tested=planned.tested)

    def obfuscate(self, batch: MaskedBatch) -> SentBatch:
        """Clip and add noise."""
        hidden: Tensor = self.side.head(batch.inputs, batch.mask)
        hidden = hidden.where(batch.mask.unsqueeze(-1) != 0, 0.0)
        noisy = add_noise(clip_smashed(hidden, self.noise), self.noise.sigma_s)
        return SentBatch([noisy.to(hidden.dtype)], batch.mask, batch)

    def statement(self) -> Statement:
        """Return what was spent."""
        return self.ledger.statement(self.delta)

    @property
    def epsilon(self) -> float:
        """What was spent."""
        return self.ledger.epsilon(self.delta)

    def metrics(self) -> dict[str, float]:
        """Return the epsilon so far."""
        return {"epsilon": self.epsilon}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the ledger."""
        return {}, {"ledger": self.ledger.state()}

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self.ledger.restore(meta["ledger"])
'''

STRATEGY = '''"""VeiledSL."""

from __future__ import annotations

from flwr_splitmix.hiding import Veiled
from flwr_splitmix.strategies.ushape import UShapeStrategy


class VeiledSL(UShapeStrategy):
    """Split learning in the U shape with veiled hidden states."""

    hiding = Veiled
'''

ENTRY = (
    '    Method(name="VeiledSL", module="veiled_sl", shape="U", mixer="Veiled", at_cut="veils", '
    'up="as USplitSL", protects="inputs", epsilon="its messages", noise=("noise-multiplier",)),\n'
)


@pytest.fixture(scope="module")
def uses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    copy = Copy(tmp_path_factory.mktemp("with_a_new_ushape_method"))
    copy.add("hiding/veiled.py", HIDING)
    copy.insert(
        "hiding/__init__.py",
        "from flwr_splitmix.hiding.veiled import Veiled\n",
        before="\nHIDINGS: ",
    )
    copy.insert("hiding/__init__.py", ", Veiled", before=')\n"""The methods that hide')
    copy.insert("hiding/__init__.py", '    "Veiled",\n', before="]\n")
    copy.add("strategies/veiled_sl.py", STRATEGY)
    copy.insert("methods/__init__.py", ENTRY, before=')  # fmt: skip\n"""All methods')
    return copy.uses("uses_of_a_ushape_method", "VeiledSL")


@pytest.mark.parametrize("app", ["vision", "language"])
def test_a_check_plans_the_epsilon_that_its_run_spends(uses: dict[str, Any], app: str) -> None:
    """A check plans with the new method's own ledger."""
    checked = uses["checked"][app]
    assert checked["exit"] == 0, checked
    (planned,) = (remark for remark in checked["remarks"] if remark.startswith("planned privacy"))
    assert f"epsilon {epsilon_text(uses['spent'][app])} at delta 1e-05" in planned


def test_its_run_is_shown_with_its_noise(uses: dict[str, Any]) -> None:
    (line,) = (line for line in uses["shown"] if line.startswith("options"))
    assert "noise-multiplier 1" in line


def test_it_has_a_row_of_the_matrix_and_of_the_pages_table(uses: dict[str, Any]) -> None:
    assert "VeiledSL" in uses["matrix"]
    assert uses["rows"] == ["| `VeiledSL` | veils | as USplitSL | inputs |"]
