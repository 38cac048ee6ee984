"""MixGuard's client: it sends mixtures of its text with support texts, and decodes the answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from flwr_splitmix.clients.client import ClientError, Order, exchange
from flwr_splitmix.clients.ushape_client import Sent, UShapeClient, outgoing
from flwr_splitmix.data.batches import Batches, Example
from flwr_splitmix.data.texts.batch import TextBatch
from flwr_splitmix.hiding.mixguard import (
    Calibration,
    Calibrator,
    Inserted,
    MixGuardOptions,
    Secret,
    SecretTokens,
    balance_gradients,
    pad_together,
    perturb,
)
from flwr_splitmix.seeding import derive_seed, secret_uniform, torch_seed

RECENT = 20
"""Calibration steps over which the errors of a round's metrics are a mean."""


@dataclass
class Mixtures(Sent):
    """What a client has sent of a batch, and what it alone knows.

    Parameters
    ----------
    secret
        How the messages were mixed.
    hidden
        (b, T, d) of the target, without a graph.
    own_mask
        (b, T): where the target has tokens of its own.
    positions
        int64 (b, t): where its tokens are among the secret ones.
    """

    secret: Secret
    hidden: Tensor
    own_mask: Tensor
    positions: Tensor


class MixGuardClient(UShapeClient):
    """A U-shaped client whose messages are mixtures that it alone can decode.

    For every batch it draws a secret (signs, mixing and blinding matrix), hides its texts among
    support texts, sends m mixtures of their hidden states, and decodes from the m answers what
    the trunk makes of its own. A calibrator, learned on public texts, repairs what the trunk's
    non-linearity does to the mixtures. What this does not hide: docs/mixguard.md.

    Parameters
    ----------
    public
        Public texts: supports are drawn from them in secret, and the calibrator learns on them.
        Their labels are not used.
    vocab_size, special_ids
        Of the tokenizer: which words stand in for secret tokens and behind a text's end.
    options
        What MixGuard does.
    head, tail, data, **rest
        As `UShapeClient`.

    Raises
    ------
    ClientError
        If there is no public text.

    Source: MixGuard, sections IV and V, as our specification reconstructs it.
    """

    def __init__(
        self,
        head: nn.Module,
        tail: nn.Module,
        data: Dataset[Example],
        public: Dataset[Example],
        *,
        vocab_size: int,
        special_ids: Sequence[int] = (),
        options: MixGuardOptions | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(head, tail, data, **rest)
        self.options = options or MixGuardOptions()
        self.public = Batches(public, self.batches.size)
        if not self.public.examples:
            raise ClientError("MixGuard's client has no public text: its set of supports is empty")
        self.tokens = SecretTokens(
            self.options.secret_tokens,
            vocab_size,
            special_ids,
            max_length=self.options.pad_to or self.options.max_length,
        )
        self.calibration: Calibration | None = None
        self.calibrated = self.options.calibration_epochs == 0
        self._errors: deque[tuple[float, float]] = deque(maxlen=RECENT)
        self._public: Mixtures | None = None

    def attach(self, order: Order, arrays: Mapping[str, Tensor] | None) -> dict[str, Any]:
        """Begin a round; the description also says how much calibration there is to do."""
        described = super().attach(order, arrays)
        self._public = None
        if self.calibration is None and self.options.calibration_epochs:
            self.calibration = self._new_calibration(int(described["width"]))
        return {**described, "calibration-steps": 0 if self.calibrated else self._stage_one}

    @property
    def _stage_one(self) -> int:
        batches = -(-self.public.examples // self.public.size)
        return batches * self.options.calibration_epochs

    def _new_calibration(self, width: int) -> Calibration:
        order, options = self.order, self.options
        with torch_seed(self.device, derive_seed(order.seed, "calibrator", order.client)):
            calibrator = Calibrator(width, options.calibration_rank, options.calibration_blocks)
        return Calibration(calibrator.to(self.device), learning_rate=options.calibration_lr)

    def obfuscate(self, batch: TextBatch) -> Mixtures:
        """Mix each text with supports: m messages, of which none is a text's hidden states."""
        options = self.options
        each = len(batch.ids) if options.secret_per_sample else None
        secret = options.draw(each)
        own = self.tokens.insert(batch.ids, batch.mask)
        texts = [own, *(self._support(len(batch.ids)) for _ in range(options.k - 1))]
        ids, masks, union = pad_together(
            [text.ids for text in texts],
            [text.mask for text in texts],
            filler=self.tokens.draw,
            pad_to=options.pad_to,
            max_length=options.max_length,
        )
        hidden = self.head(ids[0], masks[0])
        with torch.no_grad():  # supports are constants
            supports = self.head(ids[1:].flatten(0, 1), masks[1:].flatten(0, 1))
        supports = supports.unflatten(0, (options.k - 1, -1))
        messages = secret.encode(secret.arrange(hidden, supports))
        return Mixtures(
            list(messages), union, batch, secret, hidden.detach(), masks[0], own.positions
        )

    def _support(self, count: int) -> Inserted:
        """Draw support texts in secret, and hide secret tokens in them too."""
        chosen = (secret_uniform((count,)) * self.public.examples).long().numpy()
        batch = self._batch_of(self.public.data, chosen)
        return self.tokens.insert(batch.ids, batch.mask)

    def recover(self, outputs: Sequence[Tensor], sent: Sent) -> Tensor:
        """Decode the target's hidden states (b, T, d); with "all-sources" all of them (k, ...)."""
        secret, stacked = _mixtures(sent).secret, torch.stack(list(outputs))
        return secret.decode_sources(stacked) if self._reads_supports else secret.decode(stacked)

    @property
    def _reads_supports(self) -> bool:
        return self.options.gradients == "all-sources"

    def logits(self, hidden: Tensor, sent: Sent) -> Tensor:
        """Return what the tail says of the texts themselves, without the secret tokens."""
        mixtures = _mixtures(sent)
        said: Tensor = self.tail(hidden, mixtures.own_mask)
        return said if said.dim() == 2 else self.tokens.remove(said, mixtures.positions)

    def loss(self, hidden: Tensor, sent: Sent) -> Tensor:
        """Return the loss of the calibrated target; with "all-sources" also a public one.

        The public loss draws each decoded support towards its own calibrated form, so that it
        needs no label.
        """
        if not self._reads_supports:
            return super().loss(self._calibrate(hidden), sent)
        target = _mixtures(sent).secret.target_of(hidden)
        others = F.mse_loss(hidden, self._calibrate(hidden).detach(), reduction="sum")
        own = F.mse_loss(target, self._calibrate(target).detach(), reduction="sum")
        return super().loss(self._calibrate(target), sent) + others - own

    def _calibrate(self, hidden: Tensor) -> Tensor:
        return hidden if self.calibration is None else self.calibration(hidden)

    def perturb(self, gradient: Tensor, hidden: Tensor, sent: Sent) -> Tensor:
        """Add noise to the target's gradient, as loud as what the calibrator had to repair."""
        secret = _mixtures(sent).secret
        own, decoded = gradient, hidden
        if self._reads_supports:
            own, decoded = secret.target_of(gradient), secret.target_of(hidden)
        with torch.no_grad():
            noisy = perturb(
                own,
                self._calibrate(decoded) - decoded,
                decoded,
                strength=self.options.strength,
                kind=self.options.perturbation,
            )
        if not self._reads_supports:
            return noisy
        place = secret.arrange(torch.ones_like(own), torch.zeros_like(gradient[1:])) > 0
        return balance_gradients(secret, torch.where(place, noisy, gradient))

    def read(self, outputs: Sequence[Tensor], sent: Sent) -> Tensor:
        """Return the logits of a test batch: of its own texts, whatever training decodes."""
        decoded = _mixtures(sent).secret.decode(torch.stack(list(outputs)))
        return self.logits(
            self._calibrate(decoded) if self.options.calibrated_inference else decoded, sent
        )

    # Calibration: Stage I over all public texts, and refinement beside the training steps.

    @exchange
    def encode_public(self, *, number: int) -> dict[str, Any]:
        """Send a batch of public texts, mixed and plain.

        Returns
        -------
        {"public": [m messages and their mask, the plain text and its mask]}, each as `encode`'s.
        """
        self.segments.eval()
        with torch.no_grad():
            example = self.public.next_batch(self.order.seed, self.order.client)
            sent = self.obfuscate(TextBatch.of(example, self.device))
        self._public = sent
        return {
            "public": [outgoing(sent), outgoing(Sent([sent.hidden], sent.own_mask, sent.batch))]
        }

    @exchange
    def decode_public(self, *, number: int, public: Sequence[Sequence[Tensor]]) -> dict[str, Any]:
        """Take one calibration step, given the trunk's outputs of both (MixGuard, Stage I)."""
        self.receive_public(public)
        self.calibrated = self.calibrated or number + 1 >= self._stage_one
        return {}

    def send_public(self, number: int) -> dict[str, Any]:
        """Return public texts where refinement is due."""
        every = self.options.refine_every if self.calibration is not None else 0
        due = every and (self.batches.drawn + 1) % every == 0  # over all rounds
        return self.encode_public(number=number) if due else {}

    def receive_public(self, public: Sequence[Sequence[Tensor]]) -> None:
        """Take one calibration step."""
        sent, self._public = self._public, None
        if sent is None or self.calibration is None or len(public) != 2 or len(public[1]) != 1:
            raise ClientError("the server answers with public texts that were not sent")
        self._expected(sent, public[0])
        decoded = sent.secret.decode(torch.stack([output.to(self.device) for output in public[0]]))
        plain = public[1][0].to(self.device)
        self._errors.append(self.calibration.error(decoded, plain, sent.own_mask))
        self.calibration.step(decoded, plain, sent.own_mask)

    def release(self) -> tuple[dict[str, Tensor], dict[str, int | float]]:
        """End the round; the metrics also say how far decoded public texts were off of late."""
        arrays, metrics = super().release()
        if self.options.calibration_epochs:
            for position, name in enumerate(("decode-error", "calibrated-error")):
                found = [pair[position] for pair in self._errors]
                metrics[name] = sum(found) / len(found) if found else 0.0
        return arrays, metrics

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return head, tail, optimizer, data position and calibrator; no secret outlives a step."""
        tensors, meta = super().state()
        meta |= {
            "public-drawn": self.public.drawn,
            "calibrated": self.calibrated,
            "errors": [list(pair) for pair in self._errors],
        }
        if self.calibration is not None:
            found, meta["calibration"] = self.calibration.state()
            tensors |= {f"calibration.{name}": tensor for name, tensor in found.items()}
        return tensors, meta

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Continue from `state`, with the same options."""
        super().restore(tensors, meta)
        self.public.drawn, self.calibrated = int(meta["public-drawn"]), bool(meta["calibrated"])
        self._errors = deque(map(tuple, meta["errors"]), RECENT)
        if self.calibration is not None:
            own = {
                name.removeprefix("calibration."): tensor
                for name, tensor in tensors.items()
                if name.startswith("calibration.")
            }
            self.calibration.restore(own, meta["calibration"])


def _mixtures(sent: Sent) -> Mixtures:
    assert isinstance(sent, Mixtures)
    return sent
