"""MixGuard's protocol at the client: encodes texts as messages and decodes the answers."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flwr_splitmix.data.examples import ExampleSet, check_map_style, fetch
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding.calibrating import RECENT_STEPS, Calibrating
from flwr_splitmix.hiding.exchanged import ClientSide, SentBatch
from flwr_splitmix.hiding.mixguard.all_sources import balance_gradients
from flwr_splitmix.hiding.mixguard.calibration import CalibratedTrunk, Calibration, Calibrator
from flwr_splitmix.hiding.mixguard.leak import measured_leak
from flwr_splitmix.hiding.mixguard.mixtures import Mixtures, as_mixtures
from flwr_splitmix.hiding.mixguard.one_message import one_message
from flwr_splitmix.hiding.mixguard.options import MixGuardOptions
from flwr_splitmix.hiding.mixguard.padding import pad_together
from flwr_splitmix.hiding.mixguard.perturbation import perturb
from flwr_splitmix.hiding.mixguard.residual import ResidualKernel
from flwr_splitmix.hiding.mixguard.secret import Secret
from flwr_splitmix.hiding.mixguard.supports import distinct_texts, divide
from flwr_splitmix.hiding.mixguard.tokens import InsertedTokens, SecretTokens
from flwr_splitmix.scoring.texts import check_labels, text_loss
from flwr_splitmix.seeding import derive_seed, secret_uniform, seeded_draws
from flwr_splitmix.storage import under
from flwr_splitmix.words import counted

log = logging.getLogger("flwr.splitmix")

MAX_REDRAWS = 64
"""Secrets tried for a batch before its leak counts as too large."""


class MixGuard(Calibrating):
    """Sends mixtures meant to be decodable only by the client.

    This is the client's half of MixGuard; the server's is `flwr_splitmix.strategies.MixGuard`.

    For every batch it draws a secret (signs, mixing and blinding matrix), hides the texts among
    support texts, sends m mixtures of their hidden states, and decodes the trunk's output for its
    own texts from the m answers. A calibrator, trained on public texts, corrects the effect of the
    trunk's non-linearity on mixtures. For what this does not hide see docs/mixguard.md.

    Parameters
    ----------
    public
        Public texts: supports are drawn from them in secret, and the calibrator learns on them, or
        on those not reserved for supports by the options. Their labels are not used.
    vocab_size, special_ids
        From the tokenizer: determine the words used as secret tokens and as filler.
    options
        MixGuard's options.

    Attributes
    ----------
    calibration
        The calibrator with its optimizer; None before the first round, and without calibration.

    Raises
    ------
    TypeError
        If `public` is not a map-style data set.
    ValueError
        If there is no public text, or none left to calibrate on, or no word for secret tokens.

    Source: MixGuard, sections 4.2 to 4.5; for what the paper leaves open see docs/mixguard.md.
    """

    warning = (
        "MixGuard does not hide the texts' hidden states from an attentive server: "
        "docs/mixguard.md says what it hides, with measured attacks"
    )

    texts_only = True
    own_masks = False
    mixes_batch = False
    network = "calibration"

    def __init__(
        self,
        public: ExampleSet,
        *,
        vocab_size: int,
        special_ids: Sequence[int] = (),
        options: MixGuardOptions | None = None,
    ) -> None:
        check_map_style("public", public)
        self.options = options or MixGuardOptions()
        self.vocab_size = vocab_size
        self.special_ids = tuple(special_ids)
        super().__init__(
            public,
            calibration_epochs=self.options.calibration_epochs,
            refine_every=self.options.refine_every,
        )
        if not len(public):  # type: ignore[arg-type]
            raise ValueError("MixGuard has no public text: its set of supports is empty")
        self._supports, self._calibrated_on = divide(public, self.options.support_texts)
        places = self.options.k - 1
        if (distinct := distinct_texts(public, self._supports, places)) < places:
            log.warning(
                "MixGuard mixes a text with %s, drawn from only %d distinct: a server that knows "
                "these few texts sees through more; give it at least %d distinct texts as public"
                "%s",
                counted(places, "support"),
                distinct,
                places,
                ", in the first support_texts of them" if self.options.support_texts else "",
            )
        self.tokens = SecretTokens(
            self.options.secret_tokens,
            vocab_size,
            self.special_ids,
            max_length=self.options.pad_to or self.options.max_length,
        )
        self.calibration: Calibration | None = None
        self.kernel = ResidualKernel() if self.options.decoding == "residual" else None
        self._leaks: deque[float] = deque(maxlen=RECENT_STEPS)

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        """Check the options as `MixGuardOptions` does."""
        MixGuardOptions(**options)

    @classmethod
    def messages_per_batch(cls, options: Mapping[str, Any]) -> int:
        """Return m."""
        return int(options["m"])

    @classmethod
    def calibrates(cls, options: Mapping[str, Any]) -> bool:
        """Return whether there is a calibrator, which may learn by refinement alone."""
        return MixGuardOptions(**options).calibrates

    @property
    def longest(self) -> int:
        """Most tokens that a text may have, so that the secret ones fit in."""
        return self.tokens.max_length - self.tokens.count

    def attach(self, side: ClientSide) -> None:
        """Begin a round; create the calibrator in the first one."""
        super().attach(side)
        options = self.options
        if self.calibration is None and options.calibrates:
            with seeded_draws(side.device, derive_seed(side.seed, "calibrator", side.client)):
                calibrator = Calibrator(
                    side.width, options.calibration_rank, options.calibration_blocks
                )
            self.calibration = Calibration(
                calibrator.to(side.device), learning_rate=options.calibration_lr
            )

    def obfuscate(self, batch: MaskedBatch) -> Mixtures:
        """Mix each text with supports into m messages, none of which is a text's hidden states."""
        options, head = self.options, self.side.head
        each = len(batch.inputs) if options.secret_per_sample else None
        secret = options.draw(each)
        target = self.tokens.insert(batch.inputs, batch.mask)
        texts = [target, *(self._support(len(batch.inputs)) for _ in range(options.k - 1))]
        ids, masks, union = pad_together(
            [text.ids for text in texts],
            [text.mask for text in texts],
            filler=self.tokens.draw,
            pad_to=options.pad_to,
            max_length=options.max_length,
        )
        positions = target.positions
        if options.mask == "target":  # supports are cut or filled
            width = int(masks[0].any(0).nonzero().max()) + 1
            ids, masks = ids[..., :width], masks[:1, :, :width].expand(options.k, -1, -1)
            union = masks[0]
            # Padding of the own texts was cut off, too. Its places have no loss.
            positions = positions.clamp(max=width - 1)
        hidden = head(ids[0], masks[0])
        with torch.no_grad():  # supports are constants
            supports = head(ids[1:].flatten(0, 1), masks[1:].flatten(0, 1))
        supports = supports.unflatten(0, (options.k - 1, -1))
        secret, messages = self._mix(secret, hidden, supports)
        target_states = hidden.detach() if self.kernel is None else hidden
        return Mixtures(list(messages), union, batch, secret, target_states, masks[0], positions)

    def _mix(self, secret: Secret, hidden: Tensor, supports: Tensor) -> tuple[Secret, Tensor]:
        """Mix with the secret, or with a redrawn one whose measured leak is within `max_leak`."""
        bound = self.options.max_leak
        for _ in range(MAX_REDRAWS):
            messages = secret.encode(secret.arrange(hidden, supports))
            if bound is None or float(measured_leak(messages, hidden).mean()) <= bound:
                return secret, messages
            secret = self.options.draw(secret.samples)
        raise ValueError(
            f"max_leak is {bound}, but {MAX_REDRAWS} secrets in a row leaked more of a batch; "
            "allow a larger max_leak, or give supports more weight (support_scale)"
        )

    def _support(self, count: int) -> InsertedTokens:
        """Draw support texts in secret, and insert secret tokens into them too."""
        chosen: np.ndarray = (secret_uniform((count,)) * self._supports).long().numpy()
        batch = MaskedBatch.of(fetch(self.public, chosen), self.side.device)
        return self.tokens.insert(batch.inputs, batch.mask)

    def recover(self, outputs: Sequence[Tensor], sent: SentBatch) -> Tensor:
        """Decode the target's hidden states (b, T, d); with "all-sources" all of them, (k, ...)."""
        mixtures, stacked = as_mixtures(sent), torch.stack(list(outputs))
        secret = mixtures.secret
        if self.kernel is None:
            decode = secret.decode_sources if self._reads_supports else secret.decode
            return decode(stacked)
        local, added = self.kernel.decode(
            stacked, torch.stack(sent.messages), mixtures.hidden, mixtures.own_mask, secret
        )
        mixtures.local = local.to(stacked.dtype)  # its gradient goes to the head directly
        return (local + added).to(stacked.dtype)

    @property
    def _reads_supports(self) -> bool:
        return self.options.gradients == "all-sources"

    def _target(self, decoded: Tensor, sent: SentBatch) -> Tensor:
        """Return the target's part of `recover`'s result, or of its gradient."""
        return as_mixtures(sent).secret.target_of(decoded) if self._reads_supports else decoded

    def loss(self, hidden: Tensor, sent: SentBatch) -> Tensor:
        """Return the loss of the calibrated target.

        With "all-sources" its gradient is that of its sum with a public loss, which pulls each
        decoded support towards its calibrated form, so it needs no label. Its value is without the
        public loss, as in an evaluation.
        """
        check_labels(sent.batch)
        target = self._target(hidden, sent)
        private = text_loss(self._tail(self._calibrate(target), sent), sent.batch.labels)
        if not self._reads_supports:
            return private
        total = F.mse_loss(hidden, self._calibrate(hidden).detach(), reduction="sum")
        target_error = F.mse_loss(target, self._calibrate(target).detach(), reduction="sum")
        public = total - target_error
        return private + (public - public.detach())

    def logits(self, hidden: Tensor, sent: SentBatch) -> Tensor:
        """Return the tail's logits for the target, calibrated if the options say so."""
        target = self._target(hidden, sent)
        return self._tail(
            self._calibrate(target) if self.options.calibrated_inference else target, sent
        )

    def _tail(self, target: Tensor, sent: SentBatch) -> Tensor:
        """Return the logits of the texts themselves, without the secret tokens."""
        mixtures = as_mixtures(sent)
        logits: Tensor = self.side.tail(target, mixtures.own_mask)
        return logits if logits.dim() == 2 else self.tokens.remove(logits, mixtures.positions)

    def _calibrate(self, hidden: Tensor) -> Tensor:
        return hidden if self.calibration is None else self.calibration(hidden)

    def perturb(self, gradient: Tensor, hidden: Tensor, sent: SentBatch) -> Tensor:
        """Add noise to the target's gradient, scaled by the calibrator's correction."""
        target_gradient, decoded = self._target(gradient, sent), self._target(hidden, sent)
        kind = self.options.perturbation
        with torch.no_grad():
            adaptive = kind == "adaptive"  # others do not use the correction
            residual = self._calibrate(decoded) - decoded if adaptive else torch.zeros_like(decoded)
            noisy = perturb(
                target_gradient, residual, decoded, strength=self.options.strength, kind=kind
            )
        if not self._reads_supports:
            return noisy
        secret = as_mixtures(sent).secret
        place = secret.arrange(torch.ones_like(target_gradient), torch.zeros_like(gradient[1:])) > 0
        return balance_gradients(secret, torch.where(place, noisy, gradient))

    def returned(self, gradients: Sequence[Tensor], sent: SentBatch) -> list[Tensor]:
        """Return each message's gradient; with "one-message", only that of a drawn message."""
        if self.options.gradients != "one-message":
            return super().returned(gradients, sent)
        each = self.options.secret_per_sample
        return list(one_message(torch.stack(list(gradients)), per_sample=each))

    @property
    def correction(self) -> Calibration | None:
        """The calibrator with its optimizer."""
        return self.calibration

    @property
    def learns_on(self) -> ExampleSet:
        """The public texts that are not reserved for supports by the options."""
        return self._calibrated_on

    def public_groups(self, sent: SentBatch) -> list[SentBatch]:
        """Return the mixtures, and the texts' plain hidden states, the target of decoding."""
        mixtures = as_mixtures(sent)
        return [mixtures, SentBatch([mixtures.hidden.detach()], mixtures.own_mask, mixtures.batch)]

    def learn_public(
        self, outputs: Sequence[Sequence[Tensor]], groups: Sequence[SentBatch], step: int | None
    ) -> None:
        """Take one step of the calibrator (MixGuard, section 4.3)."""
        assert self.calibration is not None
        mixtures = as_mixtures(groups[0])
        of_messages, (plain,) = outputs  # of the two groups that `public_groups` returns
        if self.kernel is None:
            decoded = mixtures.secret.decode(torch.stack(list(of_messages)))
        else:
            decoded = self.recover(of_messages, mixtures)
            self.kernel.learn(
                mixtures.messages, of_messages, mixtures.hidden, plain, mixtures.own_mask
            )
        self._leaks.append(float(measured_leak(mixtures.messages, mixtures.hidden).mean()))
        self.note(step, self.calibration.error(decoded, plain, mixtures.own_mask))
        self.calibration.step(decoded, plain, mixtures.own_mask)

    def metrics(self) -> dict[str, float]:
        """Return recent decoding errors of public texts, and the leak of their messages."""
        if not self.options.calibrates:
            return {}
        before, after = self.mean_errors
        return {
            "decode-error": before,
            "calibrated-error": after,
            "leak": sum(self._leaks) / len(self._leaks) if self._leaks else 0.0,
        }

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the calibrator, the kernel and the position in the public texts; no secret."""
        tensors, meta = super().state()
        meta["leaks"] = list(self._leaks)
        if self.kernel is not None and self.calibration is not None:
            tensors |= {f"kernel.{name}": tensor for name, tensor in self.kernel.state().items()}
        return tensors, meta

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Continue from `state`, with the same options."""
        super().restore(tensors, meta)
        self._leaks = deque(meta["leaks"], RECENT_STEPS)
        if self.kernel is not None:
            self.kernel.restore(under("kernel", tensors))

    def local_trunk(self, trunk: nn.Module) -> nn.Module:
        """Return the trunk followed by the calibrator, after which the tail was trained.

        With `calibrated_inference=False` it is the trunk alone, as in split inference.
        """
        if self.calibration is None or not self.options.calibrated_inference:
            return trunk
        return CalibratedTrunk(trunk, self.calibration)
