"""Leak against utility: MixGuard on CoLA with every sampler of secrets."""

from __future__ import annotations

from flwr_splitmix.experiments.cells import Value, variant
from flwr_splitmix.experiments.experiment import Entry, Experiment, Ordering
from flwr_splitmix.experiments.papers.mixguard_cola import (
    CONVEX,
    MIXGUARD_COLA,
    OPTIONS,
    SKEWED,
)
from flwr_splitmix.experiments.scales import ENCODER, STORIES

_WHOLE = "unsplit"

_ROTATED: dict[str, Value] = {**OPTIONS, "sampler": "rotated", "mask": "target"}

_SECRETS: dict[str, dict[str, Value]] = {
    "rotated": _ROTATED,
    "rotated, max_distortion 0.4": {**_ROTATED, "max_distortion": 0.4},
    "convex 1": CONVEX,
    "convex 2": {**CONVEX, "support_scale": 2.0},
    "skewed 1": {**SKEWED, "support_scale": 1.0},
    "skewed 1.5": SKEWED,
    "skewed 2": {**SKEWED, "support_scale": 2.0},
    "convex 1, residual decoding (extension)": {**CONVEX, "decoding": "residual"},
    "skewed 1.5, residual decoding (extension)": {**SKEWED, "decoding": "residual"},
}
"""Options by row, named by sampler and strength as in docs/mixguard.md. Some equal options of
`mixguard-cola`, so that both tables share runs."""


def _curve(name: str, model: str, title: str, note: str) -> Experiment:
    """Make the experiment for one model."""

    def entry(row: str, method: str, options: dict[str, Value]) -> Entry:
        return Entry(row, model, variant(method, options, model=model, clients=1))

    return Experiment(
        name,
        title,
        "MixGuard, equations 14 to 19; the samplers are ours",
        (
            entry(_WHOLE, "Unsplit", {}),
            entry("U shape", "USplitSL", {}),
            *(entry(row, "MixGuard", options) for row, options in _SECRETS.items()),
        ),
        tuple(Ordering((_WHOLE, model), (row, model), slack=5.0) for row in _SECRETS),
        note,
        track="cola",
        scores=tuple(score for score in MIXGUARD_COLA.scores if score.key != "local_matthews"),
    )


_NOTE = (
    "The paper names no distribution of secrets, and prints no such table; its claim is that "
    "MixGuard is close to unsplit, here within 5 points. All rows have k = m = 3 and each text's "
    "own mask, an extension. Numbers behind a sampler are the supports' part of a message over the "
    "target's. Errors are those of decoded public texts before and after calibration, relative to "
    "what the trunk makes of the texts themselves; the leak is the |cos| of the best message, or "
    "of their sum, with a public text: what is read from a message as it is, not by an attack."
)

MIXGUARD_CURVE = _curve(
    "mixguard-curve",
    ENCODER,
    "what each sampler of secrets leaks, and what it costs, on a pretrained encoder",
    _NOTE,
)

MIXGUARD_CURVE_STORIES = _curve(
    "mixguard-curve-stories15m",
    STORIES,
    "what each sampler of secrets leaks, and what it costs, on a pretrained decoder",
    f"{_NOTE} Scale smoke makes a tiny decoder.",
)

CURVES = (MIXGUARD_CURVE, MIXGUARD_CURVE_STORIES)
"""All experiments of this module."""
