"""Rows of the matrix of texts: the plain U shape, mixing, and the defences it is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from flwr_splitmix.experiments.cells import OptionValues, Value, as_options
from flwr_splitmix.experiments.privacy.kinds import AnyRow


@dataclass(frozen=True)
class TextRow(AnyRow):
    """A method of the U shape with its clients' options.

    Parameters
    ----------
    method
        Name of its strategy.
    options
        Of the clients' half, as sorted pairs; what it leaves out is the method's own choice.
    note
        What a reader must know.
    """

    method: str
    options: OptionValues = ()
    note: str = ""

    @property
    def victims_in_a_step(self) -> int:
        """Texts of one step when victims are attacked: two where a text's partner is another's."""
        return 2 if self.method == "NaiveMixSL" else 1


NOTHING_HIDDEN = "USplitSL"
"""The row on which an attack must beat its floor: the gate."""


def _guard(name: str, note: str = "", **options: Value) -> TextRow:
    own: dict[str, Value] = {"m": 3, "refine_every": 4, **options}
    return TextRow(f"MixGuard-{name}", "MixGuard", as_options(own), note)


TEXT_ROWS: dict[str, TextRow] = {
    row.name: row
    for row in (
        TextRow(NOTHING_HIDDEN, "USplitSL", note="the plain U shape: nothing is hidden"),
        TextRow("NaiveMixSL", "NaiveMixSL", as_options({"lam": 0.5})),
        *(
            _guard(
                f"k{k}" + (f"-secret{tokens}" if tokens else ""),
                f"{k} texts in 3 messages, {tokens} secret tokens",
                k=k,
                secret_tokens=tokens,
            )
            for k in (3, 10)
            for tokens in (0, 20, 40)
        ),
        _guard(
            "k3-per-sample",
            "a secret for each text",
            k=3,
            secret_tokens=0,
            secret_per_sample=True,
        ),
        _guard(
            "k3-skewed",
            "skewed secrets of weight 1.5",
            k=3,
            secret_tokens=0,
            sampler="skewed",
            support_scale=1.5,
        ),
        TextRow(
            "DPForwardSL",
            "DPForwardSL",
            as_options({"epsilon": 8.0, "delta": 1e-5, "clip_norm": 1.0}),
            "epsilon 8 of one release, with the sensitivity of replacing a text",
        ),
        TextRow(
            "DPSGDSL",
            "DPSGDSL",
            as_options({"noise_multiplier": 1.0, "clip_norm": 1.0}),
            "noise on the weights' gradients; messages are the plain U shape's",
        ),
        TextRow("SnDSL", "SnDSL", as_options({"eta": 100.0, "refine_every": 4})),
        TextRow("NoPeekSL", "NoPeekSL", as_options({"dcor_weight": 1.0})),
    )
}
"""All rows by name. The defences have the options that are said here, not equal utility."""
