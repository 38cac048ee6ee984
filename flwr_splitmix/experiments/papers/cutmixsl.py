"""Tables and figures of CutMixSL (Baek et al., 2022) on utility."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from flwr_splitmix.experiments.cells import (
    Partition,
    Value,
    Variant,
    variant,
)
from flwr_splitmix.experiments.experiment import (
    CIFAR,
    Entry,
    Experiment,
    Ordering,
    below,
    ordered,
)

MODELS = ("ViT-Tiny", "PiT-Tiny", "VGG-16")
"""Columns of the tables that compare models."""

UNIFORM = None
"""The paper's "uniform": lam = 1/k, as DP-CutMixSL and the workshop paper define the word."""

DIRICHLET_1 = 1.0
"""The other reading of "uniform": ratios drawn uniformly from the simplex."""

BEST: dict[str, Value] = {"k": 2, "alpha": 6.0}
"""The mixing that the paper finds best, and uses unless a row states otherwise."""

_NOTE = (
    "'uniform' is lam = 1/k. Accuracy is each client's pair of segments on one common test set, "
    "averaged over clients."
)

_RATIOS = (0.2, 0.4, 0.6, 0.8)
_LAM = tuple(f"lam = {ratio:g}" for ratio in _RATIOS)
_WHOLE = "lam = 1"


def _cut(method: str, ratio: float, *, fixed: bool = False) -> Variant:
    options: dict[str, Value] = {"ratio": ratio}
    return variant(method, {**options, "fixed_positions": True} if fixed else options)


_CUT_ROWS = (
    ("SL, fixed positions", "CutoutSL", True),
    ("SL, random positions", "CutoutSL", False),
    ("SFL, fixed positions", "CutoutSFL", True),
    ("SFL, random positions", "CutoutSFL", False),
)

FIGURE_2 = Experiment(
    "cutmixsl-fig2",
    "accuracy on CutSmashed data by their size, with fixed and with random positions",
    "CutMixSL, Figure 2",
    (
        *(
            Entry(row, column, _cut(method, ratio, fixed=fixed))
            for row, method, fixed in _CUT_ROWS
            for ratio, column in zip(_RATIOS, _LAM, strict=True)
        ),
        *(
            Entry(row, _WHOLE, variant("PSL" if method == "CutoutSL" else "SFL"))
            for row, method, _ in _CUT_ROWS
        ),
    ),
    (
        *(
            Ordering((row, small), (row, large))
            for row, _, fixed in _CUT_ROWS
            if fixed
            for small, large in pairwise((*_LAM, _WHOLE))
        ),
        *ordered(("SL, fixed positions", "SL, random positions"), _LAM),
        *ordered(("SFL, fixed positions", "SFL, random positions"), _LAM),
        *(  # random positions improve "up to a certain extent", in SL and SFL
            Ordering((row, _WHOLE), (row, _LAM[-1]))
            for row in ("SL, random positions", "SFL, random positions")
        ),
    ),
    "The figure prints no numbers and no axis values: the kept fractions lam are chosen here. A "
    "client's fixed positions are the same in every run; those of two clients differ.",
)

TABLE_1 = Experiment(
    "cutmixsl-table1",
    "mixing methods for a transformer, a pooling transformer and a CNN",
    "CutMixSL, Table 1",
    tuple(
        Entry(row, model, variant(method, options, model=model), {CIFAR: value})
        for row, method, options, values in (
            ("Standalone", "Standalone", {}, (49.14, 47.77, 54.97)),
            ("Parallel SL", "PSL", {}, (57.05, 52.28, 62.62)),
            ("Cutout", "CutoutSL", {}, (65.03, 60.87, 67.06)),
            ("Mixup", "MixupSL", BEST, (71.02, 65.92, 74.43)),
            ("Patch CutMix", "CutMixSL", BEST, (75.55, 73.19, 72.23)),
            ("Shuffled CutMix", "ShuffledCutMixSL", BEST, (72.78, 57.59, 33.50)),
        )
        for model, value in zip(MODELS, values, strict=True)
    ),
    (
        *ordered(("Standalone", "Parallel SL", "Cutout"), MODELS),
        *ordered(("Parallel SL", "Mixup"), MODELS),
        *ordered(("Parallel SL", "Patch CutMix"), MODELS),
        *ordered(("Mixup", "Patch CutMix"), MODELS[:2]),
        *ordered(("Patch CutMix", "Mixup"), MODELS[2:]),
        *ordered(("Shuffled CutMix", "Patch CutMix"), MODELS),
        *ordered(("Parallel SL", "Shuffled CutMix"), MODELS[:2]),
        *ordered(("Shuffled CutMix", "Parallel SL"), MODELS[2:]),
    ),
    _NOTE + " The 33.50 of VGG-16 stands for another method in DP-CutMixSL's Table 4.",
)

