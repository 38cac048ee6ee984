"""What MixGuard's client is told to do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from flwr_splitmix.mixguard.perturbation import Perturbation

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
        Factor on the supports' weights, which are between half and one and a half times what of
        the target is left over: smaller ones hide less in each message, and distort less.
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
        if self.k < 2 or self.m < 2:
            raise ValueError(f"k is {self.k} and m is {self.m}; both must be at least 2")
        if self.gradients not in ("target", "all-sources"):
            raise ValueError(
                f"gradients is {self.gradients!r}; allowed are 'target' and 'all-sources'"
            )
        if self.gradients == "all-sources" and self.m < self.k:
            raise ValueError(
                f"gradients 'all-sources' needs m >= k, here m is {self.m} and k is {self.k}"
            )
        for name in ("secret_tokens", "calibration_epochs", "refine_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 0")
        if not 0 < self.support_scale < math.inf:
            raise ValueError(f"support_scale is {self.support_scale}; it must be positive")
        if self.max_distortion is not None and not self.max_distortion > 0:
            raise ValueError(
                f"max_distortion is {self.max_distortion}; it must be positive, or None"
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
