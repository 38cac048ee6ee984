"""Rows of the matrix: all image methods of the catalogue, and the defences of Patch Shuffling."""

from __future__ import annotations

from dataclasses import dataclass

from flwr_splitmix.experiments.cells import Defence, OptionValues, Value, as_options
from flwr_splitmix.experiments.privacy.kinds import AnyRow
from flwr_splitmix.methods import METHODS, Method


@dataclass(frozen=True)
class Row(AnyRow):
    """A method with its options, and a further defence of the client.

    Parameters
    ----------
    name
        Name on the command line and in results.
    method
        Name of the strategy.
    options
        Keyword options of the strategy, as sorted pairs; those of noise are a `GaussianNoise`'s.
    defence
        "blur": the resolution of images is reduced before the lower segment; "adversarial": the
        lower segment is trained against a simulated attacker.
    equal_utility
        Whether the standard deviation of the noise is searched for, so that top-1 accuracy
        matches CutMixSL's: see `noise.climb`.
    stage
        Fraction of the training that is done when the row is attacked.
    model
        "ViT-Tiny", cut at its embedding, or "LeNet-5", cut after its second convolution.
    classes
        Classes of the images; () for all.
    note
        Description for readers.
    """

    method: str
    options: OptionValues = ()
    defence: Defence = "none"
    equal_utility: bool = False
    stage: float = 1.0
    model: str = "ViT-Tiny"
    classes: tuple[int, ...] = ()
    note: str = ""

    @property
    def brought_to(self) -> Row | None:
        """CutMixSL if the noise is searched for, else None."""
        return ROWS[EQUAL] if self.equal_utility else None

    @property
    def utility(self) -> str:
        """Name of the utility compared with CutMixSL's."""
        return "top-1"

    @property
    def frozen_edge(self) -> bool:
        """Whether the lower segment is frozen, with labels at the server; it needs two blocks."""
        return self.method in ("PatchShuffleSL", "BatchShuffleSL", "SpectralShuffleSL")


UNPROTECTED = "PSL"
"""The row on which an attack must beat its floor: the gate."""

EQUAL = "CutMixSL"
"""The row whose top-1 accuracy rows with noise must match."""

TOLERANCE = 0.02
"""Allowed deficit of utility, a fraction, below the other row's: a test set's resolution."""

_NOISE: dict[str, Value] = {"sigma_y": 0.0, "clip": "none"}


def _of_catalogue(method: Method) -> list[Row]:
    noisy = "noise" in method.needs
    return [
        Row(name, name, as_options(_NOISE if noisy else {}), equal_utility=noisy)
        for name in method.names
    ]


_DEFENCES = (
    Row(
        "GN",
        "DPSL",
        as_options({"sigma_s": 2.0, **_NOISE}),
        note="Gaussian noise N(0, 4) on smashed data, labels at the server",
    ),
    Row(
        "DP",
        "DPSL",
        as_options({"sigma_s": 1.0, "sigma_y": 0.0, "clip": "patch", "clip_norm": 1.0}),
        note="each patch clipped to norm 1, noise of standard deviation 1.0",
    ),
    Row("Blur", "PSL", defence="blur", note="a quarter of the resolution at 32 pixels"),
    Row("Adv", "PSL", defence="adversarial", note="min-max against a decoder at the client"),
)

ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        *(row for method in METHODS if method.shape == "L" for row in _of_catalogue(method)),
        *_DEFENCES,
    )
}
"""All rows by name, in the catalogue's order, the defences last."""
