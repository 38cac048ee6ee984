"""The client of the U shape: head, tail, data, labels and loss here, the trunk at the server."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from torch import Tensor, nn

from flwr_splitmix.clients.client import NO_DATA, ClientError, Order
from flwr_splitmix.clients.evaluation_sets import describe_tests, tests_of
from flwr_splitmix.clients.guards.first_weights import FirstWeights
from flwr_splitmix.clients.guards.restrained import restrained
from flwr_splitmix.clients.requests import check_numbers
from flwr_splitmix.clients.ushape.accounted import Trials, check_accounted
from flwr_splitmix.clients.ushape.ends import Ends
from flwr_splitmix.clients.ushape.evaluation import EvaluationPlace, SentTests
from flwr_splitmix.clients.ushape.hiding_fit import check_batches, check_head_learns
from flwr_splitmix.clients.ushape.round_side import RoundSides, frozen_facts, seeded_facts
from flwr_splitmix.clients.ushape.step_exchanges import Learns, StepExchanges
from flwr_splitmix.clients.ushape.text_labels import check_labelled
from flwr_splitmix.clients.ushape.text_lengths import check_lengths
from flwr_splitmix.clients.ushape.vocabulary import check_vocabulary
from flwr_splitmix.clients.weights import check_shaped
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.data.examples import ExampleSet
from flwr_splitmix.data.masked_batch import MaskedBatch, holds_ids
from flwr_splitmix.device import pick_device
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.optimizers import OptimizerFactory
from flwr_splitmix.privacy.policy import NodePolicy
from flwr_splitmix.schedule import Schedule
from flwr_splitmix.scoring.texts import Scores, TextScores, check_labels, check_scores
from flwr_splitmix.segments.across_batch import needs_whole_batch
from flwr_splitmix.segments.modules import check_takes_mask
from flwr_splitmix.values import check_choice, check_initialized, check_kind, check_truth

log = logging.getLogger("flwr.splitmix")

_NO_STATES = (
    "its first examples do not fit the head, or it makes of them no hidden states (batch, tokens, "
    "width)"
)


class UShapeClient(StepExchanges):
    """Head and tail of a model, its data and its optimizer; neither data nor labels leave it.

    A step is two exchanges: `encode` (the last step's backward pass through the head, the
    optimizer step, the head's forward pass) and `decode` (tail, loss, gradients for the trunk).

    Its `hiding` hides the data. A subclass can change a detail of that by overriding
    `obfuscate`, `recover`, `loss` or `perturb`, except where an epsilon rests on it.

    Parameters
    ----------
    head
        (ids int64 (b, T), mask (b, T)) to hidden states (b, T, d). Of images and other inputs
        without padding: (inputs (b, ...), mask (b, 1)), and T is the number of patches.
    tail
        (hidden states (b, T, d), the same mask) to logits (b, T, V) or (b, L).
    data
        Training texts: a `TextSet`, or any data set with batches of the same form. Or images and
        the like: pairs of a tensor, floating or of at least two dimensions, and a class. With a
        `loss` of a subclass, or of its hiding, labels may be others, also floating.
    batch_size
        Examples in a batch; if there are fewer, batches are drawn with replacement.
    hiding
        Determines what is sent in place of the head's hidden states, and how answers are read;
        each client needs its own object. None hides nothing.
    test_data, benchmark_data
        This client's own test split for `federated` evaluation, and a public test set common to
        all clients for `benchmark` evaluation.
    optimizer, schedule
        For head and tail together; by default AdamW (lr 1e-3, weight decay 0.05) with a cosine
        schedule.
    learns
        "all": head, trunk and tail. "tail": the head is frozen, and this client returns no gradient
        to the trunk. An embedding shared by head and tail is frozen in both.
    scores
        A class, or another callable without arguments, that makes the scores of an evaluation: an
        object with the members of `TextScores`, which is the default (loss and accuracy).
    device
        "auto", "cpu", "cuda", ...
    repeatable_secrets
        For tests and reproductions: secrets are derived from the run's seed, which the server
        knows; see `SplitClient`.

    Raises
    ------
    ClientError
        If there is no training example, none with a label to predict, if weights of head or tail
        have no shape yet, if `learns` is "tail" and the tail has nothing to train, or if the hiding
        works by training the head, which does not learn.
    TypeError
        If head or tail takes no mask, or `scores` makes no scores.
    ValueError
        If `learns` is neither "all" nor "tail", or texts have tokens beyond the head's vocabulary,
        or more of them than the hiding takes.
    """

    def __init__(
        self,
        head: nn.Module,
        tail: nn.Module,
        data: ExampleSet,
        *,
        batch_size: int = 16,
        hiding: Hiding | None = None,
        test_data: ExampleSet | None = None,
        benchmark_data: ExampleSet | None = None,
        optimizer: OptimizerFactory | None = None,
        schedule: Schedule | None = None,
        learns: Learns = "all",
        device: str = "auto",
        scores: Scores | None = None,
        repeatable_secrets: bool = False,
    ) -> None:
        check_truth("repeatable_secrets", repeatable_secrets)
        check_choice("learns", learns, get_args(Learns))
        on = pick_device(device)
        hiding = Hiding() if hiding is None else hiding
        check_kind("hiding", hiding, Hiding, "an object of a subclass of Hiding")
        check_initialized(hiding, Hiding, "public")
        check_takes_mask("head", head)
        check_takes_mask("tail", tail)
        check_shaped("head", head)
        check_shaped("tail", tail)
        texts = {"data": data, "test_data": test_data, "benchmark_data": benchmark_data}
        check_vocabulary(head, **texts, public=hiding.public)
        check_lengths(hiding, data=data, public=hiding.public)
        if type(self).loss is UShapeClient.loss:
            check_labelled(data)
        self.head, self.tail = head.to(on), tail.to(on)
        if learns == "tail":
            self.head.requires_grad_(False)
            if not any(parameter.requires_grad for parameter in self.tail.parameters()):
                raise ClientError("learns is 'tail', but the tail has nothing to learn")
        check_head_learns(hiding, self.head)
        ends = Ends(self.head, self.tail, optimizer, schedule)
        batches = Batches(data, batch_size, floats=True)  # `loss` decides
        if not batches.examples:
            raise ClientError(NO_DATA)
        tests = tests_of(test_data, benchmark_data)
        if scores is not None:
            check_scores(scores)
        super().__init__(
            learns=learns,
            hiding=hiding,
            ends=ends,
            batches=batches,
            tests=tests,
            scores=scores or TextScores,
            device=on,
        )
        self.repeatable_secrets = repeatable_secrets
        self._first_weights: FirstWeights | None = None
        self._governed = False
        self._sides = RoundSides(hiding, ends, on, batches, tests, returns=learns == "all")
        self._trials = Trials(hiding, ends.segments, [data, test_data], batches.size)

    def govern(self, policy: NodePolicy, folder: Path | None, index: int, run: str) -> None:
        """Apply the node's policy; the node records which test examples were sent by which weights.

        If it does not allow averaging, it also records the run's first head and tail.
        """
        super().govern(policy, folder, index, run)
        self._governed = True
        if policy.allow_averaging is False:
            self._first_weights = FirstWeights.on_node(folder, index, run)
        if folder is not None:
            file = folder / f"test-texts-{index}.jsonl"
            self._sent_tests = SentTests(file, run, self.ends.digest)

    def attach(self, order: Order, arrays: Mapping[str, Tensor] | None) -> dict[str, Any]:
        """Begin a round and describe the data: sizes, batches drawn, width of the hidden states.

        Where heads and tails are averaged, "frozen-weights" is a number by which the server
        compares what of them is frozen, and hence not sent (`frozen_weights.sketch`).

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
        check_accounted(type(self), UShapeClient, self.hiding)
        if order.averaged:
            self.ends.check_no_statistics()
        self._order = order
        self._forget_round()
        self._begin_evaluation(EvaluationPlace.of(order, self.batches.drawn))
        self._take_weights(arrays)
        first = self._checked_examples()
        with restrained(_NO_STATES, hides=not self.may_name_data()):
            width = self.ends.width(first)
        if self.hiding.accounts:  # an epsilon must hold for any weights that a server sends later
            self._trials.check_data()
            self._trials.check_apart(self._first_batch(self.batches.size))
        texts, seeded = holds_ids(first.inputs), self.repeatable_secrets and self._governed
        self.hiding.attach(self._sides.of(order, width, texts=texts, seeded=seeded))
        if not self._trials.rehearsed:
            few = self._first_batch(min(3, self.batches.size))
            self._trials.rehearse(few, single=self.batches.size == 1)
        due = self._begin_calibration()
        self.ends.begin_round()
        return {
            "num-examples": self.batches.examples,
            "batch-size": self.batches.size,
            "drawn": self.batches.drawn,
            "width": width,
            "calibration-steps": due,
            "hiding": self.hiding.names(),
            **seeded_facts(repeatable=self.repeatable_secrets, governed=self._governed),
            **frozen_facts(self.ends, order),
            **describe_tests(self.tests),
        }

    def _take_weights(self, arrays: Mapping[str, Tensor] | None) -> None:
        """Load what the server has sent, if anything, once it is known to be fit."""
        if arrays:
            arrays = self.ends.fitted(arrays, "the server's head and tail do not fit this client's")
        if self._first_weights is not None:
            self._first_weights.admit(arrays or None, "allow_averaging = false")
        if arrays:
            check_numbers(
                "the server's head and tail:",
                arrays,
                bounded=True,
                own=dict(self.segments.named_parameters()),
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
    def epsilon(self) -> float | None:
        """The epsilon that the messages have spent, if the hiding accounts for it."""
        return self.hiding.epsilon

    def release(self) -> tuple[dict[str, Tensor], dict[str, int | float]]:
        """End the round: drop the graph and return head, tail and metrics.

        "train-loss" is the mean over batches with a label to predict, or of a subclass's own loss
        over all; without any there is none. Nor is there if an epsilon is kept and the tail alone
        learns: labels could be read from it, and nothing else that leaves in training tells of
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

    def weights(self) -> dict[str, Tensor]:
        """Return the trainable parameters of head and tail; bfloat16 as float32."""
        return self.ends.weights()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state of head, tail, optimizer, data position and hiding."""
        tensors, meta = self.ends.state()
        own, facts = self.hiding.state()
        return tensors | own, {"drawn": self.batches.drawn} | meta | facts

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
