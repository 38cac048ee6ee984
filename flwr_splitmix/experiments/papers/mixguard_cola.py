"""Column CoLA of MixGuard's Table II, with a pretrained encoder in the U shape."""

from __future__ import annotations

from dataclasses import replace

from flwr_splitmix.experiments.cells import Value, variant
from flwr_splitmix.experiments.experiment import Entry, Experiment, Ordering, TableScore, below
from flwr_splitmix.experiments.scales import ENCODER

_AT = ENCODER
_PAPER = "CoLA accuracy"
_WHOLE, _MIXED, _LIGHT, _NAIVE = "unsplit", "MixGuard", "MixGuard, light secrets", "Naive Mix"

OPTIONS: dict[str, Value] = {"k": 3, "m": 3, "secret_tokens": 0, "refine_every": 8}
"""Options of the client. Secret tokens could change labels; refining in every step would lengthen
steps by nearly half."""

LIGHT: dict[str, Value] = {
    **OPTIONS, "sampler": "rotated", "support_scale": 0.3, "max_distortion": 0.05
}  # fmt: skip
"""Messages close to the text: they hide next to nothing, but decode well behind this trunk."""

CONVEX: dict[str, Value] = {**OPTIONS, "sampler": "convex", "mask": "target"}
SKEWED: dict[str, Value] = {
    **OPTIONS, "sampler": "skewed", "support_scale": 1.5, "mask": "target"
}  # fmt: skip
"""Secrets that amplify no errors; the trunk gets the text's own mask, and so its length."""

DEFENCES: dict[str, tuple[str, dict[str, Value]]] = {
    "DP-SGD": ("DPSGDSL", {"clip_norm": 1.0, "noise_multiplier": 1.0}),
    "DP-Forward": ("DPForwardSL", {"epsilon": 8.0, "delta": 1e-5, "clip_norm": 1.0}),
    "SnD": ("SnDSL", {"eta": 100.0, "refine_every": 8}),
}
"""Method and options of the other defences, whose budget the paper does not state."""

_DEFENDED = {"DP-SGD": 84.5, "DP-Forward": 78.6, "SnD": 30.9}


def _entry(row: str, method: str, options: dict[str, Value], paper: float | None = None) -> Entry:
    printed = {} if paper is None else {_PAPER: paper}
    return Entry(row, _AT, variant(method, options, model=ENCODER, clients=1), printed)


_NOTE = (
    "One client, in-domain dev as the test set. The paper fine-tunes Qwen3-1.7B; here it is an "
    "encoder of six layers, one of them in the head, one in the tail. Without calibration there is "
    "no residual that the noise on gradients could follow, so there is none. Errors are those of "
    "decoded public texts, relative to what the trunk makes of the texts themselves; the leak is "
    "the |cos| of the best message, or of their sum, with a public text. Light "
    "secrets have supports of less weight and distort little, as the paper's need not. The budgets "
    "of DP-SGD, DP-Forward and SnD, which the paper does not state, are this package's defaults. "
    "Local: all parts at the client, nothing mixed. MixGuard without further words has the default "
    "secrets, skewed with supports of weight 1, and the paper's mask, the union of all."
)

MIXGUARD_COLA = Experiment(
    "mixguard-cola",
    "split fine-tuning of a pretrained encoder on CoLA: what mixing costs",
    "MixGuard, Table II, column CoLA",
    (
        _entry(_WHOLE, "Unsplit", {}, 83.8),
        _entry("U shape", "USplitSL", {}),
        *(_entry(row, *DEFENCES[row], paper) for row, paper in _DEFENDED.items()),
        _entry(_MIXED, "MixGuard", OPTIONS, 84.6),
        _entry("MixGuard, convex secrets", "MixGuard", CONVEX),
        _entry("MixGuard, skewed secrets", "MixGuard", SKEWED),
        _entry(_LIGHT, "MixGuard", LIGHT),
        _entry(
            f"{_LIGHT}, not calibrated",
            "MixGuard",
            {**LIGHT, "calibration_epochs": 0, "refine_every": 0, "perturbation": None},
        ),
        _entry(_NAIVE, "NaiveMixSL", {"lam": 0.5}, 49.8),
    ),
    (
        *(Ordering((_WHOLE, _AT), (row, _AT), slack=5.0) for row in (_MIXED, _LIGHT)),
        *(Ordering((_NAIVE, _AT), (row, _AT)) for row in (_MIXED, _LIGHT)),
        *below((_NAIVE,), _WHOLE, (_AT,)),
        *below(("SnD",), _MIXED, (_AT,)),
    ),
    _NOTE,
    track="cola",
    scores=(
        TableScore("Matthews (x 100)", "eval_matthews"),
        TableScore("local", "local_matthews"),
        TableScore("accuracy (%)", "top1"),
        TableScore("decode error", "train_decode_error", 1.0),
        TableScore("calibrated", "train_calibrated_error", 1.0),
        TableScore("leak", "train_leak", 1.0),
        TableScore("processor s", "processor_s", 1.0, 0),
    ),
)

MIXGUARD_COLA_3000 = replace(
    MIXGUARD_COLA,
    name="mixguard-cola-3000",
    title="split fine-tuning of a pretrained encoder on CoLA in 3,000 steps: what mixing costs",
    note=f"Three times the steps of mixguard-cola at scale cpu, twice at scale paper. {_NOTE}",
    epochs={"cpu": 12, "paper": 6},
)

LANGUAGE = (MIXGUARD_COLA, MIXGUARD_COLA_3000)
"""All experiments of this module."""
