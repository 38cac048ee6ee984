"""The options of MixGuard's client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from flwr_splitmix.hiding.mixguard.perturbation import Perturbation
from flwr_splitmix.hiding.mixguard.sampler import SCALE, draw_secret
from flwr_splitmix.hiding.mixguard.secret import Secret

Gradients = Literal["target", "all-sources"]


@dataclass(frozen=True)
class MixGuardOptions:
    """What MixGuard's client does; the defaults are the paper's where it says them.

    Parameters
    ----------
    k, m
        Texts in a mixture (the target and k - 1 supports), and messages sent for a batch.
    secret_tokens
        Random words inserted into every text: 20 for classification, 40 for generation, 0 where
        they would change the label (CoLA).
    calibration_epochs
        Of Stage I over the public texts; 0 calibrates nothing, at any time.
    calibration_rank, calibration_blocks, calibration_lr
        Of the calibrator; see `Calibrator`.
    refine_every
        Steps of training between two steps of the calibrator on public texts; 0: none.
    perturbation, strength
        Noise on the gradient that goes back; see `perturb`. "adaptive" needs calibration.
    gradients
        "target" is the paper's. "all-sources", an extension that needs m >= k, adds to what goes
        back a public loss on the support texts, so that the messages' gradients have rank k.
    secret_per_sample
        An extension: each text of a batch has a secret of its own.
    support_scale
        An extension: factor on each source's total weight among the messages of one sign, which
        is drawn from 0.5 to 1.5, where the target has 1 more. Below 1 a message is closer to the
        target, and distorts less.
    max_distortion
        An extension for trunks that normalise what they are given, as BERT's do: only secrets
        with `Secret.distortion` up to this are drawn. Messages then point closer to the target.
    calibrated_inference
        Whether evaluation uses the calibrator.
    pad_to
        Pad every mixture to this length: the mask then tells nothing of the texts' lengths.
    max_length
        Most tokens that the model takes.
    """

    k: int = 3
    m: int = 3
    secret_tokens: int = 20
    calibration_epochs: int = 2
    calibration_rank: int | None = None
    calibration_blocks: int = 1
    calibration_lr: float = 1e-3
    refine_every: int = 1
    perturbation: Perturbation | None = "adaptive"
    strength: float = 0.1
    gradients: Gradients = "target"
    secret_per_sample: bool = False
    support_scale: float = 1.0
    max_distortion: float | None = None
    calibrated_inference: bool = True
    pad_to: int | None = None
    max_length: int = 512

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.perturbation not in ("adaptive", "constant", None):
            raise ValueError(
                f"perturbation is {self.perturbation!r}; allowed are 'adaptive', 'constant' and "
                "None"
            )
        if self.gradients not in ("target", "all-sources"):
            raise ValueError(
                f"gradients is {self.gradients!r}; allowed are 'target' and 'all-sources'"
            )
        if self.gradients == "all-sources" and self.m < self.k:
            raise ValueError(
                f"gradients 'all-sources' needs m >= k, here m is {self.m} and k is {self.k}"
            )
        if self.gradients == "all-sources" and not self.calibration_epochs:
            raise ValueError(
                "gradients 'all-sources' draws the supports towards their calibrated form, but "
                "calibration_epochs is 0"
            )
        if self.perturbation == "adaptive" and not self.calibration_epochs:
            raise ValueError(
                "perturbation 'adaptive' follows the calibrator's residual, but "
                "calibration_epochs is 0; allowed without calibration are 'constant' and None"
            )
        self.draw()  # fails now, not in the middle of a round, if there are no such secrets

    def draw(self, samples: int | None = None) -> Secret:
        """Draw a batch's secret, or one for each of its samples.

        Raises
        ------
        ValueError
            If there are no such secrets, or too few to be found.
        """
        low, high = SCALE
        return draw_secret(
            self.m,
            self.k,
            samples=samples,
            scale=(self.support_scale * low, self.support_scale * high),
            max_distortion=self.max_distortion,
        )

    def _check_numbers(self) -> None:
        if self.k < 2 or self.m < 2:
            raise ValueError(f"k is {self.k} and m is {self.m}; both must be at least 2")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise ValueError(f"{name} is {value}; it must be a whole number, at least {least}")
        for name in ("calibration_lr", "support_scale", "max_distortion"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}; it must be positive and finite")
        if not 0 <= self.strength < math.inf:
            raise ValueError(f"strength is {self.strength}; it must be at least 0 and finite")
        if self.pad_to is not None and self.pad_to > self.max_length:
            raise ValueError(
                f"pad_to is {self.pad_to}; it must be at most max_length, {self.max_length}"
            )
        if self.secret_tokens >= (self.pad_to or self.max_length):
            raise ValueError(
                f"secret_tokens is {self.secret_tokens}; of {self.pad_to or self.max_length} "
                "tokens at least one must be left for the text"
            )


_LEAST = {
    "k": 2,
    "m": 2,
    "secret_tokens": 0,
    "calibration_epochs": 0,
    "calibration_rank": 1,
    "calibration_blocks": 1,
    "refine_every": 0,
    "pad_to": 1,
    "max_length": 1,
}
"""Whole numbers, and the least that each may be."""
