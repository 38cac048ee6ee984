"""DP-Forward: clips each example's hidden states and adds Gaussian noise before sending them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding.charges import Charges, PlannedClient
from flwr_splitmix.hiding.exchanged import ClientSide, SentBatch
from flwr_splitmix.hiding.hiding import Hiding
from flwr_splitmix.hiding.record_ledger import RecordLedger
from flwr_splitmix.limits import LARGEST_SIGMA
from flwr_splitmix.privacy.analytic import gaussian_sigma
from flwr_splitmix.privacy.costs import LARGEST, check_bound
from flwr_splitmix.privacy.covering_noise import CoveringNoise
from flwr_splitmix.privacy.events import Channel
from flwr_splitmix.privacy.mechanism import add_noise, clip_smashed
from flwr_splitmix.privacy.noise import GaussianNoise
from flwr_splitmix.privacy.statement import Statement
from flwr_splitmix.values import check_choice, real_number, whole_number

Sensitivity = Literal["replace", "published"]

_LESS_NOISE = "take a smaller clip_norm, a larger epsilon or fewer releases"


def outside_of(
    *, head_learns: bool, returns: bool, averaged: bool, losses: bool, padded: bool
) -> tuple[Channel, ...]:
    """Return what DP-Forward's epsilon does not cover.

    Parameters
    ----------
    head_learns, returns, averaged, losses, padded
        Whether the head learns, gradients are returned to the trunk, head and tail leave, mean
        losses or scores do (of whatever records), and masks show lengths.
    """
    channels: dict[Channel, bool] = {
        "lengths": padded,
        "losses": losses,
        "head": head_learns,
        "returned-gradients": returns,
        "ends": averaged,
    }
    return tuple(channel for channel, happens in channels.items() if happens)


class DPForward(Hiding):
    """Sends each example's hidden states, clipped as a whole, with Gaussian noise.

    The noise makes `releases` releases of an example, a text or an image, (epsilon, delta) private
    together. Training and evaluation send an example many times; a ledger composes these exactly,
    and states what it does not cover.

    Parameters
    ----------
    epsilon, delta
        The guarantee for `releases` releases of an example together; the analytic Gaussian
        mechanism gives the least noise for it. The ledger reports its epsilon at the same delta.
    clip_norm
        C, the largest Frobenius norm of an example's hidden states (T, d); larger ones are scaled
        down.
    releases
        Number of releases of an example; 1 in the paper. A run of e epochs sends each training
        example e times: with `releases` = e, `epsilon` covers the whole run.
    sensitivity
        "replace": replacing an example moves its release by up to 2 C. "published": C, as in the
        authors' code; this gives half the noise that epsilon needs, and the ledger charges the
        actual cost.

    Raises
    ------
    ValueError
        If a value is out of its range.

    Source: DP-Forward (Du et al., 2023), sections 3 and 4. Its noise may be correlated along rows
    and columns; this is the special case of independent noise. Its noisy labels are not needed,
    as labels stay with the client.
    """

    accounts = True
    rests_on = ("obfuscate",)
    own_masks = False
    mixes_batch = False
    warning = (
        "DP-Forward's epsilon is about messages; gradients that clients return to the trunk, where "
        "they do, are without noise, and reveal inputs and labels: docs/language.md"
    )

    def __init__(
        self,
        epsilon: float = 8.0,
        delta: float = 1e-5,
        clip_norm: float = 1.0,
        sensitivity: Sensitivity = "replace",
        releases: int = 1,
    ) -> None:
        check_choice("sensitivity", sensitivity, get_args(Sensitivity))
        epsilon, delta = real_number("epsilon", epsilon), real_number("delta", delta)
        clip_norm = real_number("clip_norm", clip_norm)
        if not (math.isfinite(clip_norm) and clip_norm > 0):
            raise ValueError(f"clip_norm is {clip_norm}; it must be a number above 0")
        check_bound("clip_norm", clip_norm)
        releases = whole_number("releases", releases, least=1)
        super().__init__()
        assumed = 2 * clip_norm if sensitivity == "replace" else clip_norm
        # n releases of an example compose to one whose shift is sqrt(n) times as large.
        self.sigma = gaussian_sigma(epsilon, delta, math.sqrt(releases) * assumed)
        self.delta = delta
        self.noise = GaussianNoise(
            sigma_s=self.sigma, sigma_y=0.0, clip="sample", clip_norm=clip_norm
        )
        self.ledger = RecordLedger()
        self._options = {
            "epsilon": epsilon,
            "delta": delta,
            "clip_norm": clip_norm,
            "sensitivity": sensitivity,
            "releases": releases,
        }
        if self.sigma > LARGEST:
            raise ValueError(
                f"{self._needed}, and float32, in which noise is added, has no such number; "
                f"{_LESS_NOISE}"
            )

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        """Check that servers do not refuse such noise.

        Raises
        ------
        ValueError
            If it is too large.
        """
        hiding = cls(**options)
        if hiding.sigma > LARGEST_SIGMA:
            raise ValueError(
                f"{hiding._needed}, and servers refuse such numbers; it must be at most "
                f"{LARGEST_SIGMA:g}: {_LESS_NOISE}"
            )

    @property
    def _needed(self) -> str:
        settings = self._options
        return (
            f"clip_norm is {settings['clip_norm']:g}, epsilon {settings['epsilon']:g} and releases "
            f"{settings['releases']}, which needs noise of standard deviation {self.sigma:.3g}"
        )

    def made_with(self) -> dict[str, Any]:
        """Return the options that it was made with; the attribute `epsilon` is what is spent."""
        return {**super().made_with(), **self._options}

    @property
    def covering(self) -> CoveringNoise:
        """The noise on a release of an example."""
        clip_norm = self.noise.clip_norm
        return CoveringNoise(sigma=self.sigma, moved=2 * clip_norm, bound=clip_norm)

    def attach(self, side: ClientSide) -> None:
        """Begin a round; create the ledgers in the first one."""
        super().attach(side)
        self.ledger.begin_round(side, self.covering)

    def charge(self, kind: str, records: np.ndarray) -> None:
        """Charge each example for a release; public ones cost nothing.

        The scores of whatever examples are those of a tail that has learned from the training
        labels, which can be read from them.
        """
        outside = outside_of(
            head_learns=any(p.requires_grad for p in self.side.head.parameters()),
            returns=kind == "train" and self.side.returns,
            averaged=self.side.averaged,
            losses=self.side.returns,  # `UShapeClient.release`
            padded=self.side.padded,
        )
        if kind != "train":
            self.ledger.note("losses")
        # Training data that were sent before are owed, perhaps more than this round sends.
        attempt = 0 if kind == "train" else self.side.attempt
        self.ledger.charge(kind, records, self.covering, attempt=attempt, outside=outside)

    def planned_charges(self, planned: PlannedClient) -> Charges:
        """Return the charge of a message, in training and evaluation."""
        outside = outside_of(
            head_learns=planned.head_learns,
            returns=planned.returns,
            averaged=planned.averaged,
            losses=planned.returns or planned.scored,
            padded=planned.padded,
        )
        return Charges(
            delta=self.delta, noise=self.covering, tested=planned.tested, outside=outside
        )

    def obfuscate(self, batch: MaskedBatch) -> SentBatch:
        """Clip each example's hidden states and add noise; places without a token are all noise."""
        hidden: Tensor = self.side.head(batch.inputs, batch.mask)
        exact = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        # Not a product: values after a text's end may be NaN.
        exact = torch.where(batch.mask.unsqueeze(-1) != 0, exact, 0.0)
        noisy = add_noise(clip_smashed(exact, self.noise), self.sigma)
        return SentBatch([noisy.to(hidden.dtype)], batch.mask, batch)

    @property
    def epsilon(self) -> float:
        """The epsilon that all messages so far have cost the example that spent most."""
        return self.ledger.epsilon(self.delta)

    def statement(self) -> Statement:
        """Return what the messages have cost, and what the number does not cover."""
        return self.ledger.statement(self.delta)

    def metrics(self) -> dict[str, float]:
        """Return the epsilon so far."""
        return {"epsilon": self.epsilon}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the ledgers."""
        return {}, {"text-ledger": self.ledger.state()}

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self.ledger.restore(meta["text-ledger"])