_CLIENTS = (2, 4, 6, 8, 10)
_N = tuple(f"n = {n}" for n in _CLIENTS)


def _table_2(
    uniform: float | None,
) -> tuple[tuple[Entry, ...], tuple[Ordering, ...]]:
    """Return the table's cells and orderings under a reading of "uniform"."""
    evenly: dict[str, Value] = {"k": 2, "alpha": uniform}
    entries = tuple(
        Entry(row, column, variant(method, options, clients=n), {CIFAR: value})
        for row, method, options, values in (
            ("Parallel SL", "PSL", {}, (52.91, 55.55, 56.81, 56.55, 57.05)),
            ("SplitFed", "SFL", {}, (53.96, 58.39, 63.07, 65.59, 66.70)),
            (
                "CutMixSL (k times, uniform)",
                "CutMixSL",
                {**evenly, "k_times": True},
                (58.06, 65.11, 65.76, 68.97, 67.66),
            ),
            ("CutMixSL (uniform)", "CutMixSL", evenly, (61.66, 66.80, 67.69, 69.86, 70.93)),
            ("CutMixSL (alpha = 6)", "CutMixSL", BEST, (62.62, 69.47, 71.80, 73.67, 75.55)),
            ("CutMixSFL (uniform)", "CutMixSFL", evenly, (65.82, 72.31, 74.31, 78.88, 80.14)),
            ("CutMixSFL (alpha = 6)", "CutMixSFL", BEST, (67.58, 73.52, 76.85, 79.48, 80.97)),
        )
        for n, column, value in zip(_CLIENTS, _N, values, strict=True)
    )
    return entries, (
        *ordered(
            (
                "Parallel SL",
                "SplitFed",
                "CutMixSL (k times, uniform)",
                "CutMixSL (uniform)",
                "CutMixSL (alpha = 6)",
                "CutMixSFL (uniform)",
                "CutMixSFL (alpha = 6)",
            ),
            _N,
        ),
        *ordered(("Parallel SL", "CutMixSL (alpha = 6)", "CutMixSFL (alpha = 6)"), _N),
        *ordered(("SplitFed", "CutMixSFL (alpha = 6)"), _N),
        *(Ordering((row, _N[0]), (row, _N[-1])) for row in dict.fromkeys(e.row for e in entries)),
    )


TABLE_2 = Experiment(
    "cutmixsl-table2",
    "scalability: accuracy by the number of clients",
    "CutMixSL, Table 2",
    *_table_2(UNIFORM),
    _NOTE,
)

TABLE_2_DIRICHLET_1 = Experiment(
    "cutmixsl-table2-dirichlet1",
    "accuracy by the number of clients; 'uniform' as uniform on the simplex",
    "CutMixSL, Table 2",
    *_table_2(DIRICHLET_1),
    _NOTE.replace("lam = 1/k", "Dirichlet(1)"),
)


def joint(experiment: Experiment, note: str) -> Experiment:
    """Return an experiment with one joint server update per step in place of sequential ones."""
    return replace(
        experiment,
        name=experiment.name.removesuffix("-dirichlet1") + "-joint",
        title=f"{experiment.title}; one joint server update a step",
        entries=tuple(
            replace(entry, variant=replace(entry.variant, server_update="sum"))
            for entry in experiment.entries
            if entry.variant is not None
        ),
        note=f"{experiment.note} {note}",
    )


_JOINT_NOTE = (
    "The paper's Algorithm 2 updates after each group, its equation 4 jointly: then k times takes "
    "as many server steps as plain CutMixSL."
)
TABLE_1_JOINT = joint(TABLE_1, _JOINT_NOTE)
TABLE_2_JOINT = joint(TABLE_2_DIRICHLET_1, _JOINT_NOTE)

_ALPHAS = (1.0, 2.0, 4.0, 6.0, 8.0, None)
_PRINTED_6B: dict[float | None, float] = {UNIFORM: 70.93, 6.0: 75.55}


def _group(k: int, alpha: float | None) -> Variant:
    return variant("CutMixSL", {"k": k, "alpha": alpha})


def _alpha(alpha: float | None) -> str:
    return "alpha = inf" if alpha is None else f"alpha = {alpha:g}"


FIGURE_6A = Experiment(
    "cutmixsl-fig6a",
    "sensitivity of CutMixSL to the concentration alpha of the mixing ratio",
    "CutMixSL, Figure 6a",
    tuple(
        Entry(
            "CutMixSL",
            _alpha(alpha),
            _group(2, alpha),
            {CIFAR: _PRINTED_6B[alpha]} if alpha in _PRINTED_6B else {},
        )
        for alpha in _ALPHAS
    ),
    (
        Ordering(("CutMixSL", _alpha(1.0)), ("CutMixSL", _alpha(6.0))),
        Ordering(("CutMixSL", _alpha(None)), ("CutMixSL", _alpha(6.0))),
    ),
    "The figure prints no numbers and no axis values: those for inf and 6 are Figure 6b's, the "
    'other alphas are chosen here; inf is as even as possible. That Figure 6b\'s "uniform" is inf '
    "is our reading; if its ratios are sampled, as the text on Table 2 says, it is alpha = 1.",
)

