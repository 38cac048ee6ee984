"""Tables and figures of DP-CutMixSL (Oh et al., 2024) and of CutMixSL on utility with noise."""

from __future__ import annotations

import math
from itertools import pairwise

from flwr_splitmix.experiments.cells import Value, Variant, variant
from flwr_splitmix.experiments.experiment import Entry, Experiment, Ordering, below
from flwr_splitmix.experiments.papers.cutmixsl import BEST
from flwr_splitmix.privacy.paper import Mechanism, PaperSetting, paper_corollary1, paper_theorem1

DELTA = 2e-4
"""The delta of every epsilon here (DP-CutMixSL, Table 2)."""

BOUND = 0.15
"""Delta, the upper bound on every number in the smashed data (DP-CutMixSL, Table 2)."""

CLIENTS = 10

_PROPOSED = "DP-CutMixSL"
_AS_IN_TABLE_1 = f"{_PROPOSED}, label noise as in Table 1"
_OTHERS = ("DP-SL", "DP-MixSL")

_METHODS: dict[str, tuple[str, Mechanism, dict[str, Value]]] = {
    "DP-SL": ("DPSL", "sl", {}),
    "DP-MixSL": ("DPMixSL", "mix", {}),
    _PROPOSED: ("DPCutMixSL", "cutmix", {"label_noise": "before"}),
    _AS_IN_TABLE_1: ("DPCutMixSL", "cutmix", {}),
}

TABLE_5_VARIANCES: dict[str, tuple[float, ...]] = {
    "DP-SL": (246, 164, 123, 98.5, 80, 70.5, 61, 55, 49),
    _PROPOSED: (66, 47, 36, 29, 25, 21, 19, 17, 15),
    _AS_IN_TABLE_1: (66, 47, 36, 29, 25, 21, 19, 17, 15),
    "DP-MixSL": (60, 43, 33, 27, 23, 20, 17, 15, 14),
}
"""255 times the variance of both noises, for each of `EPSILONS`, as printed."""

EPSILONS = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0)

_PLACES = (
    f"{_PROPOSED} trains by the paper's Algorithm 1: labels get their noise before they are "
    "scaled (equation 1). Table 1, to which the paper's epsilons belong, adds it to the scaled "
    "labels: that is the other row. Of DP-MixSL the paper prints Table 1 only. Even masks, groups "
    "for an epoch."
)
_CLIPPED = (
    f"The paper assumes numbers within {BOUND} of each other and does not clip; here they are "
    f"clipped, without which no noise has an epsilon. {_PLACES}"
)
_OURS = (
    f"epsilon: of the accountant, at delta {DELTA:g}, of the client that spent most in the whole "
    "run, from the server that sees each upload."
)
_FORMULAS = "The paper's epsilon: by its Theorem 1 and Corollary 1, as the figure prints no number."


def _noisy_variant(row: str, variance: float, k: int = 2, *, clipped: bool = True) -> Variant:
    """Return a variant with noise of variance `variance` / 255 on smashed data and labels."""
    method, family, places = _METHODS[row]
    sigma = round(math.sqrt(variance / 255), 6)
    options: dict[str, Value] = {"sigma_s": sigma, "sigma_y": sigma, "delta": DELTA}
    options |= {"clip": "range", "clip_norm": BOUND} if clipped else {"clip": "none"}
    if family != "sl":
        options |= {"k": k, "alpha": None, "regroup": "epoch", **places}
    return variant(method, options, clients=CLIENTS)


def _paper_epsilon(row: str, variance: float, k: int = 2) -> float:
    sigma = math.sqrt(variance / 255)
    setting = PaperSetting(sigma_s=sigma, sigma_y=sigma, bound=BOUND)
    rdp = paper_theorem1(_METHODS[row][1], setting, 1 / k)
    return paper_corollary1(rdp, setting, DELTA, k, CLIENTS)


def _at(epsilon: float) -> str:
    return f"eps = {epsilon:g}"


def _best(columns: tuple[str, ...]) -> tuple[Ordering, ...]:
    return below(_OTHERS, _PROPOSED, columns)


def _figure_5a(*, clipped: bool) -> tuple[Entry, ...]:
    return tuple(
        Entry(row, _at(epsilon), _noisy_variant(row, variance, clipped=clipped), epsilon=epsilon)
        for row in _METHODS
        for epsilon, variance in zip(EPSILONS, TABLE_5_VARIANCES[row], strict=True)
    )


_EXCEPT_AT_1 = tuple(_at(epsilon) for epsilon in EPSILONS[1:])

FIGURE_5A = Experiment(
    "dp-cutmixsl-fig5a",
    "accuracy by the epsilon that the paper says the noise has",
    "DP-CutMixSL, Figure 5a",
    _figure_5a(clipped=True),
    _best(_EXCEPT_AT_1),
    f"{_CLIPPED} The variances are those of Table 5. {_OURS}",
)

