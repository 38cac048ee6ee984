"""Utility without noise in the DP-CutMix workshop paper: Oh et al., 2022."""

from __future__ import annotations

from flwr_splitmix.experiments.cells import Value, variant
from flwr_splitmix.experiments.experiment import (
    CIFAR,
    FASHION,
    Entry,
    Experiment,
    Ordering,
    below,
    ordered,
)
from flwr_splitmix.experiments.papers.cutmixsl import BEST, MODELS

_PROPOSED = "CutMixSL (proposed)"
_OTHERS = ("Standalone", "SL", "SplitFed", "Standalone w. Cutout", "SL w. Mixup")
_BOX = "SL w. Vanilla CutMix"

TABLE_1 = Experiment(
    "dp-cutmix-workshop-table1",
    "methods without noise: three models, two data sets",
    "DP-CutMix workshop paper, Table 1",
    tuple(
        Entry(row, model, variant(method, options, model=model), {CIFAR: c, FASHION: f})
        for row, method, options, cifar, fashion in (
            ("Standalone", "Standalone", {}, (48.84, 47.77, 54.97), (77.65, 78.21, 80.12)),
            ("SL", "PSL", {}, (57.21, 52.28, 62.62), (85.68, 82.35, 84.39)),
            ("SplitFed", "SFL", {}, (67.88, 55.63, 63.98), (89.17, 84.27, 87.34)),
            ("Standalone w. Cutout", "CutoutSL", {}, (53.86, 50.28, 56.65), (88.46, 86.48, 88.17)),
            ("SL w. Mixup", "MixupSL", BEST, (69.23, 64.89, 68.20), (88.21, 87.62, 88.53)),
            (_BOX, "VanillaCutMixSL", {}, (71.78, 58.21, 33.50), (87.86, 86.31, 89.01)),
            (_PROPOSED, "CutMixSL", BEST, (73.77, 71.26, 67.53), (89.75, 89.25, 89.45)),
        )
        for model, c, f in zip(MODELS, cifar, fashion, strict=True)
    ),
    (
        *below((*_OTHERS, _BOX), _PROPOSED, MODELS[:2]),
        *below((*_OTHERS, _BOX), _PROPOSED, MODELS[2:], (FASHION,)),
        *ordered((_PROPOSED, "SL w. Mixup"), MODELS[2:], datasets=(CIFAR,)),
    ),
    "'Standalone w. Cutout' has the numbers of DP-CutMixSL's 'PSL w. Random Cutout' and is run as "
    "that.",
)

_CLIENTS = (2, 4, 6, 8, 10)
_N = tuple(f"n = {n}" for n in _CLIENTS)
_ROWS: tuple[tuple[str, str, dict[str, Value]], ...] = (
    ("SL", "PSL", {}),
    ("SplitFed", "SFL", {}),
    ("SL w. Mixup", "MixupSL", BEST),
    ("SL w. Vanilla CutMix", "VanillaCutMixSL", {}),
    ("CutMixSL", "CutMixSL", BEST),
    ("CutMixSFL", "CutMixSFL", BEST),
)

FIGURE_3C = Experiment(
    "dp-cutmix-workshop-fig3c",
    "accuracy by the number of clients",
    "DP-CutMix workshop paper, Figure 3c",
    tuple(
        Entry(row, column, variant(method, options, clients=n))
        for row, method, options in _ROWS
        for n, column in zip(_CLIENTS, _N, strict=True)
    ),
    (
        *(Ordering((row, _N[0]), (row, _N[-1])) for row, _, _ in _ROWS),
        *ordered(("CutMixSL", "CutMixSFL"), _N),
    ),
    "The figure prints no numbers.",
)

WORKSHOP = (TABLE_1, FIGURE_3C)
"""All of them, in the paper's order."""
