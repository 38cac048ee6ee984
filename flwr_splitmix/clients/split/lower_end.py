"""Lower segment of an L-shaped client: its optimizer, passes, weights and saved state."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.clients.explained import explained
from flwr_splitmix.clients.finite import check_finite, may_step
from flwr_splitmix.clients.guards.restrained import restrained
from flwr_splitmix.clients.kept_shapes import KeptShapes
from flwr_splitmix.clients.split.lower_checks import (
    check_described,
    check_smashed,
    describe_segment,
)
from flwr_splitmix.clients.weights import check_fits, without_bfloat16
from flwr_splitmix.description import SegmentDescription
from flwr_splitmix.optimizers import OptimizerFactory, ScheduledOptimizer
from flwr_splitmix.schedule import Schedule
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.segments.batch_norm import enough_values
from flwr_splitmix.segments.buffers import restored_buffers, watched_in_parts
from flwr_splitmix.storage import under


class LowerEnd:
    """The lower end of a model whose upper segment is elsewhere.

    Parameters
    ----------
    segment
        Inputs (b, ...) to smashed data (b, prefix + N, d), already on the device.
    optimizer, schedule
        By default AdamW (lr 1e-3, weight decay 0.05) with a cosine schedule.
    device
        Where the segment is.

    Attributes
    ----------
    described
        Tokens (prefix + N) and width of the smashed data, as `describe` found them; (0, 0) before.
    """

    def __init__(
        self,
        segment: nn.Module,
        optimizer: OptimizerFactory | None = None,
        schedule: Schedule | None = None,
        *,
        device: torch.device,
    ) -> None:
        self.segment = segment
        self.optimizer = ScheduledOptimizer(segment, optimizer, schedule)
        self.device = device
        self.described = (0, 0)
        self._once = SeenKeys()
        self._began: KeptShapes | None = None
        self._frozen = False

    def freeze(self) -> None:
        """Keep the segment as it comes: no batch changes its weights or, from now on, its buffers.

        In training mode, layers such as BatchNorm still normalise by the batch.
        """
        self._frozen = True
        self.segment.requires_grad_(False)

    def _unchanged(self) -> AbstractContextManager[None]:
        """Return a context that puts the buffers of a frozen segment back."""
        if not self._frozen:
            return nullcontext()
        self.segment.requires_grad_(False)  # another one may have taken its place
        return restored_buffers(self.segment)

    def describe(self, first: Tensor) -> SegmentDescription:
        """Return `describe_segment` for the first examples (b, ...), and keep the size in it.

        Raises
        ------
        ClientError
            If the examples or the smashed data have the wrong shape.
        """
        description = describe_segment(self.segment, first)
        self.described = (description.tokens, description.width)
        return description

    def smashed(self, inputs: Tensor, *, may_name_data: bool, in_parts: bool = False) -> Tensor:
        """Return smashed data (b, prefix + N, d) of a batch in training mode, with their graph.

        Parameters
        ----------
        inputs
            (b, ...), on any device.
        may_name_data
            Whether an error may reveal data.
        in_parts
            Whether they are a part of a batch; for the first one, changed buffers are warned of.

        Raises
        ------
        ClientError
            If the inputs do not fit, the smashed data have another size than `described`, no
            gradient though there are weights to train, or, on the CPU, numbers that are not finite.
        """
        self.segment.train()
        watch = self._unchanged()
        if in_parts and not self._frozen and self._once.add("buffers in parts"):
            watch = watched_in_parts(self.segment, "the lower segment")
        with watch, restrained("inputs do not fit the lower segment", hides=not may_name_data):
            with explained(self.segment, inputs), enough_values("lower segment"):
                output = self.segment(inputs.to(self.device))
            smashed = check_smashed(output, len(inputs))
            check_described(self.segment, smashed, self.described, inputs)
        if not smashed.requires_grad and any(p.requires_grad for p in self.segment.parameters()):
            raise ClientError(
                "the lower segment has weights to train, but its output has no gradient: its "
                "forward pass detaches it, or runs without gradients; if nothing is to be trained, "
                "freeze the weights (requires_grad_(False))"
            )
        # On an accelerator the check would wait for it.
        if may_name_data and self.device.type == "cpu":
            check_finite("lower segment", self.segment, inputs, smashed.detach())
        return smashed

    @torch.no_grad()
    def smashed_tests(self, inputs: Tensor) -> Tensor:
        """Return smashed data (b, prefix + N, d) of test inputs (b, ...), without a graph.

        Raises
        ------
        ClientError
            If the inputs do not fit, or the smashed data are none or have numbers that are not
            finite.
        """
        self.segment.eval()
        unchanged, explaining = self._unchanged(), explained(self.segment, inputs, "test inputs")
        with unchanged, explaining, enough_values("lower segment"):
            output = self.segment(inputs.to(self.device))
        # One memory layout, so that the upper segment gets the same from every link.
        smashed = check_smashed(output, len(inputs)).contiguous()
        check_finite("lower segment", self.segment, inputs, smashed)
        return smashed

    def step(
        self, progress: float, num_rounds: int, inputs: Tensor | None, *, last: bool = False
    ) -> None:
        """Take an optimizer step, at a progress in rounds.

        Parameters
        ----------
        inputs
            The batch's, searched for the reason if gradients are not finite; None if
            an error must not reveal data: then such a step is left out without one. On an
            accelerator, which is not waited for, such gradients are zeros.
        last
            Whether no later upload of the round would show it: then wait for an accelerator.

        Raises
        ------
        ClientError
            If gradients are not finite, or so large that their squares are not; no step is taken.
        """
        waits = last or self.device.type == "cpu"
        if may_step("lower segment", self.segment, inputs, self._once, waits=waits):
            self.optimizer.step(progress, num_rounds)

    def weights(self) -> dict[str, Tensor]:
        """Return the parameters and buffers, on the CPU; bfloat16 as float32."""
        return without_bfloat16(self.segment.state_dict())

    def begin_round(self) -> None:
        """Note the shapes of all parameters and of the kept buffers, for `check_shapes`."""
        self._began = KeptShapes("lower segment", self.segment.state_dict())

    def check_shapes(self) -> None:
        """Raise ClientError if a shape has changed since the round began, if one has begun."""
        if self._began is not None:
            self._began.check(self.segment.state_dict())

    def fitted(self, arrays: Mapping[str, Tensor], subject: str) -> dict[str, Tensor]:
        """Return weights in the dtypes of this segment's, as they will be loaded.

        Checks must read these: the same bytes are other numbers in another dtype.

        Raises
        ------
        ClientError
            If names or shapes differ; the message begins with `subject`.
        """
        client_tensors = self.segment.state_dict()
        check_fits(client_tensors, arrays, subject)
        return {name: arrays[name].to(client_tensors[name].dtype) for name in client_tensors}

    def load(self, arrays: Mapping[str, Tensor]) -> None:
        """Replace parameters and buffers with `fitted` weights."""
        self.segment.load_state_dict(arrays)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the parameters, the kept buffers and the optimizer's state."""
        tensors = {f"segment.{name}": t for name, t in self.segment.state_dict().items()}
        moments, meta = self.optimizer.state()
        return tensors | moments, meta

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Restore `state`, for the same segment and optimizer."""
        weights = under("segment", tensors)
        self.load(
            self.fitted(weights, "this client's kept lower segment does not fit this client's")
        )
        self.optimizer.restore(tensors, meta)
