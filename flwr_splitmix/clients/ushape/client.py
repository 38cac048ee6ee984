"""The client of the U shape: head, tail, data, labels and loss here, the trunk at the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from torch import Tensor, nn

from flwr_splitmix.clients.client import EMPTY, ClientError
from flwr_splitmix.clients.evaluation_sets import tests_of
from flwr_splitmix.clients.exchanges import exchange
from flwr_splitmix.clients.ushape.ends import Ends, Learns
from flwr_splitmix.clients.ushape.ends_client import EndsClient
from flwr_splitmix.clients.ushape.hiding_fit import check_head_learns
from flwr_splitmix.clients.ushape.text_labels import check_labelled
from flwr_splitmix.clients.ushape.text_lengths import check_lengths
from flwr_splitmix.clients.ushape.vocabulary import check_vocabulary
from flwr_splitmix.clients.weights import check_shaped
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.data.examples import ExampleSet
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.device import pick_device
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.optimizers import OptimizerFactory
from flwr_splitmix.schedule import Schedule
from flwr_splitmix.scoring.texts import Scores, TextScores, check_scores, scored
from flwr_splitmix.segments.modules import check_module, check_takes_mask
from flwr_splitmix.values import check_choice, check_initialized, check_kind, check_truth

_OF_HIDINGS = ("obfuscate", "recover", "perturb", "returned", "logits", "before_update")


class UShapeClient(EndsClient):
    """Head and tail of a model, its data and its optimizer; neither data nor labels leave it.

    A step is two exchanges: `encode` (the last step's backward pass through the head, the
    optimizer step, the head's forward pass) and `decode` (tail, loss, gradients for the trunk).

    Its `hiding` decides what is sent of the data, and how the answer is read. A subclass may have
    a `loss` of its own, except where an epsilon rests on it.

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
        `loss` of a subclass, or of its hiding, labels may be others, including floating ones.
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

    Attributes
    ----------
    steps
        Steps taken in this round.

    Raises
    ------
    ClientError
        If there is no training example, none with a label to predict, if weights of head or tail
        have no shape yet, if `learns` is "tail" and the tail has nothing to train, or if the hiding
        works by training the head, which does not learn.
    TypeError
        If head or tail is no module or takes no mask, or `scores` makes no scores.
    ValueError
        If `learns` is neither "all" nor "tail", or texts have tokens beyond the head's vocabulary,
        or more of them than the hiding takes.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Reject a subclass that would hide data by itself, where attacks would not find it.

        Raises
        ------
        TypeError
            If it has a method of hidings.
        """
        super().__init_subclass__(**options)
        _check_hides_nothing_itself(cls)

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
        _check_hides_nothing_itself(type(self))  # a method may be set on a class later
        check_truth("repeatable_secrets", repeatable_secrets)
        check_choice("learns", learns, get_args(Learns))
        on = pick_device(device)
        hiding = Hiding() if hiding is None else hiding
        check_kind("hiding", hiding, Hiding, "an object of a subclass of Hiding")
        check_initialized(hiding, Hiding, "public")
        for name, part in (("head", head), ("tail", tail)):
            check_module(name, part)
            check_takes_mask(name, part)
            check_shaped(name, part)
        texts = {"data": data, "test_data": test_data, "benchmark_data": benchmark_data}
        check_vocabulary(head, **texts, public=hiding.public)
        check_lengths(hiding, data=data, public=hiding.public)
        if type(self).loss is UShapeClient.loss:
            check_labelled(data)
        head, tail = head.to(on), tail.to(on)
        if learns == "tail":
            head.requires_grad_(False)
            if not any(parameter.requires_grad for parameter in tail.parameters()):
                raise ClientError("learns is 'tail', but the tail has nothing to learn")
        check_head_learns(hiding, head)
        ends = Ends(head, tail, optimizer, schedule)
        batches = Batches(data, batch_size, floats=True)  # `loss` decides
        if not batches.examples:
            raise ClientError(EMPTY)
        tests = tests_of(test_data, benchmark_data)
        if scores is not None:
            check_scores(scores)
        super().__init__(
            ends,
            hiding,
            batches,
            tests,
            scores=scores or TextScores,
            learns=learns,
            device=on,
            repeatable_secrets=repeatable_secrets,
        )

    @exchange(place=("number",))
    def encode(
        self,
        *,
        number: int,
        progress: float,
        gradient: Sequence[Tensor] | None,
        last: bool = False,
    ) -> dict[str, Any]:
        """Finish the last step at the head and send this step's messages.

        Parameters
        ----------
        number
            The step of the round, from 0.
        progress
            Global progress in rounds, for the schedule.
        gradient
            The last step's gradient at each message, (b, T, d); None if it did not arrive: then
            no optimizer step is taken, unless the tail alone learns.
        last
            Whether the round ends here and nothing more is sent.

        Returns
        -------
        {"messages": [tensor (b, T, d), ...], "mask": uint8 (b, T)}, plus "public" if public texts
        are due; or {}.

        Raises
        ------
        ClientError
            If steps of calibration are left, or the last step cannot be taken.
        """
        flying, self._flying = self._flying, None
        if flying is not None:
            self.steps += flying.learn(gradient, self.order.num_rounds)
        if last:
            return {}
        self._calibration.check_done()
        refines = self.hiding.refines(self.batches.drawn + 1)
        public = self._calibration.send() if refines else {}
        example = self.batches.next_batch(self.order.seed, self.order.client)
        self.segments.train()
        self.ends.optimizer.zero_grad()
        self.hiding.charge("train", self.batches.indices)
        sent = self._messenger.messages_of(MaskedBatch.of(example, self.device))
        self._flying = self.in_flight(sent, progress)
        return sent.outgoing() | public

    @exchange(place=("number",))
    def decode(
        self,
        *,
        number: int,
        outputs: Sequence[Tensor],
        public: Sequence[Sequence[Tensor]] | None = None,
    ) -> dict[str, Any]:
        """Score the trunk's outputs against the labels.

        Parameters
        ----------
        outputs
            The trunk's output for each message, (b, T, d).
        public
            The same for each group of public texts sent with them.

        Returns
        -------
        {"gradients": [tensor (b, T, d), ...]}: of the mean loss at each output; an empty list if
        only the tail learns.

        Raises
        ------
        ClientError
            Raised by `UShapeBatchInFlight.decode`.
        """
        if (flying := self._flying) is None:
            raise ClientError("the server decodes what this client has not encoded")
        loss, gradients = flying.decode(outputs)
        labels = flying.sent.batch.labels
        if self.own_loss or len(scored(labels)):  # else there was nothing to predict
            self._losses.append(loss.item())
        if public is not None:
            self._calibration.learn(public)
        return {"gradients": gradients}

    @exchange(place=("number",))
    def encode_public(self, *, number: int) -> dict[str, Any]:
        """Send public texts, to calibrate on the trunk's outputs for them.

        Returns
        -------
        {"public": [a group of messages and its mask, ...]}, each group like `encode`'s reply.
        """
        return self._calibration.send()

    @exchange(place=("number",))
    def decode_public(self, *, number: int, public: Sequence[Sequence[Tensor]]) -> dict[str, Any]:
        """Take one step of calibration before the first batch.

        Parameters
        ----------
        number
            The calibration step, from 0. The client counts them itself: one that believed the
            server would send private texts without calibration.
        public
            The trunk's output for each message of each group, (b, T, d).
        """
        self._calibration.take_step(public)
        return {}

    @exchange(place=("start",))
    def encode_test(self, *, kind: str, start: int, stop: int) -> dict[str, Any]:
        """Send test examples `start` to `stop`, hidden as in training; the reply is as `encode`'s.

        Raises
        ------
        ClientError
            If it is not these texts' turn, or they are not as many as this client sends at once: a
            batch, with which a rest that is too small for the hiding is joined. Each is sent once a
            round, in order, and on a node once in a run under the same head and tail: scores of
            single texts would reveal their labels, and a text that is mixed twice becomes readable.
        """
        return self.evaluation.send(kind, start, stop)

    @exchange(place=())
    def decode_test(self, *, outputs: Sequence[Tensor]) -> dict[str, Any]:
        """Score the trunk's outputs of a test batch.

        Returns
        -------
        {}; or, if texts are generated token by token, a reply like `encode`'s for the next token.
        """
        return self.evaluation.answer(outputs)

    @exchange(place=())
    def score(self, *, kind: str) -> dict[str, Any]:
        """Return the result of an evaluation: {"examples": number, "scores": numbers by name}.

        If the hiding accounts for what is sent, there are also "epsilons": by name, what has been
        spent until now, with this evaluation. Of the texts only the means leave the client, never
        the score of a single one. That hides no labels: a server that has the tail finds those that
        give the mean loss, at least of few texts, and one that chooses the trunk's outputs can
        write the labels as its digits.
        """
        return self.evaluation.result(kind)


def _check_hides_nothing_itself(kind: type[UShapeClient]) -> None:
    for name in _OF_HIDINGS:
        if hasattr(kind, name):
            raise TypeError(
                f"{kind.__name__}.{name} would never be called: what a client sends, and how it "
                f"reads the answer, is up to its hiding. Define {name} in a subclass of Hiding "
                "(flwr_splitmix.hiding), and give the client hiding=..."
            )
