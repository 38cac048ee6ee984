"""The two matrices: image methods and text methods against attacks."""

from __future__ import annotations

from flwr_splitmix.experiments.privacy.columns import COLUMNS
from flwr_splitmix.experiments.privacy.kinds import Matrix, MatrixFact
from flwr_splitmix.experiments.privacy.rows import ROWS, TOLERANCE, UNPROTECTED
from flwr_splitmix.experiments.privacy.sizes import SIZES
from flwr_splitmix.experiments.privacy.texts.columns import TEXT_COLUMNS
from flwr_splitmix.experiments.privacy.texts.rows import EQUAL, NOTHING_HIDDEN, TEXT_ROWS
from flwr_splitmix.experiments.privacy.texts.sizes import TEXT_SIZES

_WORK = "flwr_splitmix.experiments.privacy"
_UPLINK = MatrixFact("uplink_bytes", "uplink bytes of an epoch", "uplink/epoch", "megabytes")
_HOW_TO_READ = (
    "Brackets hold an attack's interval of 95 % (of several seeds the lowest and highest bound) or "
    "the range of a method's own scores over seeds. Behind the slash is the floor, which an "
    "attacker reaches without the victim's smashed data. n/a: the adversary lacks what the attack "
    "needs, which does not make the method safe. (?): the attack did not beat its floor on the "
    "unprotected method either, so that it says nothing. (stopped): its time limit ended the "
    "attack before its full effort."
)

IMAGES = Matrix(
    name="images",
    rows=ROWS,
    columns=COLUMNS,
    sizes=SIZES,
    main=(
        "PSL",
        "SFL",
        "MixupSL",
        "CutMixSL",
        "CutMixSFL",
        "CutoutSL",
        "ShuffledCutMixSL",
        "DPCutMixSL",
        "BatchShuffleSL",
    ),
    unprotected=UNPROTECTED,
    facts=(MatrixFact("accuracy", "top-1", "top-1", "percent"), _UPLINK),
    metrics=("MSE", "patches in place", "patches attributed", "labels read", "AUC"),
    legend=(
        "For an attack that rebuilds images, a cell shows the mean squared error per pixel, with "
        "pixels from 0 to 1: the higher it is, the better the images are hidden. For all other "
        "attacks it shows how much they find: the higher it is, the worse the data are hidden. "
        f"{_HOW_TO_READ}"
    ),
    guide="[How to read it](attacks.md#how-to-read-the-matrix).",
    work=f"{_WORK}.work",
    loads=("timm", "sklearn.cluster", "sklearn.metrics", "scipy.stats", "torchmetrics"),
)

TEXTS = Matrix(
    name="texts",
    rows=TEXT_ROWS,
    columns=TEXT_COLUMNS,
    sizes=TEXT_SIZES,
    main=("USplitSL", "NaiveMixSL", "MixGuard-k3", "MixGuard-k10", "DPForwardSL", "SnDSL"),
    unprotected=NOTHING_HIDDEN,
    facts=(
        MatrixFact("matthews", "Matthews correlation", "Matthews"),
        MatrixFact("accuracy", "accuracy", "accuracy", "percent"),
        _UPLINK,
        MatrixFact("training_seconds", "processor seconds of training", "training", "seconds"),
        MatrixFact("decode_error", "decode error of public texts", "decode error"),
        MatrixFact("calibrated_error", "the same, calibrated", "calibrated"),
        MatrixFact("leak", "leak: cosine of a message or of their sum with its text", "leak"),
        MatrixFact("epsilon", "epsilon of all messages of a text", "epsilon"),
        MatrixFact("noise_option", "noise option at equal utility", "option"),
    ),
    metrics=("token accuracy",),
    legend=(
        "A cell shows the share of a text's words that the attack has right at their places: the "
        "higher, the worse hidden. The best of the guesses that it makes at a text (each message, "
        "their mean, each direction) counts. Decode errors are relative to the trunk's own "
        "output; the leak is the |cos| of the best message, or of their sum, with a public text. "
        "epsilon: of all messages of a text, where the method counts them; option: the last value "
        "of the noise option's ladder at which utility is at most "
        f"{TOLERANCE:g} below {EQUAL}'s, or the least value. A + marks what is "
        f"in no paper. {_HOW_TO_READ}"
    ),
    guide="[How to read it](attacks.md#how-to-read-the-matrix-of-texts).",
    work=f"{_WORK}.texts.work",
    loads=("transformers", "sklearn.metrics", "sklearn.decomposition", "scipy.stats"),
)

MATRICES: dict[str, Matrix] = {matrix.name: matrix for matrix in (IMAGES, TEXTS)}
"""The matrices by name."""
