"""The trunk at the server: forward, and later backward with the clients' gradients."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn

from flwr_splitmix.device import Precision, autocast
from flwr_splitmix.events import Messages
from flwr_splitmix.finite import all_finite, not_finite_in
from flwr_splitmix.optimizers import OptimizerFactory
from flwr_splitmix.schedule import Schedule
from flwr_splitmix.seeding import seeded_draws
from flwr_splitmix.segments.across_batch import mixing_layers, needs_whole_batch
from flwr_splitmix.segments.batch_norm import enough_values
from flwr_splitmix.segments.geometry import geometry_of
from flwr_splitmix.server.segments.base import TrainedSegment
from flwr_splitmix.server.segments.fitting import fitting

log = logging.getLogger("flwr.splitmix")

ClientInput = TypeVar("ClientInput")

TrunkForward = Callable[[Mapping[int, ClientInput]], dict[int, list[Tensor]]]
"""Passes clients' inputs through the trunk; returns outputs of clients without errors."""


class MixingTrunkError(ValueError):
    """A trunk on which an epsilon rests mixes examples: the run must end."""


@dataclass
class _Passed:
    """A forward pass of several clients' messages as one batch, with its graph."""

    leaves: dict[int, list[Tensor]]
    """By client, its messages."""
    mask: Tensor
    outputs: Tensor

    @property
    def counts(self) -> list[int]:
        """The number of rows of each client."""
        return [sum(map(len, client_leaves)) for client_leaves in self.leaves.values()]


