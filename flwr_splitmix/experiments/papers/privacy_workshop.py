"""Privacy table of the DP-CutMix workshop paper (Oh et al., 2022)."""

from __future__ import annotations

from flwr_splitmix.experiments.experiment import ordered
from flwr_splitmix.experiments.papers.privacy_cutmixsl import NOTE
from flwr_splitmix.experiments.privacy.paper_cells import AMOUNTS, DECODER_CELLS, row
from flwr_splitmix.experiments.privacy.tables_of_papers import PrivacyEntry, PrivacyExperiment

_ROWS = (
    ("Smashed data", "PSL", (0.0091, 0.0056)),
    ("Cutout", "CutoutSL", (0.0920, 0.0829)),
    ("Mixup", "MixupSL", (0.0402, 0.0351)),
    ("Patch CutMix", "CutMixSL", (0.0458, 0.0434)),
)

TABLE_2 = PrivacyExperiment(
    "dp-cutmix-workshop-table2",
    "what a decoder makes of smashed data, by the way of mixing",
    "DP-CutMix workshop paper, Table 2",
    tuple(
        PrivacyEntry(name, amount, row(method), DECODER_CELLS[amount], paper=value)
        for name, method, values in _ROWS
        for amount, value in zip(AMOUNTS, values, strict=True)
    ),
    ordered(("Smashed data", "Mixup", "Patch CutMix", "Cutout"), tuple(AMOUNTS)),
    NOTE,
)

WORKSHOP_PRIVACY = (TABLE_2,)
"""All experiments of this module."""
