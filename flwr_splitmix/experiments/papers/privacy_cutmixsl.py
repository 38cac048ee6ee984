"""Privacy table of CutMixSL (Baek et al., 2022)."""

from __future__ import annotations

from flwr_splitmix.experiments.experiment import ordered
from flwr_splitmix.experiments.privacy.paper_cells import AMOUNTS, DECODER_CELLS, row
from flwr_splitmix.experiments.privacy.tables_of_papers import PrivacyEntry, PrivacyExperiment

NOTE = (
    "The papers attack CIFAR-10; the amounts are of the attacker's public images, which are "
    "not a victim's. The decoder sees what the upper segment gets, and knows the lower segments."
)

_ROWS = (
    ("Smashed data", "PSL", (0.0091, 0.0056)),
    ("CutSmashed data", "CutoutSL", (0.0920, 0.0829)),
    ("Mixup", "MixupSL", (0.0402, 0.0351)),
    ("Patch CutMix", "CutMixSL", (0.0458, 0.0434)),
    ("Shuffled CutMix", "ShuffledCutMixSL", (0.1233, 0.1250)),
)

TABLE_3 = PrivacyExperiment(
    "cutmixsl-table3",
    "what a decoder makes of smashed data, by what is done to them",
    "CutMixSL, Table 3",
    tuple(
        PrivacyEntry(name, amount, row(method), DECODER_CELLS[amount], paper=value)
        for name, method, values in _ROWS
        for amount, value in zip(AMOUNTS, values, strict=True)
    ),
    ordered(
        ("Smashed data", "Mixup", "Patch CutMix", "CutSmashed data", "Shuffled CutMix"),
        tuple(AMOUNTS),
    ),
    NOTE,
)

CUTMIXSL_PRIVACY = (TABLE_3,)
"""All experiments of this module."""
