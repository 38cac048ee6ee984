"""Privacy tables of Patch Shuffling (Yao et al., 2022)."""

from __future__ import annotations

from dataclasses import replace

from flwr_splitmix.experiments.experiment import Ordering, ordered
from flwr_splitmix.experiments.papers.patch_shuffling import NORMAL
from flwr_splitmix.experiments.privacy.columns import Column
from flwr_splitmix.experiments.privacy.paper_cells import column, row
from flwr_splitmix.experiments.privacy.rows import ROWS, Row
from flwr_splitmix.experiments.privacy.tables_of_papers import PrivacyEntry, PrivacyExperiment

_BLACK = column("decoder-transformer", "server")
_WHITE = column("match", "server")

_NOTE = (
    "CelebA's faces are not at hand: the orderings are checked on the matrix's images. One decoder "
    "stands for the paper's MAE decoder; errors are of pixels from 0 to 1. The blur leaves a "
    "quarter of the resolution, the paper's a fourteenth of 224 pixels." + NORMAL
)


def _table(
    entries: tuple[tuple[str, Row, float], ...], attack: Column, at: str
) -> tuple[PrivacyEntry, ...]:
    return tuple(
        PrivacyEntry(name, at, victim, attack, paper=value) for name, victim, value in entries
    )


def _row(name: str) -> Row:
    return ROWS[name]


TABLE_1 = PrivacyExperiment(
    "patch-shuffling-table1-privacy",
    "what a trained decoder makes of each defence (faces in the paper)",
    "Patch Shuffling, Table I, column MSE",
    _table(
        (
            ("SL", _row("PSL"), 0.014),
            ("Adv", _row("Adv"), 0.014),
            ("Blur", _row("Blur"), 0.02),
            ("DP", _row("DP"), 0.384),
            ("GN", _row("GN"), 0.029),
            ("BS", _row("BatchShuffleSL"), 0.109),
            ("PS+", _row("SpectralShuffleSL"), 0.372),
        ),
        _BLACK,
        "MSE",
    ),
    (
        *ordered(("SL", "Blur", "GN", "BS", "PS+", "DP"), ("MSE",)),
        Ordering(("Adv", "MSE"), ("Blur", "MSE")),
    ),
    _NOTE,
)

TABLE_2 = PrivacyExperiment(
    "patch-shuffling-table2-privacy",
    "what a trained decoder makes of shuffled patches (natural images)",
    "Patch Shuffling, Table II, column MSE",
    _table(
        (
            ("SL", _row("PSL"), 0.362),
            ("PS", _row("PatchShuffleSL"), 0.696),
            ("BS (kappa = 0.75)", row("BatchShuffleSL", kappa=0.75), 0.730),
        ),
        _BLACK,
        "MSE",
    ),
    ordered(("SL", "PS", "BS (kappa = 0.75)"), ("MSE",)),
    "The paper's decoder had failed on SL already (PSNR 4.64). `splitmix data cifar10 FOLDER` "
    "brings its images.",
)

TABLE_3 = PrivacyExperiment(
    "patch-shuffling-table3-privacy",
    "what a decoder makes of tabular data",
    "Patch Shuffling, Table III, column MSE",
    tuple(
        PrivacyEntry(name, "MSE", None, None, paper=value)
        for name, value in (("SL", 0.0012), ("PS", 0.0015), ("GN", 0.0012))
    ),
    (),
    "Criteo's records, and a model of them, are not at hand.",
)

TABLE_4 = PrivacyExperiment(
    "patch-shuffling-table4-privacy",
    "what optimising an image until its smashed data match makes of each defence",
    "Patch Shuffling, Table IV, column MSE",
    (
        *_table(
            (
                ("SL/Adv", _row("PSL"), 0.011),
                ("Blur", _row("Blur"), 0.038),
                ("DP", _row("DP"), 0.798),
                ("GN", _row("GN"), 0.826),
                ("PS", _row("PatchShuffleSL"), 0.930),
                ("BS", _row("BatchShuffleSL"), 0.914),
                ("PS+", _row("SpectralShuffleSL"), 0.716),
            ),
            _WHITE,
            "MSE",
        ),
        PrivacyEntry("BS, jigsaw first", "MSE", None, None, paper=0.871),
    ),
    (
        *ordered(("SL/Adv", "Blur", "PS+", "DP", "GN"), ("MSE",)),
        *ordered(("GN", "BS", "PS"), ("MSE",)),
    ),
    f"{_NOTE} `jigsaw` says here how many patches it puts in their places, and paints nothing.",
)  # fmt: skip

_STAGES = (("1000 iterations", 0.05, 0.014), ("20000 iterations", 0.35, 0.083))

TABLE_5 = PrivacyExperiment(
    "patch-shuffling-table5-privacy",
    "what a trained decoder makes of adversarial training, by its stage",
    "Patch Shuffling, Table V, column MSE",
    (
        *(
            PrivacyEntry(
                "Adv", name, replace(ROWS["Adv"], name=f"Adv at {stage:g}", stage=stage), _BLACK,
                paper=value,
            )
            for name, stage, value in _STAGES
        ),
        PrivacyEntry("Adv", "converged", _row("Adv"), _BLACK, paper=0.373),
    ),
    (
        Ordering(("Adv", "1000 iterations"), ("Adv", "20000 iterations")),
        Ordering(("Adv", "20000 iterations"), ("Adv", "converged")),
    ),
    f"{_NOTE} The stages here are 5 %, 35 % and all of the training. The first two are chosen: "
    "they are not the paper's numbers of iterations, after which they are named.",
)  # fmt: skip

_KAPPAS = ((0.5, 0.071), (0.4, 0.109), (0.25, 0.128), (0.15, 0.184))

TABLE_7 = PrivacyExperiment(
    "patch-shuffling-table7-privacy",
    "what a trained decoder makes of batch shuffling, by the fraction of tokens kept",
    "Patch Shuffling, Table VII, column MSE",
    _table(
        tuple(
            (f"BS (kappa = {kappa:g})", row("BatchShuffleSL", kappa=kappa), value)
            for kappa, value in _KAPPAS
        ),
        _BLACK,
        "MSE",
    ),
    ordered(tuple(f"BS (kappa = {kappa:g})" for kappa, _ in _KAPPAS), ("MSE",)),
    _NOTE,
)

TABLE_9 = PrivacyExperiment(
    "patch-shuffling-table9-privacy",
    "what a convolutional decoder makes of each defence (faces in the paper)",
    "Patch Shuffling, Table IX, column MSE",
    _table(
        (
            ("SL", _row("PSL"), 0.042),
            ("Blur", _row("Blur"), 0.052),
            ("GN", _row("GN"), 0.267),
            ("BS", _row("BatchShuffleSL"), 0.435),
            ("PS+", _row("SpectralShuffleSL"), 0.265),
        ),
        column("decoder", "server"),
        "MSE",
    ),
    (
        *ordered(("SL", "Blur", "PS+", "BS"), ("MSE",)),
        *ordered(("Blur", "GN", "BS"), ("MSE",)),
    ),
    f"{_NOTE} The paper's convolutional attacker is pix2pix, a generative adversarial network.",
)

PATCH_SHUFFLING_PRIVACY = (TABLE_1, TABLE_2, TABLE_3, TABLE_4, TABLE_5, TABLE_7, TABLE_9)
"""All experiments of this module, in the paper's order."""