_WAYS = (2, 3, 4, 5)
_WAY = tuple(f"{k}-way" for k in _WAYS)


FIGURE_6B = Experiment(
    "cutmixsl-fig6b",
    "accuracy by the size of the mixing group",
    "CutMixSL, Figure 6b",
    tuple(
        Entry(row, column, _group(k, alpha), {CIFAR: value})
        for row, alpha, values in (
            ("uniform", UNIFORM, (70.93, 68.59, 66.96, 67.01)),
            ("Dir(alpha = 6)", 6.0, (75.55, 70.86, 66.67, 67.04)),
        )
        for k, column, value in zip(_WAYS, _WAY, values, strict=True)
    )
    + tuple(
        Entry("Dir(alpha = 1)", column, _group(k, DIRICHLET_1))
        for k, column in zip(_WAYS, _WAY, strict=True)
    ),
    (
        *(
            Ordering((row, column), (row, _WAY[0]))
            for row in ("uniform", "Dir(alpha = 6)")
            for column in _WAY[1:]
        ),
        *ordered(("uniform", "Dir(alpha = 6)"), _WAY[:2]),
    ),
    _NOTE + " Of 10 clients, 3-way leaves one (it sends everything), 4-way two (they form a pair).",
)

FIGURE_7 = Experiment(
    "cutmixsl-fig7",
    "payload sent up, by the size of the mixing group",
    "CutMixSL, Figure 7",
    (
        Entry("Parallel SL", "payload", variant("PSL"), {CIFAR: 57.05}),
        *(
            Entry(f"CutMixSL {column}", "payload", _group(k, 6.0), {CIFAR: value})
            for k, column, value in zip(_WAYS, _WAY, (75.55, 70.86, 66.67, 67.04), strict=True)
        ),
        *(
            Entry(f"CutSmashed {column}", "payload", _cut("CutoutSL", ratio))
            for ratio, column in zip(_RATIOS, _LAM, strict=True)
        ),
    ),
    ordered(
        ("CutMixSL 5-way", "CutMixSL 4-way", "CutMixSL 3-way", "CutMixSL 2-way", "Parallel SL"),
        ("payload",),
        "uplink",
    )
    + below(tuple(f"CutSmashed {column}" for column in _LAM), "CutMixSL 2-way", ("payload",)),
    "The figure's bars are bytes; the paper's accuracies here are those of Figure 6b. The rows of "
    "CutSmashed data are its black line, at the kept fractions of Figure 2's here.",
)

_SPLITS: tuple[tuple[str, Partition], ...] = (("IID", "iid"), ("non-IID", "dirichlet"))

FIGURE_8 = Experiment(
    "cutmixsl-fig8",
    "IID and non-IID clients (Dirichlet(0.1) over labels); unicast and broadcast gradients",
    "CutMixSL, Figure 8 and appendix C",
    tuple(
        Entry(row, column, variant(method, options, partition=partition))
        for row, method, options in (
            ("Parallel SL", "PSL", {}),
            ("SplitFed", "SFL", {}),
            ("CutMixSL", "CutMixSL", BEST),
            ("CutMixSL, CutMix gradient", "CutMixSL", {**BEST, "gradient": "broadcast"}),
            ("CutMixSFL", "CutMixSFL", BEST),
            ("CutMixSFL, CutMix gradient", "CutMixSFL", {**BEST, "gradient": "broadcast"}),
        )
        for column, partition in _SPLITS
    ),
    (
        *ordered(("Parallel SL", "CutMixSL", "CutMixSFL"), ("IID", "non-IID")),
        *ordered(("SplitFed", "CutMixSFL"), ("IID", "non-IID")),
        *ordered(("CutMixSFL", "CutMixSFL, CutMix gradient"), ("non-IID",)),
    ),
    "The figure prints no numbers; the text says that the CutMix (broadcast) gradient makes no "
    "difference on IID data and gives CutMixSFL 6 points on non-IID data.",
)

CUTMIXSL = (
    FIGURE_2,
    TABLE_1,
    TABLE_1_JOINT,
    TABLE_2,
    TABLE_2_DIRICHLET_1,
    TABLE_2_JOINT,
    FIGURE_6A,
    FIGURE_6B,
    FIGURE_7,
    FIGURE_8,
)
"""All experiments of this module, in the paper's order."""
