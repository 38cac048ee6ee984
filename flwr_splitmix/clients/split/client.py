"""The client of the L shape: lower segment and data here, upper segment and loss at the server."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.clients.client import NO_DATA, ClientError, Order, exchange
from flwr_splitmix.clients.evaluation_sets import describe_tests, evaluation_set, part_of, tests_of
from flwr_splitmix.clients.guards.privacy_budget import PrivacyBudget
from flwr_splitmix.clients.guards.restrained import restrained
from flwr_splitmix.clients.kept_shapes import KeptShapes
from flwr_splitmix.clients.requests import (
    check_label_memory,
    check_no_sums,
    check_numbers,
    check_plan,
    check_range,
)
from flwr_splitmix.clients.split.graphs import upload
from flwr_splitmix.clients.split.lower_checks import check_segment
from flwr_splitmix.clients.split.lower_end import LowerEnd
from flwr_splitmix.clients.split.parted_exchanges import PartedExchanges
from flwr_splitmix.clients.split.parts import Pending, StepBatch, WireShares
from flwr_splitmix.clients.split.round_batches import RoundBatches, inputs_asked_for
from flwr_splitmix.clients.split.unknown_labels import warn_of_unknown
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.data.examples import Example, ExampleSet
from flwr_splitmix.device import pick_device
from flwr_splitmix.mixers import Share, known_shares, share_from_wire
from flwr_splitmix.once import Once
from flwr_splitmix.optimizers import UNKNOWN_WEIGHTS, OptimizerFactory
from flwr_splitmix.schedule import Schedule
from flwr_splitmix.values import check_truth

log = logging.getLogger("flwr.splitmix")

_DOES_NOT_DESCRIBE = (
    "its first examples do not fit the lower segment, or it makes of them no smashed data (batch, "
    "patches, width)"
)


class SplitClient(PartedExchanges):
    """A lower segment, its data and its optimizer.

    Parameters
    ----------
    segment
        Inputs (b, ...) to smashed data (b, prefix + N, d). Its `geometry` attribute gives the
        shape; without one, a forward pass on the first example does, with no prefix tokens.
    data
        Training examples: a map-style data set of (input, label) pairs. A label is a class, or for
        a strategy with `multi_label` a row of 0 and 1.
    batch_size
        Examples in a batch; if there are fewer, batches are drawn with replacement.
    test_data, benchmark_data
        This client's own test split for `federated` evaluation, and a public test set common to
        all clients for `benchmark` evaluation.
    optimizer, schedule
        For the lower segment; by default AdamW (lr 1e-3, weight decay 0.05) with a cosine schedule.
    device
        "auto", "cpu", "cuda", ...
    shares
        Further kinds of shares that the server's mixer may ask for, besides the built-in ones.
    privacy
        The client's privacy budget, whatever the server asks for; None keeps a ledger if the
        server asks for noise, and refuses nothing.
    repeatable_secrets
        For tests and reproductions: noise and shuffles are derived from the run's seed, which the
        server knows, so they protect nothing; nor has a node with a mixer of its own (`link-via`) a
        secret order of its examples then. Its epsilon is what the noise would cost if the seed
        were a secret, except on a SuperNode, whose ledger counts the noise as none.

    Attributes
    ----------
    peers
        All clients of this process, if the strategy mixes raw inputs across them; otherwise None.
    sends_sums
        Whether it sends what a mixer adds up. A node does not if it uploads to a third party's
        mixer only and the server has its uploads rounded: they could be taken out of the sum.

    Raises
    ------
    ClientError
        If there is no training example, or the segment's weights cannot be sent.
    TypeError
        If data have no length or no items, `batch_size` is not an integer, or `shares` is not a
        sequence of kinds of shares.
    ValueError
        If `batch_size` < 1, or a kind of shares has no name of its own.
    """

    def __init__(
        self,
        segment: nn.Module,
        data: ExampleSet,
        *,
        batch_size: int = 32,
        test_data: ExampleSet | None = None,
        benchmark_data: ExampleSet | None = None,
        optimizer: OptimizerFactory | None = None,
        schedule: Schedule | None = None,
        device: str = "auto",
        shares: Sequence[type[Share]] = (),
        privacy: PrivacyBudget | None = None,
        repeatable_secrets: bool = False,
    ) -> None:
        check_truth("repeatable_secrets", repeatable_secrets)
        on = pick_device(device)
        check_segment(segment)
        batches = Batches(data, batch_size)
        if not batches.examples:
            raise ClientError(NO_DATA)
        lower = LowerEnd(segment.to(on), optimizer, schedule, device=on)
        super().__init__(lower, batches, privacy=privacy, repeatable_secrets=repeatable_secrets)
        self.tests = tests_of(test_data, benchmark_data)
        self.shares = known_shares(shares)
        self._once = Once()
        self._shapes: KeptShapes | None = None
        self.peers: Sequence[SplitClient] | None = None
        self.sends_sums = True
        self._pending: Pending | None = None
        self._round: RoundBatches | None = None

    def attach(self, order: Order, arrays: Mapping[str, Tensor] | None) -> dict[str, Any]:
        """Begin a round and describe the data: sizes, position, shape of the smashed data."""
        self._order = order
        self._pending = self._parted = self._round = None
        self._begun_at = self.batches.drawn
        self.steps = 0
        if not self.optimizer.knows(self.segment) and self._once.first("unknown weights"):
            log.warning("client %d: its lower segment %s", order.client, UNKNOWN_WEIGHTS)
        self._take_weights(order, arrays)
        # BatchNorm without running statistics needs two.
        first = self._first_inputs(2 if self._whole_batch else 1)
        with restrained(_DOES_NOT_DESCRIBE, hides=not self.may_name_data()):
            smashed = self.lower.describe(first)
        self._try_batches(lambda: self._first_inputs(self.batches.size).to(self.device))
        self._shapes = self.lower.shapes()
        return {
            "num-examples": self.batches.examples,
            "batch-size": self.batches.size,
            "drawn": self.batches.drawn,
            **smashed,
            **self._privacy_facts(),
            **describe_tests(self.tests),
        }

    def _take_weights(self, order: Order, arrays: Mapping[str, Tensor] | None) -> None:
        """Load what the server has sent, if anything, once it is known to be fit."""
        if arrays:  # empty: the client keeps its own
            arrays = self.lower.fitted(
                arrays, "the server's lower segment does not fit this client's"
            )
        if self.guard is not None:
            self.guard.limits.admit_round(order, arrays)
        if arrays:
            check_numbers(
                "the server's lower segment:",
                arrays,
                bounded=self._limited,
                own=self.segment.state_dict(),
            )
            self.lower.load(arrays)

    @exchange
    def step(
        self,
        *,
        number: int,
        progress: float,
        gradient: Sequence[Tensor | None] | None,
        plan: WireShares | None,
    ) -> dict[str, Any]:
        """Run the last step's backward pass and this step's forward pass.

        Parameters
        ----------
        number
            The step of the round, from 0.
        progress
            Global progress in rounds, for the schedule.
        gradient
            The last step's cut-layer gradient of each pass; None if there is none for this client
            or it did not arrive: then no optimizer step is taken.
        plan
            This step's share of each pass; None ends the round.

        Returns
        -------
        {"smashed": [tensor (b, a, d) or None for each pass], "labels": labels}, or {}. Labels are
        int64 (b,): classes, or the examples' ids if the plan asks for ids; or (b, L), multi-label.
        Soft labels are a list with one entry per pass, like the smashed data.
        {"budget-spent": True} if the upload would exceed the client's privacy budget.
        """
        if self._pending is not None:
            pending, self._pending = self._pending, None
            if gradient is not None and self._backward(pending.anchors, gradient, anew=True):
                self._take_step(pending.progress, pending.inputs, last=plan is None)
        if plan is None:
            return {}
        shares, (inputs, labels, ids) = self._asked(number, plan)
        smashed = self._smashed(inputs, shares)
        if not self._admits(shares, smashed):
            return {"budget-spent": True}
        reply, anchors = upload(shares, smashed, labels, ids)
        self._pending = Pending(anchors, progress, inputs if self.may_name_data(shares) else None)
        return reply

    def _asked(self, number: int, plan: WireShares) -> tuple[list[Share | None], StepBatch]:
        """Return a step's shares and its batch."""
        check_plan(plan)
        shares = [None if p is None else share_from_wire(p, self.shares) for p in plan]
        check_label_memory(shares, math.prod(self.lower.described))
        if not self.sends_sums:
            check_no_sums(shares)
        if self.guard is not None:
            self.guard.limits.admit_kinds(shares)
        if self._remarks is not None:
            self._remarks.admit(self.order.client, shares, self.segment, self._some_inputs)
        inputs, labels = inputs_asked_for(shares, number, self.order.client, self, self.peers)
        warn_of_unknown(self.order.client, shares, labels, self._once)
        return shares, StepBatch(inputs, labels, torch.from_numpy(self.batches.indices))

    def _first_inputs(self, number: int) -> Tensor:
        return self._first_examples(self.batches, number)[0]

    def _some_inputs(self) -> Tensor:
        return self._first_inputs(2).to(self.device)

    def batch(self, number: int) -> Example:
        """Return the batch of one step of the round, drawing it on the first call."""
        if self._round is None:
            self._round = RoundBatches(self.batches, self.order)
        return self._round.batch(number)

    @exchange
    def encode_test(
        self, *, kind: str, start: int, stop: int, shuffled: bool = False
    ) -> dict[str, Any]:
        """Encode test examples `start` to `stop`, unmixed, without noise and without a graph.

        With `shuffled`, they are numbered in a random order, which is always the same.

        Returns
        -------
        {"smashed": [tensor (b, prefix + N, d)], "labels": int64 (b,), or (b, L), multi-label}
        """
        data = evaluation_set(self.tests, kind)
        check_range(kind, start, stop, len(data))  # type: ignore[arg-type]
        if kind == "federated":
            self._admit_evaluation()
        inputs, labels = part_of(data, start, stop, shuffled=shuffled)
        return {"smashed": [self.lower.smashed_tests(inputs)], "labels": labels}

    def release(self) -> tuple[dict[str, Tensor], dict[str, int | float]]:
        """End the round: drop the graph and return the lower segment and the metrics.

        Raises
        ------
        ClientError
            If a shape within the lower segment has changed in this round.
        """
        self._pending = self._parted = self._round = None
        if self.guard is not None:
            self.guard.close_round(self.order)
        if self._shapes is not None:
            self.lower.check_shapes(self._shapes)
        return self.weights(), {"num-examples": self.batches.examples, "num-steps": self.steps}

    def weights(self) -> dict[str, Tensor]:
        """Return the lower segment's parameters and buffers, on the CPU; bfloat16 as float32."""
        return self.lower.weights()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state of the lower segment, the optimizer, the data position and the guard."""
        meta = {"drawn": self.batches.drawn, **self._guard_state()}
        tensors, optimizer = self.lower.state()
        return tensors, meta | optimizer

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Restore `state`, for the same segment, optimizer and data."""
        self.restore_trained(tensors, meta)
        self._restore_guard(meta)

    def restore_trained(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Restore `state` without the privacy ledger."""
        self.lower.restore(tensors, meta)
        self.batches.drawn = int(meta["drawn"])
