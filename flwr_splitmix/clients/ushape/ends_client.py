"""The parts of a U-shaped client, and the beginning and end of its rounds."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.clients.client import Client, ClientError, Order
from flwr_splitmix.clients.evaluation_sets import Tests, sizes_of
from flwr_splitmix.clients.guards.first_weights import FirstWeights
from flwr_splitmix.clients.guards.restrained import restrained
from flwr_splitmix.clients.requests import check_numbers
from flwr_splitmix.clients.ushape.accounted import Trials, check_accounted
from flwr_splitmix.clients.ushape.batch_in_flight import UShapeBatchInFlight
from flwr_splitmix.clients.ushape.calibration import PublicCalibration
from flwr_splitmix.clients.ushape.ends import Ends, Learns
from flwr_splitmix.clients.ushape.evaluation import EvaluationPlace, UShapeEvaluation
from flwr_splitmix.clients.ushape.hiding_fit import check_batches, check_public
from flwr_splitmix.clients.ushape.messenger import Messenger
from flwr_splitmix.clients.ushape.round_side import RoundSides, frozen_weights
from flwr_splitmix.clients.ushape.sent_tests import SentTests
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.data.masked_batch import MaskedBatch, holds_ids
from flwr_splitmix.description import UShapeDescription
from flwr_splitmix.hiding import Hiding, SentBatch
from flwr_splitmix.overriding import is_own
from flwr_splitmix.privacy.policy import NodePolicy
from flwr_splitmix.scoring.texts import Scores, check_labels
from flwr_splitmix.segments.across_batch import needs_whole_batch

log = logging.getLogger("flwr.splitmix")

_NO_STATES = (
    "its first examples do not fit the head, or it makes of them no hidden states (batch, tokens, "
    "width)"
)


class EndsClient(Client):
    """A U-shaped client without its exchanges, which are a subclass's.

    Parameters
    ----------
    ends
        Head and tail with their optimizer.
    hiding
        Hides the data, and keeps an epsilon if it accounts for one.
    batches, tests
        The data.
    scores
        Makes the scores of an evaluation.
    learns
        "all", or "tail" alone.
    device
        Where head and tail are.
    repeatable_secrets
        Whether secrets are derived from the run's seed.

    Attributes
    ----------
    segments
        Head and tail as one module.
    steps
        Steps taken in this round.
    """

    def __init__(
        self,
        ends: Ends,
        hiding: Hiding,
        batches: Batches,
        tests: Tests,
        *,
        scores: Scores,
        learns: Learns,
        device: torch.device,
        repeatable_secrets: bool,
    ) -> None:
        super().__init__()
        self.ends, self.segments = ends, ends.segments
        self.batches, self.tests = batches, tests
        self.scores = scores
        self.learns = learns
        self.device = device
        self.repeatable_secrets = repeatable_secrets
        self._messenger = Messenger(hiding, ends, device)
        self._calibration = PublicCalibration(self._messenger)
        self._evaluation: UShapeEvaluation | None = None
        self._sides = RoundSides(hiding, ends, device, batches, tests, returns=learns == "all")
        accounted = [batches.data, tests["federated"]]
        self._trials = Trials(hiding, ends.segments, accounted, batches.size)
        self._governed = False
        self._first_weights: FirstWeights | None = None
        self._sent_tests: SentTests | None = None
        self._forget_round()

    @property
    def hiding(self) -> Hiding:
        """The hiding of the data; a client keeps the one that it was made with."""
        return self._messenger.hiding

    @property
    def head(self) -> nn.Module:
        """The segment before the trunk."""
        return self.segments["head"]

    @property
    def tail(self) -> nn.Module:
        """The segment behind the trunk."""
        return self.segments["tail"]

    def trainable_parameters(self) -> Iterable[nn.Parameter]:
        """Return the parameters of head and tail, except frozen ones."""
        return (p for p in self.segments.parameters() if p.requires_grad)

    def weights(self) -> dict[str, Tensor]:
        """Return the trainable parameters of head and tail; bfloat16 as float32."""
        return self.ends.weights()

    @property
    def epsilon(self) -> float | None:
        """The epsilon that the messages have spent, if the hiding accounts for it."""
        return self.hiding.epsilon

    def may_name_data(self) -> bool:
        """Return whether an error may reveal data.

        With an epsilon it would itself be a release.
        """
        return self._messenger.may_name_data

    @property
    def own_loss(self) -> bool:
        """Whether a subclass, or that of a hiding, has its own loss: labels may have any form."""
        of_client = type(self).loss is not EndsClient.loss
        return of_client or is_own(type(self.hiding), "loss")

    def loss(self, hidden: Tensor, sent: SentBatch) -> Tensor:
        """Return the mean loss of the batch, a scalar, given what `recover` returned: (b, T, d).

        A subclass with another loss, of the client or of its hiding, may have labels of another
        form, and then needs scores of its own (`scores`).

        Raises
        ------
        ExamplesError
            Raised by a loss of this package; see `Hiding.loss`.
        """
        return self.hiding.loss(hidden, sent)

    def govern(self, policy: NodePolicy, folder: Path | None, index: int, run: str) -> None:
        """Apply the node's policy; the node records which weights sent which test examples.

        If it does not allow averaging, it also records the run's first head and tail.

        Raises
        ------
        ClientError
            If the policy does not allow this client, or the public texts of its hiding.
        """
        super().govern(policy, folder, index, run)
        check_public(self.hiding, policy)
        self._governed = True
        if policy.allow_averaging is False:
            self._first_weights = FirstWeights.on_node(folder, index, run)
        if folder is not None:
            file = folder / f"test-texts-{index}.jsonl"
            self._sent_tests = SentTests(file, run, self._tested_as)

    def _tested_as(self) -> str:
        """Return a digest of the state of head and tail, for its test examples.

        Where an epsilon is kept, also how many batches were drawn. Whether one of them has changed
        the tail can depend on its labels, and a refused evaluation would reveal it.
        """
        digest = self.ends.digest()
        return f"{digest}:{self.batches.drawn}" if self.hiding.accounts else digest

    def begin_run(self) -> None:
        """Forget the evaluation of another run, whose rounds have the same numbers."""
        self._evaluation = None

    def attach(self, order: Order, arrays: Mapping[str, Tensor] | None) -> dict[str, Any]:
        """Begin a round and describe the data: sizes, batches drawn, width of the hidden states.

        Without arrays, or with an empty mapping, the client keeps its current head and tail.

        Raises
        ------
        ClientError
            If the arrays do not fit, or have NaN, infinite or very large numbers, an epsilon is
            kept that would not hold (`check_accounted`, `Trials`), the hiding is for texts only or
            needs larger batches, or head and tail are averaged and have running statistics, which
            are not.
        ExamplesError
            If labels are floating, and neither client nor hiding has a `loss` of its own.
        """
        check_accounted(type(self), EndsClient, self.hiding)
        if order.averaged:
            self.ends.check_no_statistics()
        self._order = order
        self._forget_round()
        self._take_weights(arrays)
        first = self._checked_examples()
        texts = holds_ids(first.inputs)
        least = self.hiding.least_batch(texts=texts)
        self._begin_evaluation(order, least)
        with restrained(_NO_STATES, hides=not self.may_name_data()):
            width = self.ends.width(first, own_masks=self.hiding.own_masks)
        if self.hiding.accounts:  # an epsilon must hold for any weights that a server sends later
            self._trials.check_data()
            self._trials.check_apart(self._first_batch(self.batches.size))
        seeded = self.repeatable_secrets and self._governed
        self.hiding.attach(self._sides.of(order, width, texts=texts, seeded=seeded))
        if not self._trials.rehearsed:
            few = self._first_batch(min(3, self.batches.size))
            self._trials.rehearse(few, single=self.batches.size == 1)
        calibration_steps = self._calibration.begin_round()
        self.ends.begin_round()
        tests = sizes_of(self.tests)
        return UShapeDescription(
            num_examples=self.batches.examples,
            batch_size=self.batches.size,
            least_batch=least,
            drawn=self.batches.drawn,
            width=width,
            calibration_steps=calibration_steps,
            hiding=self.hiding.names(),
            repeatable_secrets=self.repeatable_secrets,
            seeded=seeded,
            frozen_weights=frozen_weights(self.ends, order),
            federated_examples=tests.get("federated", 0),
            benchmark_examples=tests.get("benchmark", 0),
        ).to_plain()

    def _forget_round(self) -> None:
        self.steps = 0
        self._losses: list[float] = []
        self._flying: UShapeBatchInFlight | None = None
        self._calibration.forget()

    def _begin_evaluation(self, order: Order, least: int) -> None:
        """Begin anew, unless the client is where it was, and forget a batch without an answer.

        Parameters
        ----------
        least
            Fewest examples in a batch among which the hiding does anything.
        """
        place = EvaluationPlace.of(order, self.batches.drawn)
        if self._evaluation is None or self._evaluation.place != place:
            self._evaluation = UShapeEvaluation(
                place,
                self.tests,
                self.scores,
                self._messenger,
                self.batches.size,
                least=least,
                seed_of=partial(order.seed_for, "test"),
                sent_tests=self._sent_tests,
            )
        self._evaluation.forget_batch()

    def _take_weights(self, arrays: Mapping[str, Tensor] | None) -> None:
        """Load what the server has sent, if anything, once it is known to be fit."""
        if arrays:  # empty: the client keeps its own
            arrays = self.ends.fitted(arrays, "the server's head and tail do not fit this client's")
        if self._first_weights is not None:
            self._first_weights.check(arrays or None, "allow_averaging = false")
        if arrays:
            check_numbers(
                "the server's head and tail:",
                arrays,
                bounded=True,
                client_tensors=dict(self.segments.named_parameters()),
            )
            self.ends.load(arrays)

    def _checked_examples(self) -> MaskedBatch:
        """Return the first examples, as few as head and tail can take, of forms that fit."""
        # BatchNorm without running statistics needs two.
        first = self._first_batch(2 if needs_whole_batch(self.head) else 1)
        if first.labels.is_floating_point() and not self.own_loss:
            check_labels(first)
        check_batches(self.hiding, first, self.batches)
        return first

    def _first_batch(self, number: int) -> MaskedBatch:
        return MaskedBatch.of(self._first_examples(self.batches, number), self.device)

    @property
    def evaluation(self) -> UShapeEvaluation:
        """The evaluation of the round in progress."""
        if self._evaluation is None:
            raise ClientError("this client has not been attached to a round")
        return self._evaluation

    def in_flight(self, sent: SentBatch, progress: float = 0.0) -> UShapeBatchInFlight:
        """Return the batch of messages that are about to leave; this client's loss scores it."""
        returns = self.learns == "all"
        return UShapeBatchInFlight(
            sent, self._messenger, self.loss, progress=progress, returns=returns
        )

    def release(self) -> tuple[dict[str, Tensor], dict[str, int | float]]:
        """End the round: drop the graph and return head, tail and metrics.

        "train-loss" is the mean over batches with a label to predict, or of a subclass's own loss
        over all. It is missing without such a batch, and if an epsilon is kept and the tail alone
        learns: labels could be read from it, and nothing else that leaves in training reveals
        them.

        Raises
        ------
        ClientError
            If a shape within head or tail has changed in this round.
        """
        self.ends.check_shapes()
        metrics: dict[str, int | float] = {
            "num-examples": self.batches.examples,
            "num-steps": self.steps,
        }
        if self._losses:
            if self.learns == "all" or not self.hiding.accounts:
                metrics["train-loss"] = sum(self._losses) / len(self._losses)
        elif self.steps:
            log.warning(
                "client %d: no example of round %d had a label to predict, so it has no loss",
                self.order.client,
                self.order.server_round,
            )
        self._forget_round()
        self.hiding.release()
        return self.weights(), metrics | self.hiding.metrics()

    def close(self) -> None:
        """Let the hiding take its hooks from head and tail."""
        self.hiding.release()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state of head, tail, optimizer, data position and hiding."""
        tensors, meta = self.ends.state()
        hiding_tensors, facts = self.hiding.state()
        return tensors | hiding_tensors, {"drawn": self.batches.drawn} | meta | facts

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Restore `state`, for the same segments, optimizer, data and hiding."""
        self.restore_trained(tensors, meta)
        if self.hiding.accounts:
            self.hiding.restore(tensors, meta)

    def restore_trained(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Restore `state` without a hiding that keeps a ledger."""
        self.ends.restore(tensors, meta)
        self.batches.drawn = int(meta["drawn"])
        if not self.hiding.accounts:
            self.hiding.restore(tensors, meta)
