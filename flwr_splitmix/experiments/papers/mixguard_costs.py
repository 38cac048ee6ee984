"""Table VI of MixGuard: its costs in time and bytes, and those of other methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr_splitmix.experiments.cells import Value, variant
from flwr_splitmix.experiments.experiment import Entry, Experiment, Ordering, TableScore, below
from flwr_splitmix.experiments.papers.mixguard_fhe import EncryptedModel
from flwr_splitmix.experiments.papers.mixguard_settings import COLA


@dataclass(frozen=True)
class PerStep(TableScore):
    """A score, or sum of several, over a whole run, divided by its number of training steps.

    Parameters
    ----------
    added
        Further keys of the summary, whose values are added to the first.
    """

    added: tuple[str, ...] = ()

    def value(self, summary: Mapping[str, Any]) -> float | None:
        """Return the score per step, in the summary's units; None without a value or a step."""
        values = [summary[key] for key in (self.key, *self.added) if key in summary]
        steps = int(summary.get("steps", 0))
        if not steps or len(values) <= len(self.added):
            return None
        return sum(map(float, values)) / steps


_PAPER_TIME = "ms a sample"
_PAPER_BYTES = "MB a sample"

_PLAIN, _NOISY, _ENCRYPTED, _MIXED = "No Defense", "DP-Forward", "EFA (FHE)", "MixGuard"

EACH_STEP: dict[str, Value] = {**COLA.base, "refine_every": 1}
"""Refinement in every step, as in the paper, whose bytes include it."""

PRINTED = {
    _PLAIN: (0.037, 8.0),
    _NOISY: (0.038, 8.0),
    _ENCRYPTED: (4454.9, 1920.0),
    _MIXED: (0.113, 40.0),
}
"""Seconds and megabytes per sample; those of EFA are the paper's own estimates."""


def _rows(row: str, options: dict[str, Value], method: str) -> tuple[Entry, ...]:
    return tuple(
        Entry(row, model, variant(method, options, model=model, clients=1), _printed(row))
        for model in COLA.models
    )


def _printed(row: str) -> dict[str, float]:
    if row not in PRINTED:
        return {}
    seconds, megabytes = PRINTED[row]
    return {_PAPER_TIME: 1e3 * seconds, _PAPER_BYTES: megabytes}


_FHE = EncryptedModel()

TABLE_6 = Experiment(
    "mixguard-table6",
    "time and bytes of a step, and what encryption would cost",
    "MixGuard, Table VI",
    (
        *_rows(_PLAIN, {}, "USplitSL"),
        *_rows(_NOISY, {"epsilon": 8.0, "delta": 1e-5, "clip_norm": 1.0}, "DPForwardSL"),
        *(Entry(_ENCRYPTED, model, None, _printed(_ENCRYPTED)) for model in COLA.models),
        *_rows(_MIXED, EACH_STEP, "MixGuard"),
        *_rows("MixGuard, refined at every eighth step (ours)", dict(COLA.base), "MixGuard"),
    ),
    (
        *below((_PLAIN,), _MIXED, COLA.models),
        *below((_MIXED,), _ENCRYPTED, COLA.models),
        *(Ordering((_PLAIN, model), (_MIXED, model), "uplink") for model in COLA.models),
        *(  # equal bytes: each within a byte of the other
            Ordering((low, model), (high, model), "uplink", slack=1.0)
            for model in COLA.models
            for low, high in ((_NOISY, _PLAIN), (_PLAIN, _NOISY))
        ),
    ),
    "Time is one thread's over the whole run, Stage I and the evaluation in it, divided by the "
    "steps of training; bytes are those of all messages, both ways. A step is a batch of 16 texts "
    "(8 at scale smoke), which are shorter than the paper's 512 tokens: compare the ratios to the "
    "first row. The paper's 8 and 40 MB are 4 and 6 m + 2 = 20 tensors of 512 x 2048 numbers in "
    "bfloat16, 2 MiB each. 8 of the 20 are of refinement, whose public texts are shorter here than "
    "the private ones. "
    f"EFA is not run. Its estimate, recomputed without rounding, is {_FHE.seconds():.0f} s a "
    f"sample and {_FHE.megabytes:.0f} MB a step (mixguard_fhe.py in "
    "flwr_splitmix/experiments/papers; appendix B.4): 67.1 h / "
    "8,551 texts / 2 layers, x 50/7 for the parameters of a layer, x 28 layers, x 2,643/1,671 for "
    f"the TFLOPS of the machines; and 4 transfers x {_FHE.ciphertexts} ciphertexts (512 x 2048 "
    "numbers, 32,768 slots) x 15 MB. The paper rounds in between, to 4,454.9.",
    track=COLA.track,
    scores=(
        PerStep("processor ms a step", "processor_s", 1e3, 1),
        PerStep("MB a step", "uplink_bytes", 1e-6, 3, ("downlink_bytes",)),
    ),
)
