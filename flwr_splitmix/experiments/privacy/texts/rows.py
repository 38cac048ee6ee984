"""Rows of the matrix of texts: the plain U shape, mixing, and defences to compare it with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from flwr_splitmix.experiments.cells import OptionValues, Value, as_options
from flwr_splitmix.experiments.privacy.kinds import AnyRow
from flwr_splitmix.methods import METHODS

Learns = Literal["all", "tail"]
"""As in `flwr_splitmix.clients.UShapeClient`, which is not imported as it loads torch."""


@dataclass(frozen=True)
class TextRow(AnyRow):
    """A U-shape method with its clients' options.

    Parameters
    ----------
    method
        Name of its strategy.
    options
        Options of the client half, as sorted pairs; others have the method's defaults.
    note
        Remark for readers.
    """

    method: str
    options: OptionValues = ()
    note: str = ""

    @property
    def learns(self) -> Learns:
        """Trained parts of the model; with "tail", no gradient leaves the client."""
        return "all"

    @property
    def deeper(self) -> int:
        """Number of layers that the head has in addition to the size's."""
        return 0

    @property
    def whole_run(self) -> bool:
        """Whether epsilon covers all releases of a text in training, not just one."""
        return False

    def texts_in_a_step(self, batch: int) -> int:
        """Return the texts in one step when victims are released.

        A whole batch of the run if its texts are mixed with each other; otherwise one is enough.
        """
        return batch if self.method == "NaiveMixSL" else 1


@dataclass(frozen=True)
class ExtendedRow(TextRow):
    """A method with an addition that its paper does not have; the row's name has it after a +.

    Parameters
    ----------
    learns, deeper, whole_run
        See `TextRow`.
    """

    learns: Learns = "all"
    deeper: int = 0
    whole_run: bool = False


@dataclass(frozen=True)
class EqualRow(TextRow):
    """A defence with enough noise to lower its utility to MixGuard's.

    Parameters
    ----------
    knob
        Option whose value is searched for; `options` has all others.
    """

    knob: str = ""

    @property
    def brought_to(self) -> TextRow:
        """MixGuard's row."""
        return TEXT_ROWS[EQUAL]

    def with_noise(self, value: float) -> TextRow:
        """Return the row with a value of its option, which its name states."""
        options = as_options({**dict(self.options), self.knob: value})
        return TextRow(f"{self.method}-{self.knob}-{value:g}", self.method, options)


EQUAL = "MixGuard-k3"
"""The row whose utility defences must match."""

NOTHING_HIDDEN = "USplitSL"
"""The row on which an attack must beat its floor: the gate."""


_GUARD: dict[str, Value] = {"m": 3, "refine_every": 4, "sampler": "rotated"}
_THREE: dict[str, Value] = {**_GUARD, "k": 3, "secret_tokens": 0}


def _guard(name: str, note: str = "", **options: Value) -> TextRow:
    return TextRow(f"MixGuard-{name}", "MixGuard", as_options({**_GUARD, **options}), note)


def _plus(
    name: str, method: str, options: dict[str, Value], note: str, **added: Any
) -> ExtendedRow:
    return ExtendedRow(name, method, as_options(options), note, **added)


_ABLATIONS = (
    _guard(
        "k3-uncalibrated",
        "no calibration, and so no noise on gradients",
        k=3,
        secret_tokens=0,
        calibration_epochs=0,
        refine_every=0,
        perturbation=None,
    ),
    _guard(
        "k3-refined",
        "calibration by refinement alone, without Stage I",
        k=3,
        secret_tokens=0,
        calibration_epochs=0,
        refine_only=True,
    ),
    _guard("k3-unperturbed", "no noise on gradients", k=3, secret_tokens=0, perturbation=None),
)
"""MixGuard without one of its parts."""

_EXTENSIONS = (
    _plus("USplitSL+tail", "USplitSL", {}, "the tail alone is trained", learns="tail"),
    _plus("USplitSL+deep", "USplitSL", {}, "two more layers in the head", deeper=2),
    _plus("MixGuard-k3+tail", "MixGuard", _THREE, "the tail alone is trained", learns="tail"),
    _plus(
        "MixGuard-k3+one-message",
        "MixGuard",
        {**_THREE, "gradients": "one-message"},
        "one message of a step carries the gradient",
    ),
    _plus("MixGuard-k3+layer", "MixGuard", _THREE, "one more layer in the head", deeper=1),
    _plus("MixGuard-k3+deep", "MixGuard", _THREE, "two more layers in the head", deeper=2),
    _plus(
        "MixGuard-k3-skewed+residual",
        "MixGuard",
        {**_THREE, "sampler": "skewed", "support_scale": 1.5, "decoding": "residual"},
        "residual decoding, of skewed secrets",
    ),
    _plus(
        "DPForwardSL+tail",
        "DPForwardSL",
        {"epsilon": 8.0, "delta": 1e-5, "clip_norm": 1.0},
        "epsilon 8 of all that leaves of a text in training, but its length: the tail alone learns",
        learns="tail",
        whole_run=True,
    ),
)

_AT_EQUAL_UTILITY = (
    EqualRow(
        "DPForwardSL-equal",
        "DPForwardSL",
        as_options({"delta": 1e-5, "clip_norm": 1.0}),
        knob="epsilon",
    ),
    EqualRow("DPSGDSL-equal", "DPSGDSL", as_options({"clip_norm": 1.0}), knob="noise_multiplier"),
    EqualRow("SnDSL-equal", "SnDSL", as_options({"refine_every": 4}), knob="eta"),
    EqualRow("NoPeekSL-equal", "NoPeekSL", knob="dcor_weight"),
)

LADDERS: dict[str, dict[str, tuple[float, ...]]] = {
    "smoke": {
        "epsilon": (1e4,),
        "noise_multiplier": (0.5,),
        "eta": (100.0,),
        "dcor_weight": (1.0,),
    },
    "cpu": {
        "epsilon": (1e6, 1e5, 1e4, 1e3),
        "noise_multiplier": (0.1, 0.5, 2.0, 8.0),
        "eta": (1000.0, 300.0, 100.0, 30.0),
        "dcor_weight": (1.0, 3.0, 10.0, 30.0),
    },
    "paper": {
        "epsilon": (1e6, 1e5, 1e4, 1e3, 1e2, 8.0),
        "noise_multiplier": (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
        "eta": (3000.0, 1000.0, 300.0, 100.0, 30.0, 10.0),
        "dcor_weight": (0.3, 1.0, 3.0, 10.0, 30.0),
    },
}
"""Values to try for rows of equal utility, by scale and option, least noise first."""


_ROWS = (
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
    _guard("k3-convex", "convex secrets", k=3, secret_tokens=0, sampler="convex"),
    _guard("k10-m5", "10 texts in 5 messages", k=10, m=5, secret_tokens=0),
    *_ABLATIONS,
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
    *_AT_EQUAL_UTILITY,
    *_EXTENSIONS,
)

_OTHERS = tuple(
    TextRow(method.name, method.name)
    for method in METHODS
    if method.shape == "U" and all(row.method != method.name for row in _ROWS)
)
"""Methods without a row of their own above, with their defaults."""

TEXT_ROWS: dict[str, TextRow] = {row.name: row for row in (*_ROWS, *_OTHERS)}
"""All rows by name: methods, defences with the options given here, the same defences at MixGuard's
utility, extensions, and the other methods of the U shape with their defaults."""
