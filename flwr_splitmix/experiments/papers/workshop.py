"""Utility tables and figures of the DP-CutMix workshop paper (Oh et al., 2022)."""

from __future__ import annotations

import math
from itertools import pairwise

from flwr_splitmix.experiments.cells import Value, Variant, variant
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
from flwr_splitmix.privacy.paper import Mechanism, PaperSetting, paper_theorem1

_PROPOSED = "CutMixSL (proposed)"
_MIXUP, _BOX = "SL w. Mixup", "SL w. Vanilla CutMix"
_OTHERS = ("Standalone", "SL", "SplitFed", "Standalone w. Cutout")

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
            (_MIXUP, "MixupSL", BEST, (69.23, 64.89, 68.20), (88.21, 87.62, 88.53)),
            (_BOX, "VanillaCutMixSL", {}, (71.78, 58.21, 33.50), (87.86, 86.31, 89.01)),
            (_PROPOSED, "CutMixSL", BEST, (73.77, 71.26, 67.53), (89.75, 89.25, 89.45)),
        )
        for model, c, f in zip(MODELS, cifar, fashion, strict=True)
    ),
    (
        *below((*_OTHERS, _BOX), _PROPOSED, MODELS),
        *below((_MIXUP,), _PROPOSED, MODELS[:2]),
        *below((_MIXUP,), _PROPOSED, MODELS[2:], (FASHION,)),
        *ordered((_PROPOSED, _MIXUP), MODELS[2:], datasets=(CIFAR,)),
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

_BOUND, _D_S, _D_Y = 0.2, 20, 10
"""Delta, D_s and D_y of section 4, where the Renyi order is 2."""

_SCALED = "DP-MixSL, noise on scaled numbers"
_MECHANISMS: dict[str, tuple[str, Mechanism]] = {
    "DP-SL": ("DPSL", "sl"),
    "DP-MixSL": ("DPMixSL", "mix"),
    _SCALED: ("DPMixSL", "mix"),
    "DP-CutMixSL": ("DPCutMixSL", "cutmix"),
}
_DP, _DP_OTHERS, _MIXED = "DP-CutMixSL", ("DP-SL", "DP-MixSL"), ("DP-MixSL", "DP-CutMixSL")


def _noisy_variant(row: str, variance: float, k: int) -> Variant:
    method, family = _MECHANISMS[row]
    sigma = math.sqrt(variance / 255)
    # Appendix B.2 scales the noise with the numbers: even ratios are 1/k.
    smashed = sigma / k if row == "DP-MixSL" else sigma
    options: dict[str, Value] = {
        "sigma_s": round(smashed, 6), "sigma_y": round(sigma, 6),
        "clip": "range", "clip_norm": _BOUND,
    }  # fmt: skip
    mixing: dict[str, Value] = {}
    if family != "sl":
        mixing = {"k": k, "alpha": None, "label_noise": "before"}  # equation 3
    if family == "cutmix":
        mixing["smashed_noise"] = "all"  # equation 1
    return variant(method, {**options, **mixing})


def _entry(row: str, column: str, variance: float, k: int) -> Entry:
    sigma = math.sqrt(variance / 255)
    setting = PaperSetting(sigma_s=sigma, sigma_y=sigma, bound=_BOUND, d_s=_D_S, d_y=_D_Y)
    epsilon = paper_theorem1(_MECHANISMS[row][1], setting, 1 / k)
    return Entry(row, column, _noisy_variant(row, variance, k), epsilon=epsilon)


_VARIANCES = (1.0, 2.0, 4.0, 8.0, 16.0)
_NOISES = tuple(f"{variance:g}/255" for variance in _VARIANCES)
_SHOWN = 4.0
_WAYS = (2, 3, 4, 5)
_K = tuple(f"k = {k}" for k in _WAYS)
_EPSILON = (
    f"The paper's epsilon is the Renyi divergence of order 2 of its Theorem 1, of one release and "
    f"with D_s = {_D_S}, D_y = {_D_Y}, Delta = {_BOUND} and lam = 1/k, in the paper 1/n, n the "
    "clients in a mixture; the other is of the accountant, of the whole run at delta 1e-5. Numbers "
    "are clipped, which the paper assumes; masks are even. Noise is as in equations 1 to 3: on all "
    "patches, also those that are left out, and on labels before they are scaled. Mixup's is "
    "scaled with the smashed data (appendix B.2), which Theorem 1 does not count: its epsilon is "
    "of the row with noise on scaled numbers. Appendix B.3 has DP-CutMixSL's noise on kept patches "
    "only, against equation 1. The figure prints no numbers."
)

FIGURE_3A = Experiment(
    "dp-cutmix-workshop-fig3a",
    "accuracy and epsilon by the variance of the noise",
    "DP-CutMix workshop paper, Figure 3a",
    tuple(
        _entry(row, column, variance, 2)
        for row in _MECHANISMS
        for variance, column in zip(_VARIANCES, _NOISES, strict=True)
    ),
    (
        *below(_DP_OTHERS, _DP, _NOISES[:-1]),
        *below(("DP-MixSL",), _DP, _NOISES[-1:]),
        *below((_DP,), "DP-SL", _NOISES[-1:]),
    ),
    f"Of the variances the text names 16/255 only, where DP-CutMixSL is not the best; the others, "
    f"and groups of two, are chosen here. {_EPSILON}",
)

FIGURE_3B = Experiment(
    "dp-cutmix-workshop-fig3b",
    "accuracy and epsilon by the size of the mixing group",
    "DP-CutMix workshop paper, Figure 3b",
    tuple(
        _entry(row, column, _SHOWN, k)
        for row in (*_MIXED, _SCALED)
        for k, column in zip(_WAYS, _K, strict=True)
    ),
    tuple(Ordering((row, large), (row, small)) for row in _MIXED for small, large in pairwise(_K)),
    f"Neither variance nor sizes of groups are said: {_SHOWN:g}/255 and 2 to 5 are chosen here. "
    f"{_EPSILON} Of 10 clients, k = 3 leaves one, which sends everything, k = 4 leaves two, which "
    "form a pair; Mixup's noise is 1/k there, too, though their ratios are 1 and 1/2.",
)

WORKSHOP = (TABLE_1, FIGURE_3A, FIGURE_3B, FIGURE_3C)
"""All experiments of this module, in the paper's order."""
