"""Tables of Patch Shuffling (Yao et al., 2022), without the attacks' columns."""

from __future__ import annotations

from dataclasses import replace

from flwr_splitmix.experiments.cells import Defence, Value, Variant, variant
from flwr_splitmix.experiments.experiment import (
    CELEBA,
    CIFAR,
    Entry,
    Experiment,
    Ordering,
    TableScore,
    ordered,
)

_COLUMN = "T2T-ViT-24"

_NOTE = (
    "One client. The paper starts from a T2T-ViT-24 pretrained on ImageNet at 224 pixels, which "
    "timm does not have: scale paper takes a pretrained DeiT-Small, the others a small ViT with "
    "random weights. The edge of PS and BS is frozen as it starts; that of SL learns here. Rows "
    "with tokens-to-token have the paper's embedding at that edge, the others ViT's. There are no "
    "pretrained weights of it, so these rows have random ones at every scale, before the cut and "
    "behind it, and the paper's accuracies stand beside the others."
)

_BLUR = (
    " Blur leaves 16 of 224 pixels, as in the paper, where images have as many; of 32 it leaves 8. "
    "Faces are read at 178 pixels, as many as they have, and enlarged to 224."
)

NORMAL = (
    " GN's N(0, 4) is taken as a variance of 4; where the paper averages noise, in section V-B.3, "
    "a standard deviation stands in that place."
)
"""How the paper's Gaussian noise is read; a part of the tables' notes."""

_LABELS = (
    " Accuracy is the mean over the labels, Matthews' correlation is over all of them together "
    "(equation 10), and the loss is the binary cross-entropy. No multi-label set of pictures is in "
    "a package registry: scale paper takes CelebA's 40 attributes from the hub, the others "
    "fashion-mnist-multi, whose images show four articles each and have up to four of ten labels."
)

LABELS_RIGHT = TableScore("accuracy (%)", "top1")
MATTHEWS = TableScore("Matthews (x 100)", "eval_matthews")


def _one(
    method: str, cut_at: str | None = None, defence: Defence = "none", **options: Value
) -> Variant:
    return variant(method, options, model=_COLUMN, clients=1, cut_at=cut_at, defence=defence)


ADVERSARIAL = _one("PSL", defence="adversarial")
BLURRED = _one("PSL", defence="blur")
CLIPPED_NOISE = _one("DPSL", sigma_s=1.0, sigma_y=0.0, clip="patch", clip_norm=1.0)
GAUSSIAN_NOISE = _one("DPSL", sigma_s=2.0, sigma_y=0.0, clip="none")


def _row(row: str, dataset: str, value: float, run: Variant | None) -> Entry:
    return Entry(row, _COLUMN, run, {dataset: value})


def _with_tokens_to_token(row: str, run: Variant) -> Entry:
    return Entry(f"{row}, tokens-to-token", _COLUMN, replace(run, embedding="tokens-to-token"))


TABLE_1 = Experiment(
    "patch-shuffling-table1",
    "what shuffling at a frozen edge costs in accuracy (faces)",
    "Patch Shuffling, Table I, column Acc",
    (
        _row("SL", CELEBA, 91.05, _one("PSL")),
        _row("Adv", CELEBA, 90.36, ADVERSARIAL),
        _row("Blur", CELEBA, 89.58, BLURRED),
        _row("DP", CELEBA, 80.67, CLIPPED_NOISE),
        _row("GN", CELEBA, 87.35, GAUSSIAN_NOISE),
        _row("BS (kappa = 0.4)", CELEBA, 89.18, _one("BatchShuffleSL", kappa=0.4)),
        _with_tokens_to_token("BS (kappa = 0.4)", _one("BatchShuffleSL", kappa=0.4)),
        _row("PS+", CELEBA, 88.21, _one("SpectralShuffleSL")),
        Entry("PS+ of pixels (Figure 4)", _COLUMN, _one("SpectralShuffleSL", spectrum="pixels")),
    ),
    ordered(("DP", "GN", "PS+", "BS (kappa = 0.4)", "Blur", "Adv", "SL"), (_COLUMN,)),
    _NOTE + _BLUR + NORMAL + _LABELS,
    track="multi-label",
    scores=(LABELS_RIGHT, MATTHEWS),
)

_MATTHEWS = {
    "SL": 72.7,
    "Adv": 70.5,
    "Blur": 67.8,
    "DP": 31.2,
    "GN": 60.1,
    "BS (kappa = 0.4)": 66.0,
    "PS+": 63.1,
}