class TrainedTrunk(TrainedSegment):
    """A trunk with its optimizer and schedule.

    Parameters
    ----------
    module
        (hidden states (b, T, d), mask (b, T)) to hidden states (b, T, d).
    optimizer, schedule, device, precision
        See `TrainedSegment`.

    Attributes
    ----------
    tokens
        Number of tokens for which the trunk is made, by its `geometry` (images); None if any.
    """

    name: ClassVar[str] = "trunk"

    def __init__(
        self,
        module: nn.Module,
        *,
        optimizer: OptimizerFactory | None = None,
        schedule: Schedule | None = None,
        device: str = "auto",
        precision: Precision = "auto",
    ) -> None:
        super().__init__(
            module, optimizer=optimizer, schedule=schedule, device=device, precision=precision
        )
        geometry = geometry_of("trunk", module)
        self.tokens = None if geometry is None else geometry.tokens
        self._passed: list[_Passed] = []
        self._to_try = False

    def require_apart(self, needed: bool) -> None:
        """Begin a run in which the trunk may have to keep a batch's examples apart.

        Layers known by name are found here, others in a trial with the first training batch,
        on whose size and lengths they may depend.

        Parameters
        ----------
        needed
            Whether an epsilon of the clients rests on it.

        Raises
        ------
        ValueError
            If it is needed and a layer is known to mix examples; then, or from `forward`.
        """
        self._to_try = needed
        if needed:
            _refuse(needs_whole_batch(self.module))

    def _try_apart(self, messages: Sequence[Messages]) -> None:
        """Refuse a trunk that mixes the examples of these messages, which are of equal length."""
        hidden = [h.detach().to(self.device) for m in messages for h in m.hidden]
        _refuse(mixing_layers(self.module, torch.cat(hidden), self._mask(messages)))

    def forward(self, messages: Mapping[int, Messages], seed: int) -> dict[int, list[Tensor]]:
        """Pass the clients' messages through the trunk, keeping the graph for `learn`.

        Messages of equal length form one batch.

        Parameters
        ----------
        messages
            By client, tensors (b, T, d) with one mask (b, T).
        seed
            For dropout and the like.

        Returns
        -------
        By client, the output for each of its messages, with the same shapes.

        Raises
        ------
        MixingTrunkError
            If the trunk mixes examples that must be kept apart.
        ValueError
            If the trunk does not take the messages.
        """
        self.module.train()
        self._passed = []
        with seeded_draws(self.device, seed):
            for clients in by_length(messages):
                if self._to_try:
                    self._try_apart([messages[c] for c in clients])
                leaves = {c: _leaves(messages[c].hidden, self.device) for c in clients}
                mask = self._mask([messages[c] for c in clients])
                outputs = self._outputs(
                    [h for client_leaves in leaves.values() for h in client_leaves], mask
                )
                self._to_try = False  # a trial with messages that it does not take shows nothing
                self._passed.append(_Passed(leaves, mask, outputs))
        return {
            client: list(part.detach().chunk(len(passed.leaves[client])))
            for passed in self._passed
            for client, part in zip(
                passed.leaves, torch.split(passed.outputs, passed.counts), strict=True
            )
        }

    def look(self, messages: Mapping[int, Messages]) -> dict[int, list[Tensor]]:
        """Pass messages through the trunk without dropout and without a graph."""
        self.module.eval()
        outputs_of: dict[int, list[Tensor]] = {}
        # Not inference mode: a client of this process could not train with its tensors.
        with torch.no_grad():
            for clients in by_length(messages):
                hidden = [h.to(self.device) for c in clients for h in messages[c].hidden]
                outputs = self._outputs(hidden, self._mask([messages[c] for c in clients]))
                counts = [sum(len(h) for h in messages[c].hidden) for c in clients]
                for client, part in zip(clients, torch.split(outputs, counts), strict=True):
                    outputs_of[client] = list(part.chunk(len(messages[client].hidden)))
        return outputs_of

    def check_weights(self) -> None:
        """Raise ValueError if weights are NaN or infinite, so that outputs are; waits for them."""
        if name := not_finite_in(self.module):
            raise ValueError(
                f"the trunk's weights {name} have NaN or infinite numbers, and so have its answers "
                "to all clients: begin with other weights, or with a checkpoint from before; if "
                "training has diverged, a lower lr may prevent it"
            )

    def forget_pass(self) -> None:
        """Take no step for the last forward pass, and free its graph."""
        self._passed = []
        self.optimizer.zero_grad()

    def learn(
        self, gradients: Mapping[int, Sequence[Tensor]], progress: float, num_rounds: int
    ) -> dict[int, list[Tensor]]:
        """Backpropagate through the last forward pass and take one optimizer step.

        The trunk's gradient is the mean over the clients that answered; each client gets the
        gradient of its own loss.

        Parameters
        ----------
        gradients
            By client, the gradient of its mean loss at each of its outputs.
        progress, num_rounds
            Global progress in rounds, for the schedule.

        Returns
        -------
        By client, the gradient at each of its messages. If these or the trunk's own gradient
        overflow, the trunk takes no step, and the clients that caused it are left out.
        """
        self.optimizer.zero_grad()
        self.module.train()  # a checkpointed layer is recomputed and must do the same
        passes, self._passed = self._passed, []
        at_messages: dict[int, list[Tensor]] = {}
        for passed in passes:
            at_messages |= _backpropagate(passed, gradients)
        if not at_messages:
            return at_messages
        parts = [part for client_gradients in at_messages.values() for part in client_gradients]
        if not (all_finite(parts) and self._may_step()):
            # An offender's contribution cannot be removed from the summed gradient.
            self.leave_step()
            guilty = [
                c for c, client_gradients in at_messages.items() if not all_finite(client_gradients)
            ]
            guilty = guilty or self._overflowing_alone(passes, gradients)
            return {
                client: client_gradients
                for client, client_gradients in at_messages.items()
                if client not in guilty
            }
        if len(at_messages) > 1:
            self.average_gradients(len(at_messages))
        self.take_step(progress, num_rounds)
        return at_messages

    def _may_step(self) -> bool:
        """Return whether the trunk's gradients, if any, are finite; waits for its device."""
        fine = self.gradients_finite()
        return fine is None or bool(fine)

    def _overflowing_alone(
        self, passes: Sequence[_Passed], gradients: Mapping[int, Sequence[Tensor]]
    ) -> list[int]:
        """Return the clients whose messages and gradients alone overflow in the trunk."""
        guilty = []
        for passed in passes:
            masks = torch.split(passed.mask, passed.counts)
            for (client, client_leaves), mask in zip(passed.leaves.items(), masks, strict=True):
                if client not in gradients:
                    continue
                # Dropout differs from that of the step, which hardly affects overflow.
                with seeded_draws(self.device, 0):
                    outputs = self._outputs(_leaves(client_leaves, self.device), mask)
                torch.autograd.backward(outputs, _joined(gradients[client], outputs))
                if not self._may_step():
                    guilty.append(client)
                self.optimizer.zero_grad()
        return guilty

    def _outputs(self, hidden: Sequence[Tensor], mask: Tensor) -> Tensor:
        """Pass hidden states (b, T, d) of messages as one batch; the trunk may overwrite that."""
        inputs = torch.cat(list(hidden))
        remedy = (
            "cut head, trunk and tail from one model, and texts to its length; with max_length "
            "the strategy leaves out only clients whose texts are longer"
        )
        with (
            autocast(self.device, self.dtype),
            fitting("trunk", "hidden states", inputs, remedy),
            enough_values("trunk"),
        ):
            outputs = self.module(inputs, mask)
        if not isinstance(outputs, Tensor) or outputs.shape != inputs.shape:
            tensor = isinstance(outputs, Tensor)
            returned = tuple(outputs.shape) if tensor else f"a {type(outputs).__name__}"
            raise ValueError(
                f"the trunk returns {returned} for hidden states {tuple(inputs.shape)}; expected "
                "one tensor of the same shape, which the clients' tails read"
            )
        return outputs.to(inputs.dtype)

    def _mask(self, messages: Sequence[Messages]) -> Tensor:
        return torch.cat([m.mask.to(self.device) for m in messages for _ in m.hidden]).long()


