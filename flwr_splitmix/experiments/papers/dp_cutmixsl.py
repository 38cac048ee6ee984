"""Tables and figures of DP-CutMixSL (Oh et al., 2024) on utility without noise."""

from __future__ import annotations

from itertools import pairwise

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
from flwr_splitmix.experiments.papers.cutmixsl import BEST, MODELS, joint

_NOTE = (
    "Of the paper's CIFAR-10 values for methods of CutMixSL's Table 1, only those of Standalone "
    "and PSL with PiT-Tiny and VGG-16 are the same there."
)


def _both(
    row: str,
    method: str,
    options: dict[str, Value],
    cifar: tuple[float, ...],
    fashion: tuple[float, ...],
) -> tuple[Entry, ...]:
    """Make a table's row for three models and two data sets."""
    return tuple(
        Entry(row, model, variant(method, options, model=model), {CIFAR: c, FASHION: f})
        for model, c, f in zip(MODELS, cifar, fashion, strict=True)
    )


_OTHERS = (
    "Standalone",
    "PSL",
    "SFL",
    "PSL w. Mixup",
    "PSL w. Random Cutout",
    "PSL w. Vanilla CutMix",
)
_MIXUP = "PSL w. Mixup"
_PROPOSED = "CutMixSL (proposed)"

TABLE_4 = Experiment(
    "dp-cutmixsl-table4",
    "methods without noise: three models, two data sets",
    "DP-CutMixSL, Table 4",
    (
        *_both("Standalone", "Standalone", {}, (48.84, 47.77, 54.97), (77.65, 78.21, 80.12)),
        *_both("PSL", "PSL", {}, (57.21, 52.28, 62.62), (85.68, 82.35, 84.39)),
        *_both("SFL", "SFL", {}, (67.88, 55.63, 63.98), (89.17, 84.27, 87.34)),
        *_both("PSL w. Mixup", "MixupSL", BEST, (69.23, 64.89, 68.20), (88.21, 87.62, 88.53)),
        *_both(
            "PSL w. Random Cutout", "CutoutSL", {}, (53.86, 50.28, 56.65), (88.46, 86.48, 88.17)
        ),
        *_both(
            "PSL w. Vanilla CutMix",
            "VanillaCutMixSL",
            {},
            (71.78, 58.21, 33.50),
            (87.86, 86.31, 89.01),
        ),
        *_both(_PROPOSED, "CutMixSL", BEST, (73.77, 71.26, 67.53), (89.75, 89.25, 89.45)),
    ),
    (
        *ordered(("Standalone", "PSL", "SFL"), MODELS),
        *below(tuple(row for row in _OTHERS if row != _MIXUP), _PROPOSED, MODELS),
        *below((_MIXUP,), _PROPOSED, MODELS[:2]),
        *below((_MIXUP,), _PROPOSED, MODELS[2:], (FASHION,)),
        *ordered((_PROPOSED, _MIXUP), MODELS[2:], datasets=(CIFAR,)),
    ),
    _NOTE,
)

TABLE_4_JOINT = joint(
    TABLE_4,
    "The paper takes one joint step for all groups; dp-cutmixsl-table4 has CutMixSL's recipe.",
)

_ACROSS: dict[str, Value] = {"across": "clients"}

TABLE_6 = Experiment(
    "dp-cutmixsl-table6",
    "the same regularisations on the inputs, before the lower segment",
    "DP-CutMixSL, Table 6 (appendix F)",
    (
        *_both(
            "PSL w. Mixup", "InputMixupSL", _ACROSS, (74.36, 37.21, 66.08), (89.86, 87.62, 89.70)
        ),
        *_both(
            "PSL w. Random Cutout",
            "InputCutoutSL",
            _ACROSS,
            (22.03, 45.19, 66.32),
            (88.65, 88.51, 89.62),
        ),
        *_both(
            "PSL w. Vanilla CutMix",
            "InputVanillaCutMixSL",
            _ACROSS,
            (73.02, 33.54, 47.69),
            (88.72, 88.37, 90.02),
        ),
        *_both(_PROPOSED, "InputCutMixSL", _ACROSS, (75.06, 53.93, 67.43), (89.91, 89.53, 90.32)),
    ),
    below(_OTHERS[3:], _PROPOSED, MODELS),
    "Mixing inputs across clients needs their raw images: for comparison, within one process only.",
)

_SHUFFLED = "PSL w. Random CutMix & Shuffling"

