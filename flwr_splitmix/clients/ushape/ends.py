"""Head and tail of a U-shaped client: their optimizer, averaged weights and saved state."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.clients.explained import explained
from flwr_splitmix.clients.finite import may_step
from flwr_splitmix.clients.guards.first_weights import digest_of
from flwr_splitmix.clients.kept_shapes import KeptShapes
from flwr_splitmix.clients.ushape.frozen_weights import sketch
from flwr_splitmix.clients.weights import check_fits, without_bfloat16
from flwr_splitmix.data.masked_batch import MaskedBatch, holds_ids
from flwr_splitmix.optimizers import OptimizerFactory, ScheduledOptimizer
from flwr_splitmix.schedule import Schedule
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.segments.modules import with_statistics
from flwr_splitmix.storage import under
from flwr_splitmix.words import counted, described

Learns = Literal["all", "tail"]
"""The parts that a client trains: head and tail, or the tail alone."""


class Ends:
    """The two ends of a model whose trunk is elsewhere.

    Parameters
    ----------
    head, tail
        Modules, already on their device.
    optimizer, schedule
        For both; by default AdamW (lr 1e-3, weight decay 0.05) with a cosine schedule.

    Attributes
    ----------
    segments
        Both as one module, so that an embedding used by both is one parameter.
    """

    def __init__(
        self,
        head: nn.Module,
        tail: nn.Module,
        optimizer: OptimizerFactory | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        self.segments = nn.ModuleDict({"head": head, "tail": tail})
        self.optimizer = ScheduledOptimizer(self.segments, optimizer, schedule)
        self._began: KeptShapes | None = None
        self._digest = ""
        self._once = SeenKeys()
        self._sketched: tuple[Collection[str], float | None] = (), None

    def width(self, batch: MaskedBatch, *, own_masks: bool) -> int:
        """Return the width d of the head's hidden states for this batch.

        Parameters
        ----------
        own_masks
            Whether the hiding may send other masks than it gets, and so of other lengths.

        Raises
        ------
        ClientError
            If the hidden states are not a tensor (b, T, d) for the b examples and, of token ids
            whose masks are sent, for the T of each; or if the inputs do not fit the head.
        """
        head = self.segments["head"].eval()
        with torch.no_grad(), explained(head, batch.inputs, name="head"):
            hidden: object = head(batch.inputs, batch.mask)  # what it caches may need a graph
        if not isinstance(hidden, Tensor):
            raise ClientError(
                "a head must return one tensor (batch, tokens, width), this one returns "
                f"{described(hidden)}; return the tensor in it"
            )
        if hidden.dim() != 3:
            raise ClientError(
                f"a head must return (batch, tokens, width), this one {tuple(hidden.shape)}"
            )
        _check_rows(hidden, batch.inputs)
        if not own_masks:
            _check_tokens(hidden, batch.inputs)
        return int(hidden.shape[2])

    def check_no_statistics(self) -> None:
        """Raise ClientError if head or tail has running statistics, which are not averaged."""
        for name, part in self.segments.items():
            if layer := with_statistics(part):
                raise ClientError(
                    f"the {name} has {layer}, whose running statistics are not averaged with its "
                    "weights: take layers that keep none, such as GroupNorm, or a strategy that "
                    "averages no heads and tails, such as USplitSL"
                )

    def explain(self, batch: MaskedBatch, subject: str) -> None:
        """Run the head alone, to find out whether an error in making messages is the head's.

        Parameters
        ----------
        subject
            Name of the inputs, for messages.

        Raises
        ------
        ClientError
            If the inputs do not fit the head; other errors are the caller's.
        """
        head = self.segments["head"]
        try:
            with torch.no_grad(), explained(head, batch.inputs, subject, "head"):
                head(batch.inputs, batch.mask)
        except ClientError:
            raise
        except Exception:  # the caller raises the error that it had before
            return

    def backward(self, messages: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Backpropagate through the head from messages (b, T, d) and other tensors of its graph."""
        pairs = [
            (message, gradient.to(message.device))
            for message, gradient in zip(messages, gradients, strict=True)
            if message.requires_grad
        ]
        if not pairs and any(p.requires_grad for p in self.segments["head"].parameters()):
            raise ClientError(
                "the head has weights to train, but no message has a gradient: what makes the "
                "messages detaches them, or runs without gradients (torch.no_grad)"
            )
        self.segments.train()  # a checkpointed layer is recomputed and must do the same
        if pairs:  # a frozen head has no graph
            torch.autograd.backward([m for m, _ in pairs], [g for _, g in pairs])

    def step(self, progress: float, num_rounds: int, inputs: Tensor | None) -> None:
        """Take an optimizer step, at a progress in rounds.

        Parameters
        ----------
        inputs
            The batch's, searched for the reason if gradients are not finite; None if
            an error must not reveal data: then such a step is left out without one.

        Raises
        ------
        ClientError
            If gradients are not finite, or so large that their squares are not; no step is taken.
        """
        if may_step("head and tail", self.segments, inputs, self._once):
            self.optimizer.step(progress, num_rounds)
            self._digest = ""

    def weights(self) -> dict[str, Tensor]:
        """Return the trainable parameters, on the CPU; bfloat16 as float32."""
        return without_bfloat16(self._trained())

    def digest(self) -> str:
        """Return a digest of the trainable parameters as they are now."""
        self._digest = self._digest or digest_of(self._trained())
        return self._digest

    def frozen_sketch(self) -> float | None:
        """Return the `sketch` of the parameters that are not trained, None if there are none.

        It is computed again only if others are frozen.
        """
        frozen = {n: p for n, p in self.segments.named_parameters() if not p.requires_grad}
        if self._sketched[0] != frozen.keys():
            self._sketched = frozen.keys(), sketch(frozen)
        return self._sketched[1]

    def _trained(self) -> dict[str, Tensor]:
        return {n: p for n, p in self.segments.named_parameters() if p.requires_grad}

    def _buffers(self) -> dict[str, Tensor]:
        """Return what layers measure, such as running means, as far as it is to be kept."""
        persistent = self.segments.state_dict().keys()
        return {
            name: buffer for name, buffer in self.segments.named_buffers() if name in persistent
        }

    def begin_round(self) -> None:
        """Note the shapes of all parameters and of the kept buffers, for `check_shapes`."""
        self._began = KeptShapes("head and tail", self._all())

    def check_shapes(self) -> None:
        """Raise ClientError if a shape has changed since the round began, if one has begun."""
        if self._began is not None:
            self._began.check(self._all())

    def _all(self) -> dict[str, Tensor]:
        return {**dict(self.segments.named_parameters()), **self._buffers()}

    def fitted(self, arrays: Mapping[str, Tensor], subject: str) -> dict[str, Tensor]:
        """Return weights in the dtypes of the trainable parameters, as they will be loaded.

        Raises
        ------
        ClientError
            If names or shapes differ; the message begins with `subject`.
        """
        parameters = self._trained()
        check_fits(parameters, arrays, subject)
        return {name: arrays[name].to(parameter.dtype) for name, parameter in parameters.items()}

    @torch.no_grad()
    def load(self, arrays: Mapping[str, Tensor]) -> None:
        """Replace the trainable parameters with `fitted` weights."""
        for name, parameter in self._trained().items():
            parameter.copy_(arrays[name])
        self._digest = ""

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the trainable parameters, the kept buffers and the optimizer's state."""
        tensors = {f"segment.{name}": t for name, t in self._trained().items()}
        tensors |= {f"buffer.{name}": t for name, t in self._buffers().items()}
        moments, meta = self.optimizer.state()
        return tensors | moments, meta

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Restore `state`, for the same head, tail and optimizer."""
        weights = under("segment", tensors)
        self.load(self.fitted(weights, "the kept head and tail do not fit this client's"))
        kept_buffers, buffers = under("buffer", tensors), self._buffers()
        check_fits(
            buffers, kept_buffers, "the kept buffers of head and tail do not fit this client's"
        )
        with torch.no_grad():
            for name, buffer in buffers.items():
                buffer.copy_(kept_buffers[name])
        self.optimizer.restore(tensors, meta)


def _check_rows(hidden: Tensor, inputs: Tensor) -> None:
    """Raise ClientError unless hidden states (b, T, d) are those of inputs (b, ...).

    A server would report this only for the first step, and could not say why.
    """
    if (rows := len(hidden)) != len(inputs):
        raise ClientError(
            f"the head returned {counted(rows, 'row')} for {counted(len(inputs), 'example')}; the "
            "batch must be the first dimension: torch's recurrent and attention layers need "
            "batch_first=True"
        )


def _check_tokens(hidden: Tensor, inputs: Tensor) -> None:
    """Raise ClientError unless hidden states (b, T, d) are those of ids (b, T), if they are ids."""
    tokens = hidden.shape[1]
    if holds_ids(inputs) and tokens != inputs.shape[1]:
        raise ClientError(
            f"whole numbers (batch, {inputs.shape[1]}) are token ids, and the head returned "
            f"{counted(tokens, 'token')} of each {inputs.shape[1]}; rows of a table and series "
            "must be floating: .float(); of texts, a hiding must send the mask of the head's tokens"
        )