def _refuse(mixing: str | None) -> None:
    """Raise MixingTrunkError if a trunk on which an epsilon rests mixes examples."""
    if mixing:
        raise MixingTrunkError(
            f"the trunk has {mixing}, by which an example changes the gradients of others in its "
            "batch, so that clipping the gradient of each bounds nothing, and there is no epsilon: "
            "take a trunk that answers each example by itself, such as one with LayerNorm or "
            "GroupNorm in place of BatchNorm, and without dropout on what it has selected of a "
            "batch (in experts), whose draws depend on other examples"
        )


def _leaves(hidden: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return tensors of the same values, each the start of its own graph."""
    return [h.to(device).detach().requires_grad_() for h in hidden]


def _joined(gradients: Sequence[Tensor], outputs: Tensor) -> Tensor:
    return torch.cat([gradient.to(outputs.device) for gradient in gradients])


def by_length(messages: Mapping[int, Messages]) -> list[list[int]]:
    """Return the clients whose messages have equally many tokens, which pass as one batch."""
    groups: dict[int, list[int]] = {}
    for client in sorted(messages):
        groups.setdefault(messages[client].mask.shape[1], []).append(client)
    return list(groups.values())


def _backpropagate(
    passed: _Passed, gradients: Mapping[int, Sequence[Tensor]]
) -> dict[int, list[Tensor]]:
    """Backpropagate through one forward pass; return the gradients at the answerers' messages."""
    if gradients.keys().isdisjoint(passed.leaves):
        return {}
    upstream = torch.cat(
        [
            _joined(gradients[client], passed.outputs)
            if client in gradients
            else passed.outputs.new_zeros((count, *passed.outputs.shape[1:]))
            for client, count in zip(passed.leaves, passed.counts, strict=True)
        ]
    )
    torch.autograd.backward(passed.outputs, upstream)
    if any(leaf.grad is None for client_leaves in passed.leaves.values() for leaf in client_leaves):
        raise ValueError(
            "the trunk's outputs have no gradient with respect to its hidden states; it must not "
            "detach them, or heads learn nothing"
        )
    return {
        client: [cast(Tensor, leaf.grad) for leaf in client_leaves]
        for client, client_leaves in passed.leaves.items()
        if client in gradients
    }