TABLE_7 = Experiment(
    "dp-cutmixsl-table7",
    "what shuffling the patches behind the cut costs in accuracy",
    "DP-CutMixSL, Table 7 (appendix G)",
    tuple(
        Entry(row, model, variant(method, options, model=model), {CIFAR: value})
        for row, method, options, values in (
            ("PSL", "PSL", {}, (57.05, 52.28, 62.62)),
            ("PSL w. Shuffling", "ShuffledPSL", {}, (54.47, 45.67, 49.82)),
            ("PSL w. Mixup", "MixupSL", BEST, (71.02, 65.92, 74.43)),
            ("PSL w. Random Cutout", "CutoutSL", {}, (65.03, 60.87, 67.06)),
            ("PSL w. Random CutMix", "CutMixSL", BEST, (75.55, 73.19, 72.23)),
            (_SHUFFLED, "ShuffledCutMixSL", BEST, (72.78, 57.59, 33.50)),
        )
        for model, value in zip(MODELS, values, strict=True)
    ),
    (
        *ordered(("PSL w. Shuffling", "PSL", "PSL w. Random Cutout"), MODELS),
        *ordered(("PSL", "PSL w. Mixup"), MODELS),
        *ordered((_SHUFFLED, "PSL w. Random CutMix"), MODELS),
        *ordered(("PSL w. Shuffling", _SHUFFLED), MODELS[:2]),
        *ordered((_SHUFFLED, "PSL w. Shuffling"), MODELS[2:]),
    ),
    "The numbers without 'w. Shuffling' are CutMixSL's Table 1.",
)

_CLIENTS = (2, 4, 6, 8, 10)
_N = tuple(f"n = {n}" for n in _CLIENTS)
_REGULARISATIONS = ("Mixup", "Vanilla CutMix", "Random CutMix")

FIGURE_10A = Experiment(
    "dp-cutmixsl-fig10a",
    "mixing methods by the number of clients",
    "DP-CutMixSL, Figure 10a (appendix A)",
    tuple(
        Entry(row, column, variant(method, options, clients=n))
        for row, method, options in (
            ("Mixup", "MixupSL", BEST),
            ("Vanilla CutMix", "VanillaCutMixSL", {}),
            ("Random CutMix", "CutMixSL", BEST),
        )
        for n, column in zip(_CLIENTS, _N, strict=True)
    ),
    (
        *ordered(_REGULARISATIONS, _N),
        *(Ordering((row, _N[0]), (row, _N[-1])) for row in _REGULARISATIONS),
    ),
    "The figure prints no numbers.",
)

_WAYS = (2, 3, 4, 5)
_K = tuple(f"k = {k}" for k in _WAYS)
_ALPHAS = ((2.0, "alpha = 2"), (6.0, "alpha = 6"), (None, "alpha = inf"))

FIGURE_10B = Experiment(
    "dp-cutmixsl-fig10b",
    "mixing group size, for three mask distributions",
    "DP-CutMixSL, Figure 10b (appendix A)",
    tuple(
        Entry(row, column, variant("CutMixSL", {"k": k, "alpha": alpha}))
        for alpha, row in _ALPHAS
        for k, column in zip(_WAYS, _K, strict=True)
    ),
    (
        *(Ordering((row, _K[1]), (row, _K[0])) for _, row in _ALPHAS),
        # Accuracy falls with k, "without cases where k is 4" with the first two distributions.
        *(Ordering((row, _K[3]), (row, _K[1])) for _, row in _ALPHAS[:2]),
        *(
            Ordering((_ALPHAS[2][1], more), (_ALPHAS[2][1], less))
            for less, more in pairwise(_K[1:])
        ),
    ),
    "The figure prints no numbers; the text says that accuracy falls most from k = 2 to 3.",
)

FIGURE_10C = Experiment(
    "dp-cutmixsl-fig10c",
    "mask distribution of Random CutMix",
    "DP-CutMixSL, Figure 10c (appendix A)",
    tuple(
        Entry("Random CutMix", column, variant("CutMixSL", {"k": 2, "alpha": alpha}))
        for alpha, column in _ALPHAS
    ),
    (
        Ordering(("Random CutMix", "alpha = 6"), ("Random CutMix", "alpha = 2")),
        Ordering(("Random CutMix", "alpha = inf"), ("Random CutMix", "alpha = 6")),
    ),
    "The figure prints no numbers; the text says that accuracy falls as alpha grows, where "
    "in CutMixSL's Figure 6a it rises, and falls again at infinity.",
)

DP_CUTMIXSL = (TABLE_4, TABLE_4_JOINT, TABLE_6, TABLE_7, FIGURE_10A, FIGURE_10B, FIGURE_10C)
"""All experiments of this module, in the paper's order."""