FIGURE_5A_UNCLIPPED = Experiment(
    "dp-cutmixsl-fig5a-unclipped",
    "the same without clipping, as the paper trained: no noise has an epsilon then",
    "DP-CutMixSL, Figure 5a",
    _figure_5a(clipped=False),
    _best(_EXCEPT_AT_1),
    f"The variances are those of Table 5. {_PLACES}",
)

_VARIANCES = (15.0, 29.0, 66.0, 123.0, 246.0)
_SHOWN = 66.0


def _over_255(variance: float) -> str:
    return f"{variance:g}/255"


_WAYS = (2, 3, 4, 5)
_K = tuple(f"k = {k}" for k in _WAYS)

FIGURE_5C = Experiment(
    "dp-cutmixsl-fig5c",
    "accuracy with noise by the size of the mixing group",
    "DP-CutMixSL, Figures 5c and 5d",
    tuple(
        Entry(row, column, _noisy_variant(row, _SHOWN, k), epsilon=_paper_epsilon(row, _SHOWN, k))
        for row in _METHODS
        for k, column in zip(_WAYS, _K, strict=True)
    ),
    (
        *_best(_K),
        *(
            Ordering((row, large), (row, small))
            for row in ("DP-MixSL", _PROPOSED)
            for small, large in pairwise(_K)
        ),
    ),
    f"{_CLIPPED} Neither the noise nor the sizes of groups are said: {_over_255(_SHOWN)} is Table "
    f"5's of {_PROPOSED} at epsilon 1. {_FORMULAS} {_OURS} Of 10 clients, k = 3 leaves one, which "
    "sends everything, k = 4 leaves two, which form a pair. The paper says that DP-SL's accuracy "
    "tends to rise with k. That is not judged: DP-SL has no groups, so its four places are one "
    "cell. Of Figure 5d it says that epsilon falls with k for the other two; by its formulas it "
    "falls up to k = 4, and rises a little from there to 5.",
)

FIGURE_11A = Experiment(
    "dp-cutmixsl-fig11a",
    "accuracy by the variance of the noise",
    "DP-CutMixSL, Figures 11a and 11b (appendix D)",
    tuple(
        Entry(
            row,
            _over_255(variance),
            _noisy_variant(row, variance),
            epsilon=_paper_epsilon(row, variance),
        )
        for row in _METHODS
        for variance in _VARIANCES
    ),
    _best(tuple(map(_over_255, _VARIANCES))),
    f"{_CLIPPED} The figure's variances are not printed: these are chosen from Table 5. "
    f"{_FORMULAS} {_OURS}",
)

TABLE_5 = Experiment(
    "dp-cutmixsl-table5",
    "the noise that the paper says an epsilon needs, and the epsilon that it has",
    "DP-CutMixSL, Table 5 (appendix B)",
    tuple(
        Entry(row, _over_255(variance), _noisy_variant(row, variance), epsilon=epsilon)
        for row, variances in TABLE_5_VARIANCES.items()
        for epsilon, variance in zip(EPSILONS, variances, strict=True)
    ),
    (),
    f"{_CLIPPED} The runs are those of Figure 5a. {_OURS}",
)

_SIGMAS = (0.0, 0.1, 0.25, 0.5, 1.0)


def _sigma(sigma: float) -> str:
    return f"sigma = {sigma:g}"


def _additive(method: str, mixing: dict[str, Value], sigma: float) -> Variant:
    noise: dict[str, Value] = {"sigma_s": sigma, "sigma_y": sigma, "clip": "none"}
    return variant(method, {**mixing, **(noise if sigma else {})})


_UTILITY: tuple[tuple[str, str, dict[str, Value]], ...] = (
    ("Parallel SL", "PSL", {}),
    ("Mixup", "MixupSL", BEST),
    ("Patch CutMix", "CutMixSL", BEST),
)

CUTMIXSL_FIGURE_9 = Experiment(
    "cutmixsl-fig9",
    "accuracy by the scale of Gaussian noise on smashed data and labels",
    "CutMixSL, Figure 9 (appendix C)",
    tuple(
        Entry(row, _sigma(sigma), _additive(method, mixing, sigma))
        for row, method, mixing in _UTILITY
        for sigma in _SIGMAS
    ),
    (
        *below(("Parallel SL", "Mixup"), "Patch CutMix", tuple(map(_sigma, _SIGMAS))),
        *(
            Ordering((row, _sigma(_SIGMAS[0])), (row, _sigma(_SIGMAS[1])))
            for row in ("Parallel SL", "Mixup")
        ),
        Ordering(("Patch CutMix", _sigma(_SIGMAS[1])), ("Patch CutMix", _sigma(_SIGMAS[0]))),
        *(Ordering((row, _sigma(_SIGMAS[-1])), (row, _sigma(0))) for row, _, _ in _UTILITY),
    ),
    "The figure prints no numbers; its scales are chosen here, one for both noises. Nothing is "
    "clipped, as in the paper, which claims no epsilon: there is none.",
)

WITH_NOISE = (
    FIGURE_5A,
    FIGURE_5A_UNCLIPPED,
    FIGURE_5C,
    FIGURE_11A,
    TABLE_5,
    CUTMIXSL_FIGURE_9,
)
"""All experiments of this module."""