TABLE_1_MATTHEWS = replace(
    TABLE_1,
    name="patch-shuffling-table1-mcc",
    title="what shuffling at a frozen edge costs in Matthews' correlation (faces)",
    source="Patch Shuffling, Table I, column MCC",
    entries=tuple(
        replace(entry, paper={CELEBA: _MATTHEWS[entry.row]} if entry.row in _MATTHEWS else {})
        for entry in TABLE_1.entries
    ),
    scores=(MATTHEWS, LABELS_RIGHT),
)
"""The same runs as `TABLE_1`, which is in the same order by this score."""

TABLE_2 = Experiment(
    "patch-shuffling-table2",
    "what shuffling at a frozen edge costs in accuracy (natural images)",
    "Patch Shuffling, Table II, column Acc",
    (
        _row("SL", CIFAR, 98.36, _one("PSL")),
        _row("PS", CIFAR, 96.99, _one("PatchShuffleSL")),
        _with_tokens_to_token("PS", _one("PatchShuffleSL")),
        _row("BS (kappa = 0.75)", CIFAR, 96.16, _one("BatchShuffleSL", kappa=0.75)),
        _with_tokens_to_token("BS (kappa = 0.75)", _one("BatchShuffleSL", kappa=0.75)),
    ),
    ordered(("BS (kappa = 0.75)", "PS", "SL"), (_COLUMN,)),
    _NOTE,
    track="shuffling",
)

_KAPPAS = ((0.5, 90.29), (0.4, 89.18), (0.25, 88.54), (0.15, 88.76))

TABLE_7 = Experiment(
    "patch-shuffling-table7",
    "batch shuffling by the fraction of its tokens that an image keeps",
    "Patch Shuffling, Table VII, column Acc",
    tuple(
        _row(f"BS (kappa = {kappa:g})", CELEBA, value, _one("BatchShuffleSL", kappa=kappa))
        for kappa, value in _KAPPAS
    ),
    ordered(("BS (kappa = 0.25)", "BS (kappa = 0.4)", "BS (kappa = 0.5)"), (_COLUMN,)),
    _NOTE + _LABELS,
    track="multi-label",
    scores=(LABELS_RIGHT, MATTHEWS),
)

EDGE_MACS = TableScore("edge MMACs", "forward_macs", 1e-6)
EDGE_MEMORY = TableScore("edge memory (MB)", "memory_bytes", 1e-6)

_SIZE = "one image of 224 pixels"

TABLE_6 = Experiment(
    "patch-shuffling-table6",
    "what an edge computes and keeps in memory",
    "Patch Shuffling, Table VI, column Macc Edge",
    (
        _row("SL", _SIZE, 3.10, _one("PSL", cut_at="blocks.0")),
        _row("Adv", _SIZE, 81.63, _one("PSL", cut_at="blocks.0", defence="adversarial")),
        _row("PS", _SIZE, 3.10, _one("PatchShuffleSL")),
        replace(_with_tokens_to_token("PS", _one("PatchShuffleSL")), paper={_SIZE: 3.10}),
        _row("BS (kappa = 0.4)", _SIZE, 3.10, _one("BatchShuffleSL", kappa=0.4)),
        _row("PS+", _SIZE, 1.18, _one("SpectralShuffleSL")),
        Entry("PS+ of pixels (Figure 4)", _COLUMN, _one("SpectralShuffleSL", spectrum="pixels")),
    ),
    (
        *ordered(("PS+", "PS"), (_COLUMN,)),
        *ordered(("SL", "Adv"), (_COLUMN,)),
        *(  # equal in the paper
            Ordering((shuffled, _COLUMN), ("SL", _COLUMN), slack=0.01)
            for shuffled in ("PS", "BS (kappa = 0.4)")
        ),
    ),
    "Multiply-adds of a forward pass of one image, as the paper's 3.10 are said to be in millions; "
    "memory is of parameters, optimizer state and the activations of a batch, in training. The "
    "paper's memory is 0.97, 2.43, 0.97 and 1.01 GB. FFTs, by which PS+ shuffles, are not counted. "
    "SL is cut behind the first block, as PS is. Its edge learns and has the class token; those of "
    "PS and BS are frozen and have none. The paper's PS and BS are those with tokens-to-token; its "
    "3.10 stands beside both. By our count, the embedding and the first block of a T2T-ViT-24 take "
    "2,172 million multiply-adds of such an image and have 3.09 million parameters, so that the "
    "paper's 3.10 may be the latter.",
    track="shuffling",
    scores=(EDGE_MACS, EDGE_MEMORY),
)

PATCH_SHUFFLING = (TABLE_1, TABLE_1_MATTHEWS, TABLE_2, TABLE_6, TABLE_7)
"""All experiments of this module, in the paper's order."""
