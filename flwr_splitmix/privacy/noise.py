"""Settings of a client's clipping and noise: plain values, no tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from flwr_splitmix.values import check_choice, check_truth, real_number, shown

Clip = Literal["patch", "range", "sample", "none"]
SmashedNoise = Literal["kept", "all"]
LabelNoise = Literal["after", "before"]


@dataclass(frozen=True, kw_only=True)
class GaussianNoise:
    """Clipping and Gaussian noise of one upload.

    Parameters
    ----------
    sigma_s, sigma_y
        Standard deviations of the noise on each number of the smashed data, and of the labels, in
        their own units. 0 means no noise on that part, which then has no epsilon.
    clip
        The quantity that is bounded before noise is added: "patch", each patch's L2 norm; "range",
        each number, to an interval; "sample", the L2 norm of a sample's whole smashed data; "none",
        nothing, so that there is no epsilon at all.
    clip_norm
        The bound C of the norm, or the width Delta of the interval, in units of the smashed data.
    smashed_noise
        For CutMix, which patches get noise: those "kept" (only they are sent), or "all" (every
        position is sent). Mixup adds noise to everything, after scaling.
    label_noise
        Whether label noise is added "after" or "before" the label is scaled by the mixing ratio.
        Scaling noise together with the label protects nothing from an adversary that sees it
        alone.
    clamp_labels
        Whether the client clamps its noisy labels to 0..1. This reveals no more to an adversary
        that sees them alone. But summed clamped labels hide each other less than plain ones, so
        the accountant then gives the sum no credit for the others' label noise.

    Raises
    ------
    ValueError
        If a value is not one of those allowed.

    Source: DP-CutMixSL, section 4 and Table 1; DP-CutMixSL (workshop), equations 1-3.
    """

    sigma_s: float
    sigma_y: float
    clip: Clip = "patch"
    clip_norm: float = 1.0
    smashed_noise: SmashedNoise = "kept"
    label_noise: LabelNoise = "after"
    clamp_labels: bool = True

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            check_choice(name, getattr(self, name), allowed)
        for name in ("sigma_s", "sigma_y"):
            value = getattr(self, name)
            if not 0 <= _number(name, value) < math.inf:
                raise ValueError(
                    f"{name} is {shown(value)}; a standard deviation is a number of at least 0"
                )
        if not 0 < _number("clip_norm", self.clip_norm) < math.inf:
            raise ValueError(f"clip_norm is {shown(self.clip_norm)}; it must be a number above 0")
        for name in ("sigma_s", "sigma_y", "clip_norm"):  # torch takes no integer of 64 bits
            object.__setattr__(self, name, float(getattr(self, name)))
        check_truth("clamp_labels", self.clamp_labels)

    @property
    def gaps(self) -> tuple[str, ...]:
        """Why an upload has no epsilon: names among clip, sigma_s, sigma_y."""
        missing = {
            "clip": self.clip == "none",
            "sigma_s": self.sigma_s == 0,
            "sigma_y": self.sigma_y == 0,
        }
        return tuple(name for name, lacks in missing.items() if lacks)

    def to_plain(self) -> dict[str, bool | float | str]:
        """Return the values by name, the inverse of `from_plain`."""
        return asdict(self)

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> GaussianNoise:
        """Make the settings from values by name.

        Raises
        ------
        ValueError
            If a name is unknown or missing, or a value is not allowed.
        """
        names = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - names):
            raise ValueError(
                f"noise has no {', '.join(unknown)}; its values are {', '.join(sorted(names))}"
            )
        if missing := sorted({"sigma_s", "sigma_y"} - set(values)):
            raise ValueError(f"noise needs {' and '.join(missing)}")
        return cls(**values)


_CHOICES: dict[str, tuple[str, ...]] = {
    "clip": get_args(Clip),
    "smashed_noise": get_args(SmashedNoise),
    "label_noise": get_args(LabelNoise),
}


def _number(name: str, value: object) -> float:
    """Return a number as a float, and NaN for anything else; raise ValueError if none holds it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return real_number(name, value)
