"""The client of the L shape: lower segment and data here, upper segment and loss at the server."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.clients.client import EMPTY, ClientError, Order
from flwr_splitmix.clients.evaluation_sets import evaluation_set, part_of, sizes_of, tests_of
from flwr_splitmix.clients.exchanges import exchange
from flwr_splitmix.clients.guards.privacy_budget import PrivacyBudget
from flwr_splitmix.clients.guards.restrained import restrained
from flwr_splitmix.clients.requests import check_range, shares_asked_for
from flwr_splitmix.clients.split.batch_in_flight import BatchInFlight, StepBatch, WireShares
from flwr_splitmix.clients.split.lower_checks import check_segment
from flwr_splitmix.clients.split.lower_client import LowerClient
from flwr_splitmix.clients.split.lower_end import LowerEnd
from flwr_splitmix.clients.split.round_batches import RoundBatches, inputs_asked_for
from flwr_splitmix.clients.split.unknown_labels import warn_of_unknown
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.data.examples import Example, ExampleSet
from flwr_splitmix.description import SplitDescription
from flwr_splitmix.device import pick_device
from flwr_splitmix.mixers import Share, known_shares
from flwr_splitmix.optimizers import UNKNOWN_WEIGHTS, OptimizerFactory
from flwr_splitmix.schedule import Schedule
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.values import check_kind, check_truth

log = logging.getLogger("flwr.splitmix")

_DOES_NOT_DESCRIBE = (
    "its first examples do not fit the lower segment, or it makes of them no smashed data (batch, "
    "patches, width)"
)


class SplitClient(LowerClient):
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
    steps
        Steps taken in this round.

    Raises
    ------
    ClientError
        If there is no training example, or the segment's weights cannot be sent.
    TypeError
        If data have no length or no items, `batch_size` is not an integer, `shares` is not a
        sequence of kinds of shares, or `privacy` is no budget.
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
        if privacy is not None:
            needed = "a PrivacyBudget, such as PrivacyBudget(max_epsilon=8.0), or None"
            check_kind("privacy", privacy, PrivacyBudget, needed)
        batches = Batches(data, batch_size)
        if not batches.examples:
            raise ClientError(EMPTY)
        lower = LowerEnd(segment.to(on), optimizer, schedule, device=on)
        super().__init__(lower, batches, privacy=privacy, repeatable_secrets=repeatable_secrets)
        self.tests = tests_of(test_data, benchmark_data)
        self.shares = known_shares(shares)
        self._once = SeenKeys()
        self.peers: Sequence[SplitClient] | None = None
        self.sends_sums = True
        self.steps = 0
        self._forget_round()

    def attach(self, order: Order, arrays: Mapping[str, Tensor] | None) -> dict[str, Any]:
        """Begin a round and describe the data: sizes, position, shape of the smashed data."""
        self._order = order
        self._forget_round()
        self.upload_guard.begin_round(order, self.batches.drawn)
        self.steps = 0
        if not self.optimizer.knows(self.segment) and self._once.add("unknown weights"):
            log.warning("client %d: its lower segment %s", order.client, UNKNOWN_WEIGHTS)
        self._take_weights(order, arrays)
        # BatchNorm without running statistics needs two.
        first, _ = self._first_examples(
            self.batches, 2 if self.upload_guard.smashed_coupling else 1
        )
        with restrained(_DOES_NOT_DESCRIBE, hides=not self.may_name_data()):
            segment = self.lower.describe(first)
        self.upload_guard.try_batches(partial(self._first_inputs_here, self.batches.size))
        self.lower.begin_round()
        tests = sizes_of(self.tests)
        return SplitDescription(
            num_examples=self.batches.examples,
            batch_size=self.batches.size,
            drawn=self.batches.drawn,
            segment=segment,
            uploads=self.upload_guard.facts(),
            repeatable_secrets=self.repeatable_secrets,
            federated_examples=tests.get("federated", 0),
            benchmark_examples=tests.get("benchmark", 0),
        ).to_plain()

    def _forget_round(self) -> None:
        self._flying: BatchInFlight | None = None
        self._round: RoundBatches | None = None

    @exchange(place=("number",))
    def step(
        self,
        *,
        number: int,
        progress: float,
        gradient: Sequence[Tensor | None] | None,
        plan: WireShares | None,
        last: bool = False,
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
            This step's share of each pass; None asks for no upload, as at the end of the round.
            A batch in parts that is in flight is dropped.
        last
            Whether no later upload may follow in the round, which would tell that this gradient
            was not finite: then an accelerator is waited for.

        Returns
        -------
        {"smashed": [tensor (b, a, d) or None for each pass], "labels": labels}, or {}. Labels are
        int64 (b,): classes, or the examples' ids if the plan asks for ids; or (b, L), multi-label.
        Soft labels are a list with one entry per pass, like the smashed data.
        {"budget-spent": True} if the upload would exceed the client's privacy budget.
        """
        batch, self._flying = self._flying, None
        if batch is not None and batch.admitted and batch.whole:
            rounds = self.order.num_rounds
            self.steps += batch.learn(batch.number, 0, gradient, rounds, last=last)
        return {} if plan is None else self._encode(number, progress, plan, 0, 1)

    @exchange(place=("number", "part"))
    def encode_part(
        self, *, number: int, progress: float, plan: WireShares, part: int, parts: int
    ) -> dict[str, Any]:
        """Run the forward pass of one part of a step's batch, while the server processes others.

        The first part begins the step: the whole batch is drawn and charged. The other parts
        follow in order, each once.

        Parameters
        ----------
        number, progress, plan
            As for `step`; the plan is that of the whole batch, the same for all parts.
        part, parts
            Index of the part, from 0, and the number of parts, which divides the batch size.

        Returns
        -------
        As `step`, for the part's samples; {"budget-spent": True} for every part of a batch that
        would exceed the client's privacy budget.
        """
        return self._encode(number, progress, plan, part, parts)

    @exchange(place=("number", "part"))
    def learn_part(
        self,
        *,
        number: int,
        part: int,
        gradient: Sequence[Tensor | None] | None,
        last: bool = False,
    ) -> dict[str, Any]:
        """Run the backward pass of one part; after the last part, take the optimizer step.

        Parameters
        ----------
        number, part
            Identify a part made by `encode_part`; gradients of all parts are delivered in order.
        gradient
            The part's cut-layer gradient of each pass; None if there is none.
        last
            Whether the batch is the round's last; see `step`.

        Returns
        -------
        {}
        """
        if (batch := self._flying) is None:
            raise ClientError("the server sends the gradient of a batch that has not begun")
        self.steps += batch.learn(number, part, gradient, self.order.num_rounds, last=last)
        if batch.complete:
            self._flying = None
        return {}

    def _encode(
        self, number: int, progress: float, plan: WireShares, part: int, parts: int
    ) -> dict[str, Any]:
        batch = self._flying
        if part == 0:
            self._flying = None
            batch = self._begin(number, progress, plan, parts)
        if batch is None:
            raise ClientError("the server asks for a part of a batch that has not begun")
        reply = batch.encode(number, part, parts, plan)
        self._flying = batch
        return reply

    def _begin(self, number: int, progress: float, plan: WireShares, parts: int) -> BatchInFlight:
        """Draw the batch of a step."""
        if parts != 1 and (layer := self.upload_guard.smashed_coupling):
            raise ClientError(
                f"this client's lower segment has {layer}, which needs a whole batch: set "
                f"micro-batches to 1, or take a model without {layer} before the cut"
            )
        size = math.prod(self.lower.described)
        shares = shares_asked_for(plan, self.shares, size, sums=self.sends_sums)
        client = self.order.client
        few = partial(self._first_inputs_here, 2)
        self.upload_guard.check_plan(client, shares, few)
        inputs, labels = inputs_asked_for(shares, number, client, self, self.peers)
        warn_of_unknown(client, shares, labels, self._once)
        batch = StepBatch(inputs, labels, torch.from_numpy(self.batches.indices))
        return BatchInFlight(
            number,
            progress,
            plan,
            shares,
            batch,
            parts,
            lower=self.lower,
            guard=self.upload_guard,
            may_name_data=self.may_name_data(shares),
        )

    def _first_inputs_here(self, number: int) -> Tensor:
        return self._first_examples(self.batches, number)[0].to(self.device)

    def batch(self, number: int) -> Example:
        """Return the batch of one step of the round, drawing it on the first call."""
        if self._round is None:
            self._round = RoundBatches(self.batches, self.order)
        return self._round.batch(number)

    @exchange(place=("start",))
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
            self.upload_guard.charge_tests()
        inputs, labels = part_of(data, start, stop, shuffled=shuffled)
        return {"smashed": [self.lower.smashed_tests(inputs)], "labels": labels}

    def release(self) -> tuple[dict[str, Tensor], dict[str, int | float]]:
        """End the round: drop the graph and return the lower segment and the metrics.

        Raises
        ------
        ClientError
            If a shape within the lower segment has changed in this round.
        """
        self._forget_round()
        self.upload_guard.close_round(self.order)
        self.lower.check_shapes()
        return self.weights(), {"num-examples": self.batches.examples, "num-steps": self.steps}
