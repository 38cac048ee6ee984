"""The options of MixGuard's client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from flwr_splitmix.hiding.mixguard.perturbation import Perturbation
from flwr_splitmix.hiding.mixguard.sampler import SCALE, Sampler, draw_secret
from flwr_splitmix.hiding.mixguard.secret import Secret
from flwr_splitmix.values import check_choice, check_truth, real_number, shown, whole_number

Gradients = Literal["target", "all-sources", "one-message"]
Decoding = Literal["sum", "residual"]
TrunkMask = Literal["union", "target"]


@dataclass(frozen=True)
class MixGuardOptions:
    """Options of MixGuard's client; the defaults are the paper's where it gives them.

    The paper does not specify how secrets are drawn: all samplers and their bounds are ours.

    Parameters
    ----------
    k, m
        Texts in a mixture (the target and k - 1 supports), and messages sent for a batch; both at
        most `MAX_MIXED`.
    secret_tokens
        Random words inserted into every text: 20 for classification, 40 for generation, 0 if they
        would change the label (CoLA).
    support_texts
        This many first public texts are used as supports only, and the calibrator learns on the
        others; 0 draws both from all public texts.
    calibration_epochs
        Epochs of Stage I over the public texts; 0 disables calibration, unless `refine_only`.
    refine_only
        Whether the calibrator learns by refinement only, without Stage I.
    calibration_rank, calibration_blocks, calibration_lr
        For the calibrator; see `Calibrator`.
    refine_every
        Training steps between two steps of the calibrator on public texts; 0 for none.
    perturbation, strength
        Noise on the returned gradient; see `perturb`. "adaptive" needs calibration.
    gradients
        "target" is the paper's. "all-sources", an extension that needs m >= k, adds the gradient
        of a public loss on the support texts, so that the messages' gradients have rank k.
        "one-message", another extension, returns the gradient of one message, drawn per step (per
        text if secrets are), scaled so that its mean is the paper's; see `one_message`.
    secret_per_sample
        An extension: each text of a batch has its own secret.
    sampler
        How secrets are drawn; see `draw_secret`.
    support_scale
        Weight of the supports in a message: a smaller one is closer to the target and decodes
        better. For "rotated": factor on each source's total weight among the messages of one sign,
        which is drawn from 0.5 to 1.5, plus 1 for the target. For "convex" and "skewed": the
        supports' part over the target's, as a root mean square over messages.
    max_distortion
        For trunks that normalise their input, such as BERT's: only secrets with
        `Secret.distortion` up to this are drawn. Messages then point closer to the target.
    max_leak
        Largest |cos| of any message, or of their plain sum, with the target: bounds secrets by
        their weights (`Secret.leak`), and by the mean measured over a batch of private texts
        (`measured_leak`).
    max_amplification
        Only secrets with `Secret.amplification` up to this are drawn.
    decoding
        "sum" is the paper's. "residual", an extension that needs calibration's public texts,
        decodes only what the trunk adds to the target's hidden states, which the client knows; see
        `ResidualKernel`.
    mask
        Places that the trunk attends to: "union", all where any of the mixed texts has a token;
        "target", an extension, only the target's, to which supports are cut or filled. The mask
        then reveals each text's length, but decoding is more accurate.
    calibrated_inference
        Whether evaluation uses the calibrator.
    pad_to
        Pad every mixture to this length, so that the mask reveals nothing about text lengths.
    max_length
        Most tokens that the model accepts.
    """

    k: int = 3
    m: int = 3
    secret_tokens: int = 20
    support_texts: int = 0
    calibration_epochs: int = 2
    refine_only: bool = False
    calibration_rank: int | None = None
    calibration_blocks: int = 1
    calibration_lr: float = 1e-3
    refine_every: int = 1
    perturbation: Perturbation | None = "adaptive"
    strength: float = 0.1
    gradients: Gradients = "target"
    secret_per_sample: bool = False
    sampler: Sampler = "skewed"
    support_scale: float = 1.0
    max_distortion: float | None = None
    max_leak: float | None = None
    max_amplification: float | None = None
    decoding: Decoding = "sum"
    mask: TrunkMask = "union"
    calibrated_inference: bool = True
    pad_to: int | None = None
    max_length: int = 512

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_choices()
        if self.gradients == "all-sources" and self.m < self.k:
            raise ValueError(
                f"gradients 'all-sources' needs m >= k, here m is {self.m} and k is {self.k}"
            )
        if self.refine_only and (self.calibration_epochs or not self.refine_every):
            raise ValueError(
                "refine_only is calibration without Stage I: calibration_epochs must be 0 and "
                f"refine_every at least 1, here they are {self.calibration_epochs} and "
                f"{self.refine_every}"
            )
        if not self.calibrates:
            self._check_without_calibration()
        self.draw()  # fails now, rather than during a round, if there are no such secrets

    @property
    def calibrates(self) -> bool:
        """Whether there is a calibrator, so that public texts are sent."""
        return self.calibration_epochs > 0 or self.refine_only

    def draw(self, samples: int | None = None) -> Secret:
        """Draw a batch's secret, or one per sample.

        Raises
        ------
        ValueError
            If there are no such secrets, or too few to find.
        """
        low, high = SCALE
        return draw_secret(
            self.m,
            self.k,
            samples=samples,
            sampler=self.sampler,
            support_norm=self.support_scale,
            scale=(self.support_scale * low, self.support_scale * high),
            max_distortion=self.max_distortion,
            max_leak=self.max_leak,
            max_amplification=self.max_amplification,
        )

    def _check_choices(self) -> None:
        if self.perturbation not in (*get_args(Perturbation), None):
            raise ValueError(
                f"perturbation is {self.perturbation!r}; it must be 'adaptive', 'constant' or None"
            )
        for name in ("refine_only", "secret_per_sample", "calibrated_inference"):
            check_truth(name, getattr(self, name))
        check_choice("gradients", self.gradients, get_args(Gradients))
        check_choice("decoding", self.decoding, get_args(Decoding))
        check_choice("mask", self.mask, get_args(TrunkMask))
        if self.mask == "target" and self.pad_to is not None:
            raise ValueError(
                "mask is 'target', which reveals each text's length, but pad_to hides it; use "
                "'union' with it"
            )
        if self.decoding == "residual" and self.gradients == "all-sources":
            raise ValueError(
                "decoding is 'residual', which decodes the target alone; gradients must be "
                "'target' or 'one-message'"
            )

    def _check_without_calibration(self) -> None:
        if self.gradients == "all-sources":
            raise ValueError(
                "gradients 'all-sources' draws the supports towards their calibrated form, but "
                "calibration_epochs is 0"
            )
        if self.decoding == "residual":
            raise ValueError(
                "decoding 'residual' learns its weights on calibration's public texts, but "
                "calibration_epochs is 0"
            )
        if self.perturbation == "adaptive":
            raise ValueError(
                "perturbation 'adaptive' follows the calibrator's residual, but "
                "calibration_epochs is 0; allowed without calibration are 'constant' and None"
            )

    def _check_numbers(self) -> None:
        """Check numbers, and make NumPy's Python's, as records of a run have these only."""
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                object.__setattr__(self, name, whole_number(name, value, least))
        for name in ("k", "m"):
            if getattr(self, name) > MAX_MIXED:  # before secrets of that size are drawn
                raise ValueError(
                    f"{name} is {shown(getattr(self, name))}; it must be at most {MAX_MIXED}"
                )
        for name in (
            "calibration_lr",
            "support_scale",
            "max_distortion",
            "max_leak",
            "max_amplification",
        ):
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            object.__setattr__(self, name, real_number(name, value))
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {value}; it must be positive and finite")
        if not MAX_SCALE**-1 <= self.support_scale <= MAX_SCALE:
            raise ValueError(
                f"support_scale is {self.support_scale}; it must be from 1e-06 to {MAX_SCALE:g}, "
                "beyond which float32 cannot take supports and target apart"
            )
        if self.max_leak is not None and self.max_leak >= 1:
            raise ValueError(
                f"max_leak is {self.max_leak}; it bounds a cosine, so it must be below 1"
            )
        object.__setattr__(self, "strength", real_number("strength", self.strength))
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


MAX_MIXED = 64
"""Most texts in a mixture and most messages: secrets have a number for each pair of them."""

MAX_SCALE = 1e6
"""Largest weight of the supports next to the target's; its inverse is the least."""

_LEAST = {
    "k": 2,
    "m": 2,
    "secret_tokens": 0,
    "support_texts": 0,
    "calibration_epochs": 0,
    "calibration_rank": 1,
    "calibration_blocks": 1,
    "refine_every": 0,
    "pad_to": 1,
    "max_length": 1,
}
"""Options that are whole numbers, and their least values."""

_OPTIONAL = (
    "calibration_rank",
    "pad_to",
    "max_distortion",
    "max_leak",
    "max_amplification",
)
"""Options that are numbers or None."""
