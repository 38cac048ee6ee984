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
from flwr_splitmix.clients.explained import explained
from flwr_splitmix.clients.finite import check_finite, check_gradients
from flwr_splitmix.clients.guards.privacy_budget import PrivacyBudget
from flwr_splitmix.clients.guards.restrained import restrained
from flwr_splitmix.clients.kept_shapes import KeptShapes
from flwr_splitmix.clients.requests import (
    check_numbers,
    check_plan,
    check_range,
    check_sizes,
)
from flwr_splitmix.clients.split.graphs import backward, upload
from flwr_splitmix.clients.split.input_mixing import mix_inputs
from flwr_splitmix.clients.split.lower import (
    check_described,
    check_segment,
    describe_segment,
    fitted,
    load_segment,
)
from flwr_splitmix.clients.split.parted_exchanges import PartedExchanges
from flwr_splitmix.clients.split.parts import Pending, WireShares
from flwr_splitmix.clients.weights import without_bfloat16
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.data.examples import Example, ExampleSet
from flwr_splitmix.device import pick_device
from flwr_splitmix.mixers import InputShare, Share, known_shares, share_from_wire
from flwr_splitmix.schedule import (
    UNKNOWN_WEIGHTS,
    OptimizerFactory,
    Schedule,
    ScheduledOptimizer,
)
from flwr_splitmix.segments.across_batch import enough_values
from flwr_splitmix.storage import under
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
        server knows, so they protect nothing. Its epsilon is what the noise would cost if the seed
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
        If data have no length or no items, `batch_size` is no integer, or `shares` no sequence of
        kinds of shares.
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
        super().__init__()
        check_truth("repeatable_secrets", repeatable_secrets)
        self.device = pick_device(device)
        check_segment(segment)
        self.segment = segment.to(self.device)
        self.batches = Batches(data, batch_size)
        if not self.batches.examples:
            raise ClientError(NO_DATA)
        self.tests = tests_of(test_data, benchmark_data)
        self.shares = known_shares(shares)
        self.repeatable_secrets = repeatable_secrets
        self._begin_guard(privacy)
        self.optimizer = ScheduledOptimizer(self.segment, optimizer, schedule)
        self.steps = 0
        self._told_unknown = self._looked = False
        self._described = (0, 0)
        self._shapes: KeptShapes | None = None
        self.peers: Sequence[SplitClient] | None = None
        self.sends_sums = True
        self._pending: Pending | None = None
        self._parted = None
        self._drawn: tuple[int, Example] | None = None

    def attach(self, order: Order, arrays: Mapping[str, Tensor] | None) -> dict[str, Any]:
        """Begin a round and describe the data: sizes, position, shape of the smashed data."""
        self._order = order
        self._pending = self._parted = self._drawn = None
        self._begun_at = self.batches.drawn
        self.steps = 0
        if not self._told_unknown and not self.optimizer.knows(self.segment):
            self._told_unknown = True
            log.warning("client %d: its lower segment %s", order.client, UNKNOWN_WEIGHTS)
        if arrays:  # empty: the client keeps its own
            arrays = fitted(self.segment, arrays)
        if self.guard is not None:
            self.guard.admit_round(order, arrays)
        if arrays:
            check_numbers(
                "the server's lower segment:",
                arrays,
                bounded=self._limited,
                own=self.segment.state_dict(),
            )
            load_segment(self.segment, arrays)
        # BatchNorm without running statistics needs two.
        first = self._first_inputs(2 if self._whole_batch else 1)
        with restrained(_DOES_NOT_DESCRIBE, hides=not self.may_name_data()):
            smashed = describe_segment(self.segment, first)
        # A budget must hold for any weights that a server sends later.
        if not self._looked or self.guard is not None:
            batch = self._first_inputs(self.batches.size).to(self.device)
            self._looked = self._find_mixing_layers(batch, again=self._looked)
        self._try_data()
        self._described = (smashed["prefix"] + smashed["patches"], smashed["width"])
        self._shapes = KeptShapes("lower segment", self.segment.state_dict())
        return {
            "num-examples": self.batches.examples,
            "batch-size": self.batches.size,
            "drawn": self.batches.drawn,
            **smashed,
            **self._privacy_facts(),
            **describe_tests(self.tests),
        }

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

    def _asked(
        self, number: int, plan: WireShares
    ) -> tuple[list[Share | None], tuple[Tensor, Tensor, Tensor]]:
        """Return a step's shares and its batch: inputs, labels and ids."""
        check_plan(plan)
        shares = [None if p is None else share_from_wire(p, self.shares) for p in plan]
        check_sizes(shares, math.prod(self._described))
        if not self.sends_sums and any(share.summed for share in shares if share is not None):
            raise ClientError(
                "this node has a mixer of its own (link-via) and sends it no rounded numbers to "
                "add up, as the sum could be taken apart: set the run's wire-dtype to 'keep'"
            )
        if self.guard is not None:
            self.guard.admit_kinds(shares)
        if self._remarks is not None:
            self._remarks.admit(self.order.client, shares, self.segment, self._some_inputs)
        inputs, labels = self._inputs(number, shares)
        return shares, (inputs, labels, torch.from_numpy(self.batches.indices))

    def _smashed(self, inputs: Tensor, shares: Sequence[Share | None]) -> Tensor:
        """Run the lower segment in training mode and keep its graph."""
        self.segment.train()
        tells = self.may_name_data(shares)
        with restrained("inputs do not fit the lower segment", hides=not tells):
            with explained(self.segment, inputs), enough_values("lower segment"):
                smashed: Tensor = self.segment(inputs.to(self.device))
            check_described(smashed, self._described)
        if not smashed.requires_grad and any(p.requires_grad for p in self.segment.parameters()):
            raise ClientError(
                "the lower segment has weights to train, but its output has no gradient: its "
                "forward pass detaches it, or runs without gradients; if nothing is to be trained, "
                "freeze the weights (requires_grad_(False))"
            )
        # On an accelerator the look would wait for it.
        if tells and self.device.type == "cpu":
            check_finite("lower segment", self.segment, inputs, smashed.detach())
        return smashed

    def _first_inputs(self, number: int) -> Tensor:
        return self._first_examples(self.batches, number)[0]

    def _some_inputs(self) -> Tensor:
        return self._first_inputs(2).to(self.device)

    def batch(self, number: int) -> Example:
        """Return the batch of one step of the round, drawing it on the first call."""
        if self._drawn is None or self._drawn[0] != number:
            order = self.order
            self._drawn = (number, self.batches.next_batch(order.seed, order.client))
        return self._drawn[1]

    def _inputs(self, number: int, shares: Sequence[Share | None]) -> Example:
        mixing = next((share for share in shares if isinstance(share, InputShare)), None)
        if mixing is None:
            return self.batch(number)

        def batch_of(client: int) -> Example:
            if client == self.order.client:
                return self.batch(number)
            if self.peers is None:
                raise ClientError(
                    "mixing raw inputs across clients needs them all in one process (fit); "
                    "within a client's own batch it works everywhere (across='batch')"
                )
            return self.peers[client].batch(number)

        return mix_inputs(mixing, batch_of)

    def _backward(
        self, anchors: Sequence[Tensor | None], gradients: Sequence[Tensor | None], *, anew: bool
    ) -> bool:
        return backward(anchors, gradients, self.optimizer, anew=anew, bounded=self._limited)

    def _take_step(self, progress: float, inputs: Tensor | None, *, last: bool = False) -> None:
        # No later upload would tell of a round's last step, for which an accelerator may be waited.
        if inputs is not None and (last or self.device.type == "cpu"):
            check_gradients("lower segment", self.segment, inputs)
        self.optimizer.step(progress, self.order.num_rounds)
        self.steps += 1

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
        self.segment.eval()
        with (
            torch.no_grad(),
            explained(self.segment, inputs, "test inputs"),
            enough_values("lower segment"),
        ):
            # One memory layout, so that the upper segment gets the same from every link.
            smashed = self.segment(inputs.to(self.device)).contiguous()
        check_finite("lower segment", self.segment, inputs, smashed)
        return {"smashed": [smashed], "labels": labels}

    def release(self) -> tuple[dict[str, Tensor], dict[str, int | float]]:
        """End the round: drop the graph and return the lower segment and the metrics.

        Raises
        ------
        ClientError
            If a shape within the lower segment has changed in this round.
        """
        self._pending = self._parted = self._drawn = None
        if self.guard is not None:
            self.guard.close_round(self.order)
        if self._shapes is not None:
            self._shapes.check(self.segment.state_dict())
        return self.weights(), {"num-examples": self.batches.examples, "num-steps": self.steps}

    def weights(self) -> dict[str, Tensor]:
        """Return the lower segment's parameters and buffers, on the CPU; bfloat16 as float32."""
        return without_bfloat16(self.segment.state_dict())

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state of the lower segment, the optimizer, the data position and the guard."""
        tensors = {f"segment.{name}": t for name, t in self.segment.state_dict().items()}
        meta: dict[str, Any] = {"drawn": self.batches.drawn, **self._uncovered_state}
        if self.guard is not None:
            meta["privacy"] = self.guard.state()
        if self._remarks is not None and (told_before := self._remarks.state()):
            meta["told"] = told_before
        moments, optimizer = self.optimizer.state()
        return tensors | moments, meta | optimizer

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Restore `state`, for the same segment, optimizer and data."""
        self.restore_trained(tensors, meta)
        self._first_asked = None
        if "privacy" in meta:
            self._own_guard().restore(meta["privacy"])
        if self._remarks is not None:
            self._remarks.restore(meta)
        self._recall_uncovered(meta)

    def restore_trained(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Restore `state` without the privacy ledger."""
        load_segment(self.segment, under("segment", tensors), "this client's kept lower segment")
        self.batches.drawn = int(meta["drawn"])
        self.optimizer.restore(tensors, meta)
