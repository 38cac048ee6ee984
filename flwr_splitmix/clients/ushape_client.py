"""The client of the U shape: head, tail, data, labels and loss here, the trunk at the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from flwr_splitmix.clients.client import Client, ClientError, Order, exchange
from flwr_splitmix.clients.lower import check_fits
from flwr_splitmix.data.batches import Batches, Example, fetch
from flwr_splitmix.data.texts.batch import TextBatch
from flwr_splitmix.device import pick_device
from flwr_splitmix.schedule import (
    OptimizerFactory,
    Schedule,
    ScheduledOptimizer,
    WarmupCosine,
    adamw,
)
from flwr_splitmix.scoring.texts import Scores, TextScores, text_loss


@dataclass
class Sent:
    """What a client has sent to the trunk, and what it needs to read the answer.

    Parameters
    ----------
    messages
        Tensors (b, T, d) in the head's graph.
    mask
        int64 (b, T): what the trunk is told to attend to.
    batch
        The texts that the answer is about.

    A subclass may add to it what it needs to read the answer; that stays here.
    """

    messages: list[Tensor]
    mask: Tensor
    batch: TextBatch


class UShapeClient(Client):
    """Head and tail of a model, its data and its optimizer; neither texts nor labels leave it.

    A step is two exchanges: `encode` (the backward pass of the last step through the head, the
    optimizer's step, the head's forward pass) and `decode` (tail, loss, and back to the trunk).

    A subclass that hides what it sends overrides `obfuscate`, `recover` and `perturb`.

    Parameters
    ----------
    head
        (ids int64 (b, T), mask (b, T)) to hidden states (b, T, d).
    tail
        (hidden states (b, T, d), mask (b, T)) to logits (b, T, V) or (b, L).
    data
        Training texts: a `TextSet`, or any data set whose batches are like its.
    test_data, benchmark_data
        This client's own test split for `federated` evaluation, and a public test set common to
        all clients for `benchmark` evaluation.
    optimizer, schedule
        Of head and tail together; by default AdamW (lr 1e-3, weight decay 0.05) with a cosine.
    scores
        Makes what an evaluation is scored by; by default loss and accuracy.
    repeatable_secrets
        For tests and reproductions: secrets follow from the run's seed, which the server knows.

    Raises
    ------
    ClientError
        If there is no training text.
    """

    def __init__(
        self,
        head: nn.Module,
        tail: nn.Module,
        data: Dataset[Example],
        *,
        batch_size: int = 16,
        test_data: Dataset[Example] | None = None,
        benchmark_data: Dataset[Example] | None = None,
        optimizer: OptimizerFactory | None = None,
        schedule: Schedule | None = None,
        device: str = "auto",
        scores: Scores | None = None,
        repeatable_secrets: bool = False,
    ) -> None:
        super().__init__()
        self.device = pick_device(device)
        self.head, self.tail = head.to(self.device), tail.to(self.device)
        # Together, so that an embedding which both use is one parameter.
        self.segments = nn.ModuleDict({"head": self.head, "tail": self.tail})
        self.batches = Batches(data, batch_size)
        if not self.batches.examples:
            raise ClientError("this client has no training data")
        self.tests = {"federated": test_data, "benchmark": benchmark_data}
        self.optimizer = ScheduledOptimizer(
            self.segments, optimizer or adamw(), schedule or WarmupCosine()
        )
        self.scores = scores or TextScores
        self.repeatable_secrets = repeatable_secrets
        self._forget_round()

    def _forget_round(self) -> None:
        self.steps = 0
        self._losses: list[float] = []
        self._sent: Sent | None = None
        self._progress = 0.0
        self._decoded = False
        self._test: Sent | None = None
        self._scoring: TextScores | None = None
        self._scored: dict[str, TextScores] = {}
        self._seen: dict[str, int] = {}

    def attach(self, order: Order, arrays: Mapping[str, Tensor] | None) -> dict[str, Any]:
        """Begin a round and describe the data: sizes, batch size, width of the hidden states.

        No arrays, or none in them: the client goes on with the head and tail that it has.
        """
        self._order = order
        self._forget_round()
        if arrays:
            self._load(arrays, "the server's head and tail do not fit this client's")
        return {
            "num-examples": self.batches.examples,
            "batch-size": self.batches.size,
            "width": self._width(),
            "calibration-steps": 0,
            **{
                f"{kind}-examples": 0 if data is None else len(data)  # type: ignore[arg-type]
                for kind, data in self.tests.items()
            },
        }

    def _width(self) -> int:
        batch = self._batch_of(self.batches.data, np.arange(1))
        self.head.eval()
        with torch.inference_mode():
            hidden = self.head(batch.ids, batch.mask)
        if hidden.dim() != 3:
            raise ClientError(
                f"a head must return (batch, tokens, width), this one {tuple(hidden.shape)}"
            )
        return int(hidden.shape[2])

    def _batch_of(self, data: Dataset[Example], indices: np.ndarray) -> TextBatch:
        return TextBatch.of(fetch(data, indices), self.device)

    # What a subclass overrides.

    def obfuscate(self, batch: TextBatch) -> Sent:
        """Turn texts into what is sent; here the head's hidden states as they are."""
        return Sent([self.head(batch.ids, batch.mask)], batch.mask, batch)

    def recover(self, outputs: Sequence[Tensor], sent: Sent) -> Tensor:
        """Turn the trunk's outputs, in their graph, into its hidden states of the texts."""
        return outputs[0]

    def logits(self, hidden: Tensor, sent: Sent) -> Tensor:
        """Return what the tail says of the texts: (b, L), or (b, T, V) for the batch's tokens."""
        said: Tensor = self.tail(hidden, sent.batch.mask)
        return said

    def loss(self, hidden: Tensor, sent: Sent) -> Tensor:
        """Return the mean loss of the texts, given what `recover` made of the outputs."""
        return text_loss(self.logits(hidden, sent), sent.batch.labels)

    def perturb(self, gradient: Tensor, hidden: Tensor, sent: Sent) -> Tensor:
        """Return what goes back to the trunk in place of the loss's gradient at `hidden`."""
        return gradient

    def read(self, outputs: Sequence[Tensor], sent: Sent) -> Tensor:
        """Return the logits of a test batch, given the trunk's outputs."""
        return self.logits(self.recover(outputs, sent), sent)

    def send_public(self, number: int) -> dict[str, Any]:
        """Return what of public texts travels with the messages of a step; here nothing."""
        return {}

    def receive_public(self, public: Sequence[Sequence[Tensor]]) -> None:
        """Take the trunk's outputs of the public texts that were sent last."""
        raise ClientError("the server answers with public texts that were not sent")

    # What the server calls.

    @exchange
    def encode(
        self,
        *,
        number: int,
        progress: float,
        gradient: Sequence[Tensor] | None,
        last: bool = False,
    ) -> dict[str, Any]:
        """Finish the last step at the head, and send the messages of this one.

        Parameters
        ----------
        number
            The step of the round, from 0.
        progress
            Global progress in rounds, for the schedule.
        gradient
            The last step's gradient at each message, (b, T, d); None if it did not arrive: then
            no optimizer step is taken.
        last
            Whether the round ends here, and nothing more is sent.

        Returns
        -------
        {"messages": [tensor (b, T, d), ...], "mask": uint8 (b, T)}, and what of public texts goes
        with them; or {}.
        """
        self._learn(gradient)
        if last:
            return {}
        public = self.send_public(number)
        example = self.batches.next_batch(self.order.seed, self.order.client)
        self.segments.train()
        self.optimizer.zero_grad()
        self._sent = self.obfuscate(TextBatch.of(example, self.device))
        self._progress, self._decoded = progress, False
        return outgoing(self._sent) | public

    def _learn(self, gradient: Sequence[Tensor] | None) -> None:
        sent, self._sent = self._sent, None
        if sent is None or gradient is None or not self._decoded:
            return
        pairs = [
            (message, part.to(message.device))
            for message, part in zip(sent.messages, gradient, strict=True)
            if message.requires_grad
        ]
        self.segments.train()  # a checkpointed layer runs again, and must do what it did
        if pairs:  # a frozen head has no graph
            torch.autograd.backward([m for m, _ in pairs], [g for _, g in pairs])
        self.optimizer.step(self._progress, self.order.num_rounds)
        self.steps += 1

    @exchange
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
            What the trunk made of each message, (b, T, d).
        public
            The same of each group of public texts that went with them.

        Returns
        -------
        {"gradients": [tensor (b, T, d), ...]}: of the mean loss at each output.
        """
        sent = self._expected(self._sent, outputs)
        leaves = [output.to(self.device).detach().requires_grad_() for output in outputs]
        recovered = self.recover(leaves, sent)
        hidden = recovered.detach().requires_grad_()
        loss = self.loss(hidden, sent)
        loss.backward()  # type: ignore[no-untyped-call]
        assert hidden.grad is not None
        gradients = torch.autograd.grad(
            recovered, leaves, self.perturb(hidden.grad, hidden.detach(), sent)
        )
        self._losses.append(loss.item())
        self._decoded = True
        if public is not None:
            self.receive_public(public)
        return {"gradients": list(gradients)}

    def _expected(self, sent: Sent | None, outputs: Sequence[Tensor]) -> Sent:
        if sent is None:
            raise ClientError("the server decodes what this client has not encoded")
        shapes = [tuple(output.shape) for output in outputs]
        if shapes != [tuple(message.shape) for message in sent.messages]:
            raise ClientError(f"the server answers with outputs of shapes {shapes}")
        return sent

    @exchange
    def encode_test(self, *, kind: str, start: int, stop: int) -> dict[str, Any]:
        """Send test texts `start` to `stop`, hidden as in training; the reply is `encode`'s.

        Raises
        ------
        ClientError
            If it is not the turn of these texts. Each is sent once a round, in order: scores of
            single texts would be their labels, and a text that is mixed twice is readable.
        """
        data = self.tests.get(kind)
        if data is None:
            raise ClientError(f"this client has no {kind} test data")
        size, seen = len(data), self._seen.get(kind, 0)  # type: ignore[arg-type]
        if self._test is not None or start != seen or not start < stop <= size:
            raise ClientError(
                f"the server asks for {kind} test texts {start} to {stop}; next is {seen} of {size}"
            )
        self._seen[kind] = stop
        if kind not in self._scored:
            self._scored[kind] = self.scores()
        self._scoring = self._scored[kind]
        self.segments.eval()
        with torch.inference_mode():
            batch = self._batch_of(data, np.arange(start, stop))
            self._test = self.obfuscate(self._scoring.begin(batch))
            return outgoing(self._test)

    @exchange
    def decode_test(self, *, outputs: Sequence[Tensor]) -> dict[str, Any]:
        """Score the trunk's outputs of a test batch.

        Returns
        -------
        {}; or, where texts are generated token by token, `encode`'s reply for the next one.
        """
        sent = self._expected(self._test, outputs)
        assert self._scoring is not None
        self.segments.eval()
        with torch.inference_mode():
            logits = self.read([output.to(self.device) for output in outputs], sent)
            following = self._scoring.add(logits, sent.batch)
            self._test = None if following is None else self.obfuscate(following)
            return {} if self._test is None else outgoing(self._test)

    @exchange
    def score(self, *, kind: str) -> dict[str, Any]:
        """Return what an evaluation found: {"examples": number, "scores": numbers by name}.

        Only these means leave the client, no answer to any single text.
        """
        scored, data = self._scored.get(kind), self.tests.get(kind)
        whole = data is not None and self._seen.get(kind) == len(data)  # type: ignore[arg-type]
        if scored is None or not whole or self._test is not None:
            raise ClientError(f"this client has not scored its {kind} test data, or not all of it")
        del self._scored[kind]
        return {"examples": scored.examples, "scores": scored.result()}

    # What links call.

    def release(self) -> tuple[dict[str, Tensor], dict[str, int | float]]:
        """End the round: drop the graph, return head and tail, and the metrics."""
        metrics: dict[str, int | float] = {
            "num-examples": self.batches.examples,
            "num-steps": self.steps,
            "train-loss": sum(self._losses) / len(self._losses) if self._losses else 0.0,
        }
        self._forget_round()
        return self.weights(), metrics

    def weights(self) -> dict[str, Tensor]:
        """Return the trainable parameters of head and tail; bfloat16 as float32.

        Flower's arrays are numpy's, which has no bfloat16.
        """
        return {
            name: t.detach().cpu().float() if t.dtype == torch.bfloat16 else t.detach().cpu()
            for name, t in self._trained().items()
        }

    def _trained(self) -> dict[str, Tensor]:
        return {n: p for n, p in self.segments.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def _load(self, arrays: Mapping[str, Tensor], what: str) -> None:
        own = self._trained()
        check_fits(own, arrays, what)
        for name, parameter in own.items():
            parameter.copy_(arrays[name])

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return head, tail, optimizer and data position."""
        tensors = {f"segment.{name}": t for name, t in self._trained().items()}
        meta: dict[str, Any] = {"drawn": self.batches.drawn}
        moments, optimizer = self.optimizer.state()
        return tensors | moments, meta | optimizer

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Continue from `state`: the same segments, optimizer and data are assumed."""
        own = {
            k.removeprefix("segment."): t for k, t in tensors.items() if k.startswith("segment.")
        }
        self._load(own, "the kept head and tail do not fit this client's")
        self.batches.drawn = int(meta["drawn"])
        self.optimizer.restore(tensors, meta)


def outgoing(sent: Sent) -> dict[str, Any]:
    """Return what the server gets of a batch."""
    return {
        "messages": [message.detach() for message in sent.messages],
        "mask": sent.mask.to(torch.uint8),
    }
