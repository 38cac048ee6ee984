"""Split-N-Denoise at the client: noise before a text leaves, a denoiser for the answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix.data.examples import ExampleSet, check_map_style
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding.calibrating import Calibrating
from flwr_splitmix.hiding.exchanged import ClientSide, SentBatch
from flwr_splitmix.hiding.snd.denoiser import Denoiser, Denoising
from flwr_splitmix.hiding.snd.noise import clip_to, largest_norm, metric_noise
from flwr_splitmix.seeding import derive_seed, seeded_draws
from flwr_splitmix.values import real_number, whole_number

MAX_DEFAULT_WIDTH = 256
"""Largest default width of the denoiser's blocks."""


@dataclass
class NoisyStates(SentBatch):
    """The messages of a batch, with the values that only the client knows.

    Parameters
    ----------
    hidden
        (b, T, d): the head's own hidden states, without a graph.
    """

    hidden: Tensor

    @property
    def noise(self) -> Tensor:
        """(b, T, d): what was added to the hidden states, including the effect of clipping."""
        return self.messages[0].detach() - self.hidden


class SnD(Calibrating):
    """Adds noise to each token's hidden state, and denoises what the trunk returns.

    Noisy states with a norm above the vocabulary's largest are scaled down to it; that norm is
    computed once a round, from the current head. The denoiser gets the trunk's output, the states
    and their noise, and learns on public texts to predict the output without noise: before the
    first batch, and alongside training, since the trunk learns too.

    Parameters
    ----------
    public
        Public texts. Their labels are not used.
    vocab_size
        Words that the head knows.
    eta
        Parameter of the noise, whose mean norm is d / eta. Each release of a token is `eta`-d_chi
        private: for two hidden states at distance r, the likelihood of a release differs by a
        factor of at most `exp(eta r)`. Releases compose over a text's tokens and over epochs.
    calibration_epochs, calibration_lr, calibration_blocks, calibration_rank
        For the denoiser: epochs over the public texts before the first batch (0: no denoiser),
        learning rate, number of blocks, and their width, a multiple of 4; width None (or 0) uses
        that of the states, at most 256.
    refine_every
        Training steps between two steps of the denoiser on public texts; 0 for none.
    causal
        Whether denoising a place sees only places before it, for texts whose words are predicted.

    Raises
    ------
    TypeError
        If `public` is not a map-style data set.
    ValueError
        If a value is out of its range, or there is no public text to learn on.

    Source: Split-N-Denoise (Mai et al., 2023), section 3. There the server's model is frozen, the
    server trains the denoiser, and noise is added to embeddings. Here noise is added to the head's
    output, and each client trains its own denoiser over the same link. eta's default is ours.
    """

    warning = (
        "SnD's noise protects single tokens in the sense of d_chi privacy, not texts, and "
        "gradients that go back to the trunk are without noise: docs/language.md"
    )

    texts_only = True
    not_accounted = (
        "noise bounds what single releases of tokens reveal, by their distance, and no ledger adds "
        "that up"
    )
    own_masks = False
    mixes_batch = False
    network = "denoising"

    def __init__(
        self,
        public: ExampleSet,
        *,
        vocab_size: int,
        eta: float = 100.0,
        calibration_epochs: int = 2,
        calibration_lr: float = 1e-3,
        calibration_blocks: int = 1,
        calibration_rank: int | None = None,
        refine_every: int = 1,
        causal: bool = True,
    ) -> None:
        check_map_style("public", public)
        self.eta = _above_0("eta", eta)
        self.calibration_lr = _above_0("calibration_lr", calibration_lr)
        self.vocab_size = whole_number("vocab_size", vocab_size, 1)
        self.calibration_blocks = whole_number("calibration_blocks", calibration_blocks, 1)
        calibration_epochs = whole_number("calibration_epochs", calibration_epochs, 0)
        refine_every = whole_number("refine_every", refine_every, 0)
        if calibration_rank is not None:
            calibration_rank = whole_number("calibration_rank", calibration_rank, 0)
        _check_rank(calibration_rank)
        if calibration_epochs and not len(public):  # type: ignore[arg-type]
            raise ValueError("SnD has no public text for its denoiser to learn on")
        super().__init__(public, calibration_epochs=calibration_epochs, refine_every=refine_every)
        self.calibration_rank = calibration_rank
        self.causal = causal
        self.denoising: Denoising | None = None
        self._bound: float | None = None

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        """Check that there is such a denoiser.

        Raises
        ------
        ValueError
            If its blocks cannot have that width.
        """
        _check_rank(options["calibration_rank"])

    @property
    def correction(self) -> Denoising | None:
        """The denoiser with its optimizer."""
        return self.denoising

    def attach(self, side: ClientSide) -> None:
        """Begin a round; create the denoiser in the first one."""
        super().attach(side)
        self._bound = None
        if self.denoising is None and self.calibration_epochs:
            inner = self.calibration_rank or min(-(-side.width // 4) * 4, MAX_DEFAULT_WIDTH)
            with seeded_draws(side.device, derive_seed(side.seed, "denoiser", side.client)):
                denoiser = Denoiser(side.width, inner, self.calibration_blocks, causal=self.causal)
            self.denoising = Denoising(denoiser.to(side.device), learning_rate=self.calibration_lr)

    @property
    def bound(self) -> float:
        """The largest norm of a word under the head, computed at its first use in the round."""
        if self._bound is None:
            self._bound = largest_norm(self.side.head, self.vocab_size, self.side.device)
        return self._bound

    def obfuscate(self, batch: MaskedBatch) -> NoisyStates:
        """Add noise to each place's hidden state, and clip it to the vocabulary's bound."""
        hidden: Tensor = self.side.head(batch.inputs, batch.mask)
        exact = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        noise = metric_noise(exact.shape, self.eta, exact.dtype).to(exact.device)
        noisy = clip_to(exact + noise, self.bound).to(hidden.dtype)
        return NoisyStates([noisy], batch.mask, batch, hidden.detach())

    def recover(self, outputs: Sequence[Tensor], sent: SentBatch) -> Tensor:
        """Denoise the trunk's output."""
        states = _noisy(sent)
        if self.denoising is None:
            return outputs[0]
        return self.denoising(outputs[0], states.hidden, states.noise, states.mask)

    def public_groups(self, sent: SentBatch) -> list[SentBatch]:
        """Return the noisy states of public texts, and their plain states."""
        states = _noisy(sent)
        return [states, SentBatch([states.hidden], states.mask, states.batch)]

    def learn_public(
        self, outputs: Sequence[Sequence[Tensor]], groups: Sequence[SentBatch], step: int | None
    ) -> None:
        """Take one step of the denoiser."""
        assert self.denoising is not None
        states, ((noisy,), (plain,)) = _noisy(groups[0]), outputs
        errors = self.denoising.step(noisy, states.hidden, states.noise, plain, states.mask)
        self.note(step, errors)

    def metrics(self) -> dict[str, float]:
        """Return recent relative errors on public texts, before and after the denoiser."""
        if not self._errors:
            return {}
        before, after = self.mean_errors
        return {"noise-error": before, "denoised-error": after}


def _noisy(sent: SentBatch) -> NoisyStates:
    assert isinstance(sent, NoisyStates)
    return sent


def _above_0(name: str, value: float) -> float:
    number = real_number(name, value)
    if not 0 < number < math.inf:
        raise ValueError(f"{name} is {value}; it must be a number above 0")
    return number


def _check_rank(rank: int | None) -> None:
    if rank and rank % 4:
        raise ValueError(f"calibration_rank is {rank}; SnD's denoiser needs a multiple of 4, or 0")
