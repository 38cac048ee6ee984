"""Exchanges of the U shape that build no graph: calibration on public texts, and evaluation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.clients.client import Client, ClientError
from flwr_splitmix.clients.evaluation_sets import Tests
from flwr_splitmix.clients.exchanges import exchange
from flwr_splitmix.clients.finite import check_finite
from flwr_splitmix.clients.guards.restrained import restrained
from flwr_splitmix.clients.requests import check_received
from flwr_splitmix.clients.ushape.checked_methods import (
    checked_hidden,
    checked_logits,
    checked_sent,
    plain_scores,
)
from flwr_splitmix.clients.ushape.ends import Ends
from flwr_splitmix.clients.ushape.evaluation import (
    EvaluationPlace,
    SentTests,
    UShapeEvaluation,
)
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import Hiding, Sent
from flwr_splitmix.hiding.epsilons import is_epsilon
from flwr_splitmix.scoring.texts import Scores, TextScores
from flwr_splitmix.seeding import seeded_draws
from flwr_splitmix.segments.batch_norm import enough_values
from flwr_splitmix.segments.shape_errors import out_of_memory
from flwr_splitmix.words import counted


class GraphlessExchanges(Client):
    """The part of a U-shaped client that sends batches through the trunk without training it.

    Parameters
    ----------
    hiding
        Makes the messages and reads the answers.
    ends
        Head and tail with their optimizer.
    batches, tests
        The client's data.
    scores
        Makes the scores of an evaluation.
    device
        Where head and tail are.

    Attributes
    ----------
    segments
        Head and tail as one module.
    """

    def __init__(
        self,
        *,
        hiding: Hiding,
        ends: Ends,
        batches: Batches,
        tests: Tests,
        scores: Scores,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.hiding = hiding
        self.ends, self.segments = ends, ends.segments
        self.batches, self.tests = batches, tests
        self.scores = scores
        self.device = device
        self._public: list[Sent] = []
        self._due = self._calibrated = 0  # steps before the first batch: due, and taken
        self._sent_tests: SentTests | None = None
        self._evaluation = self._new_evaluation(None)

    def begin_run(self) -> None:
        """Forget the evaluation of another run, whose rounds have the same numbers."""
        self._evaluation = self._new_evaluation(None)

    def _new_evaluation(self, place: EvaluationPlace | None) -> UShapeEvaluation:
        return UShapeEvaluation(
            place, self.tests, self.scores, self.device, self.batches.size, self._sent_tests
        )

    def _begin_evaluation(self, place: EvaluationPlace) -> None:
        """Begin anew, unless the client is where it was, and forget a batch without an answer."""
        if self._evaluation.place != place:
            self._evaluation = self._new_evaluation(place)
        self._evaluation.awaiting = None

    def _begin_calibration(self) -> int:
        """Begin a round's calibration; return how many steps are due before its first batch."""
        self._due, self._calibrated = self.hiding.calibration_steps, 0
        return self._due

    def trainable_parameters(self) -> Iterable[nn.Parameter]:
        """Return the parameters of head and tail, except frozen ones."""
        return (p for p in self.segments.parameters() if p.requires_grad)

    @abstractmethod
    def obfuscate(self, batch: MaskedBatch) -> Sent:
        """Turn a batch into messages to send."""

    @abstractmethod
    def recover(self, outputs: Sequence[Tensor], sent: Sent) -> Tensor:
        """Turn the trunk's outputs into its hidden states of the batch."""

    def may_name_data(self) -> bool:
        """Return whether an error may tell of the data.

        With an epsilon it would itself be a release.
        """
        return not self.hiding.accounts

    def _obfuscated(self, batch: MaskedBatch, what: str = "inputs") -> Sent:
        """Return the checked messages of a batch.

        Parameters
        ----------
        what
            What its inputs are called.

        Raises
        ------
        ClientError
            If the inputs do not fit the head, or if the messages have NaN or infinite numbers.
            Nobody looks for these where errors may not tell of the data; nor on an accelerator,
            which would have to be waited for.
        """
        try:
            with enough_values("head"):
                sent = checked_sent(self.obfuscate(batch))
        except ClientError:
            raise
        except (RuntimeError, TypeError, AssertionError) as error:
            if not out_of_memory(error):
                with restrained(f"{what} do not fit the head", hides=not self.may_name_data()):
                    self.ends.explain(batch, what)
            raise
        if self.device.type == "cpu" and self.may_name_data():
            messages = [message.detach() for message in sent.messages]
            check_finite("head", self.segments["head"], batch.inputs, *messages)
        return sent

    @exchange(place=("number",))
    def encode_public(self, *, number: int) -> dict[str, Any]:
        """Send public texts, to calibrate on the trunk's outputs for them.

        Returns
        -------
        {"public": [a group of messages and its mask, ...]}, each group like `encode`'s reply.
        """
        return self._send_public()

    def _send_public(self) -> dict[str, Any]:
        self.segments.eval()
        with torch.no_grad():
            batch = self.hiding.public_batch()
            if batch is None:
                raise ClientError("this client has no public texts to send")
            self._public = self.hiding.public_groups(self._obfuscated(batch, "public inputs"))
        return {"public": [group.outgoing() for group in self._public]}

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
        self._receive_public(public, self._calibrated)
        self._calibrated += 1
        return {}

    def _check_calibrated(self) -> None:
        """Raise ClientError if the hiding has steps of calibration left.

        What it does to private texts may depend on them, as MixGuard's noise on gradients does.
        """
        if (left := min(self._due - self._calibrated, self.hiding.calibration_steps)) > 0:
            raise ClientError(
                f"this client calibrates for {counted(left, 'more step')} before it sends private "
                "texts: the server must do them (encode_public, decode_public), or the client be "
                "made with calibration_epochs=0"
            )

    def _receive_public(self, public: Sequence[Sequence[Tensor]], step: int | None) -> None:
        groups, self._public = self._public, []
        if not groups or len(public) != len(groups):
            raise ClientError("the server answers with public texts that were not sent")
        for group, outputs in zip(groups, public, strict=True):
            self._expected(group, outputs)
        here = [[output.to(self.device) for output in outputs] for outputs in public]
        self.hiding.learn_public(here, groups, step)

    def _expected(self, sent: Sent | None, outputs: Sequence[Tensor]) -> Sent:
        if sent is None:
            raise ClientError("the server decodes what this client has not encoded")
        shapes = [tuple(output.shape) for output in outputs]
        if shapes != [tuple(message.shape) for message in sent.messages]:
            raise ClientError(f"the server answers with outputs of shapes {shapes}")
        check_received("the trunk's output of message", outputs, bounded=True)
        return sent

    @exchange(place=("start",))
    def encode_test(self, *, kind: str, start: int, stop: int) -> dict[str, Any]:
        """Send test examples `start` to `stop`, hidden as in training; the reply is as `encode`'s.

        Raises
        ------
        ClientError
            If it is not these texts' turn, or they are more than a batch. Each is sent once a
            round, in order, and on a node once in a run under the same head and tail: scores of
            single texts would reveal their labels, and a text that is mixed twice becomes readable.
        """
        self.segments.eval()
        with torch.no_grad():
            return self._send_test(self._evaluation.begin(kind, start, stop))

    def _send_test(self, batch: MaskedBatch) -> dict[str, Any]:
        evaluation = self._evaluation
        self.hiding.charge(*evaluation.going)
        # Repeatable secrets are drawn from torch's generator, and each batch has its own.
        with seeded_draws(self.device, self.order.seed_for("test", evaluation.messages)):
            evaluation.awaiting = self._obfuscated(batch, "test inputs")
        evaluation.messages += 1
        return evaluation.awaiting.outgoing()

    @exchange(place=())
    def decode_test(self, *, outputs: Sequence[Tensor]) -> dict[str, Any]:
        """Score the trunk's outputs of a test batch.

        Returns
        -------
        {}; or, if texts are generated token by token, a reply like `encode`'s for the next token.
        """
        sent = self._expected(self._evaluation.awaiting, outputs)
        self.segments.eval()
        with torch.no_grad():
            here = [output.to(self.device) for output in outputs]
            hidden = checked_hidden(self.recover(here, sent), self.hiding.side.width)
            with enough_values("tail"):
                logits: object = self.hiding.logits(hidden, sent)
            evaluation, examples = self._evaluation, len(sent.batch.inputs)
            own = evaluation.scores is not TextScores
            following = evaluation.add(checked_logits(logits, examples, own_scores=own), sent.batch)
            self._evaluation.awaiting = None
            return {} if following is None else self._send_test(following)

    @exchange(place=())
    def score(self, *, kind: str) -> dict[str, Any]:
        """Return the result of an evaluation: {"examples": number, "scores": numbers by name}.

        If the hiding accounts for what is sent, there are also "epsilons": by name, what has been
        spent until now, with this evaluation. Of the texts only the means leave the client, never
        the score of a single one. That hides no labels: a server that has the tail finds those that
        give the mean loss, at least of few texts, and one that chooses the trunk's outputs can
        write the labels as its digits.
        """
        scores = self._evaluation.finish(kind)
        epsilons = {n: own for n, own in self.hiding.metrics().items() if is_epsilon(n)}
        told = {"epsilons": epsilons} if epsilons else {}
        return {"examples": scores.examples, "scores": plain_scores(scores.result()), **told}
