"""Replay of clients' tails: a server that has a tail's first weights takes its steps along with it.

A tail begins with weights that everyone can build, or that the server sent. It sees the trunk's
outputs, which the server computed, and learns by an optimizer that is public. Its labels show in
the gradients that the client returns. So the server knows the tail before every step.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flwr_splitmix.attacks.recording.disk_trace import DiskTrace
from flwr_splitmix.attacks.recording.packing import UShapeStep
from flwr_splitmix.optimizers import OptimizerFactory, ScheduledOptimizer
from flwr_splitmix.schedule import Schedule
from flwr_splitmix.storage import under

DROPOUTS = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip

MAX_EXACT_MISFIT = 0.01
"""Largest misfit, relative to the returned gradients, at which a tail counts as the client's."""


@dataclass(frozen=True)
class Tails:
    """A server's record of its clients' tails, each with one class for an example.

    Parameters
    ----------
    first
        A tail with the weights that clients begin with, unless they are averaged: (hidden states
        (b, T, d), mask (b, 1)) to logits (b, L).
    steps
        Returns the recorded steps, oldest first.
    lengths
        Steps of each round.
    averaged
        Returns the head and tail that a round started from, by "head.*" and "tail.*"; None if
        they are not averaged, or were not kept.
    num_rounds
        Rounds of the whole run, for the schedule.
    optimizer, schedule
        The clients'; None for the defaults.
    lam
        Share of an example's own label in its target; the next example in the batch has the rest.
    """

    first: nn.Module = field(repr=False)
    steps: Callable[[], Iterable[UShapeStep]] = field(repr=False)
    lengths: Mapping[int, int]
    averaged: Callable[[int], Mapping[str, Tensor] | None] = field(repr=False)
    num_rounds: int
    optimizer: OptimizerFactory | None = field(default=None, repr=False)
    schedule: Schedule | None = field(default=None, repr=False)
    lam: float = 1.0

    @classmethod
    def of(cls, trace: DiskTrace, first: nn.Module, num_rounds: int, **more: Any) -> Tails:
        """Return a trace's record of tails; all else is as in the constructor."""
        lengths = {server_round: number + 1 for server_round, number in trace.places}
        steps = partial(_of_u_shape, trace)
        return cls(first, steps, lengths, trace.segment, num_rounds, **more)

    def progress(self, step: UShapeStep) -> float:
        """Return a step's place in the run, in rounds."""
        length = max(self.lengths.get(step.server_round, 1), step.number + 1)
        return step.server_round - 1 + step.number / length


@dataclass(frozen=True)
class TailReading:
    """The labels of one client's batch, as its returned gradient shows them.

    Parameters
    ----------
    labels
        int64 (b,).
    margins
        (b,): how much nearer the gradient is to that of its label than to that of any other,
        relative to its own norm.
    misfit
        Distance of the batch's gradient from that of these labels, relative to its own norm.
    scores
        float64 (b, L): log-likelihood of each class if the misfit is Gaussian noise, up to a
        constant; None where each example is mixed with the next.
    """

    labels: Tensor
    margins: Tensor
    misfit: float
    scores: Tensor | None = None


class TailReplay:
    """One client's tail, replayed from the first step that is known.

    Parameters
    ----------
    tails
        The server's record.
    client
        The client.
    device
        Where to compute.

    Attributes
    ----------
    tail
        The replayed tail.
    known
        Whether the tail's weights are known.
    missing
        (round, step) of the first step before which batches of the client are missing; None if
        there are none.
    """

    def __init__(self, tails: Tails, client: int, device: torch.device | None = None) -> None:
        self.client = client
        self.known = False
        self.missing: tuple[int, int] | None = None
        self._tails = tails
        self.tail = copy.deepcopy(tails.first).to(device or torch.device("cpu")).train()
        for module in self.tail.modules():  # another draw would be worse than none
            if isinstance(module, DROPOUTS):
                module.eval()
        self._optimizer = ScheduledOptimizer(self.tail, tails.optimizer, tails.schedule)
        self._round, self._drawn = 0, 0

    def meet(self, step: UShapeStep) -> None:
        """Note a step before it is read or followed: load what a round starts from, miss others."""
        drawn = step.drawn[self.client]
        if drawn != self._drawn:
            self.missing = self.missing or (step.server_round, step.number)
        elif not drawn:
            self.known = True
        self._drawn = drawn + 1
        if step.server_round == self._round:
            return
        self._round = step.server_round
        averaged = self._tails.averaged(step.server_round)
        if averaged is not None:
            self._load(under("tail", averaged))
            self.known = True

    def read(self, step: UShapeStep) -> TailReading:
        """Return the labels of the client's batch in a step that it finished."""
        returned, _, gradients = self._passes(step)
        if self._tails.lam < 1:
            return self._mixed(torch.stack([*gradients]), returned)
        distances = _distances(gradients, returned)
        return self._reading(distances, returned, distances.argmin(0))

    def follow(self, step: UShapeStep, before: Tensor | None = None) -> TailReading:
        """Return the labels of a batch, and take the step that the client took with them.

        If the gradients are noisy, the step is taken with each class as likely as its gradient.

        Parameters
        ----------
        before
            float64 (b, L): what is known of these examples, as `TailReading.scores`; None for
            nothing.
        """
        returned, logits, gradients = self._passes(step)
        lam = self._tails.lam
        if lam < 1:
            reading = self._mixed(torch.stack([*gradients]), returned)
            labels = reading.labels.to(logits.device)
            targets = [(lam, labels), (1 - lam, labels.roll(-1, 0))]
        else:
            distances = _distances(gradients, returned)
            scores = _scores(distances, returned[0].numel())
            evidence = scores if before is None else scores + before.to(scores.device)
            labels, likely = evidence.argmax(1), evidence.softmax(1)
            sure = bool((likely.amax(1) > 1 - 1e-9).all())
            targets = [(1.0, labels if sure else likely.float())]
            reading = self._reading(distances, returned, labels, scores)
        self._optimizer.zero_grad()
        loss = torch.stack([weight * F.cross_entropy(logits, t) for weight, t in targets]).sum()
        torch.autograd.backward(loss)
        self._optimizer.step(self._tails.progress(step), self._tails.num_rounds)
        return reading

    def _passes(self, step: UShapeStep) -> tuple[Tensor, Tensor, Iterator[Tensor]]:
        """Return the returned gradient (b, T, d), the logits, and each class's gradient in turn."""
        device = next(self.tail.parameters()).device
        hidden = step.outputs[self.client][0].detach().to(device).float().requires_grad_()
        returned = step.returned[self.client][0].to(device).float()
        mask = torch.ones(len(hidden), 1, dtype=torch.int64, device=device)
        logits = self.tail(hidden.clone(), mask)

        def gradient(label: int) -> Tensor:
            loss = F.cross_entropy(logits, torch.full((len(hidden),), label, device=device))
            (hidden_gradient,) = torch.autograd.grad(loss, hidden, retain_graph=True)
            return self.expected(hidden_gradient)

        return returned, logits, map(gradient, range(logits.shape[1]))

    def expected(self, gradients: Tensor) -> Tensor:
        """Return a client's gradients (b, T, d) as they are before noise; here the same."""
        return gradients

    def _mixed(self, gradients: Tensor, returned: Tensor) -> TailReading:
        """Read labels of a batch whose examples are each mixed with the next.

        Parameters
        ----------
        gradients
            (L, b, T, d) of each class.
        """
        lam = self._tails.lam
        labels = _chain(_shares(gradients, returned), lam)
        rows = torch.arange(len(labels), device=labels.device)
        of_next = gradients[labels.roll(-1, 0), rows]
        mixtures = (lam * of_class + (1 - lam) * of_next for of_class in gradients)
        return self._reading(_distances(mixtures, returned), returned, labels)

    def _reading(
        self, distances: Tensor, returned: Tensor, labels: Tensor, scores: Tensor | None = None
    ) -> TailReading:
        """Judge labels by the distances (L, b) of each row from each class's gradient."""
        rows = torch.arange(len(labels), device=labels.device)
        label_distances = distances[labels, rows]
        apart = distances.clone()
        apart[labels, rows] = math.inf
        norms = returned.flatten(1).norm(dim=1).clamp_min(1e-30)
        margins = (apart.amin(0) - label_distances) / norms
        misfit = float(label_distances.norm() / returned.norm().clamp_min(1e-30))
        cpu_scores = None if scores is None else scores.cpu()
        return TailReading(labels.cpu(), margins.nan_to_num(0, 0, 0).cpu(), misfit, cpu_scores)

    @torch.no_grad()
    def _load(self, weights: Mapping[str, Tensor]) -> None:
        for name, parameter in self.tail.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])


def _of_u_shape(trace: DiskTrace) -> Iterator[UShapeStep]:
    return (step for step in trace.steps() if isinstance(step, UShapeStep))


def _distances(gradients: Iterable[Tensor], returned: Tensor) -> Tensor:
    """Return the distance of each row from each class's gradient, one at a time: (L, b)."""
    return torch.stack([(gradient - returned).flatten(1).norm(dim=1) for gradient in gradients])


def _scores(distances: Tensor, numbers: int) -> Tensor:
    """Return how likely each class is, (b, L), at its distance in a gradient of so many numbers."""
    squares = distances.double().square().mT
    variance = squares.amin(1).mean() / numbers
    return (squares.amin(1, keepdim=True) - squares) / (2 * variance.clamp_min(1e-300))


def _shares(gradients: Tensor, returned: Tensor) -> Tensor:
    """Return the shares (b, L) of classes, sum 1, whose gradients fit the returned best."""
    columns = gradients.flatten(2).permute(1, 2, 0).double()
    base = columns[:, :, :1]
    target = returned.flatten(1).double().unsqueeze(2) - base
    others = torch.linalg.lstsq(columns[:, :, 1:] - base, target).solution[:, :, 0]
    return torch.cat([1 - others.sum(1, keepdim=True), others], dim=1)


def _chain(shares: Tensor, lam: float) -> Tensor:
    """Return the labels int64 (b,) of a batch whose targets mix each label with the next.

    The last is mixed with the first: for each class of the first, the best chain is found.
    """
    count, classes = shares.shape
    each = torch.eye(classes, dtype=shares.dtype, device=shares.device)
    mixed = lam * each[:, None] + (1 - lam) * each[None]
    fits = -(shares[:, None, None] - mixed).square().sum(-1)  # (b, own, next)
    best, chosen = -math.inf, [0] * count
    for first in range(classes):
        score = torch.full((classes,), -math.inf, dtype=shares.dtype, device=shares.device)
        score[first], came = 0.0, []
        for fit in fits:
            score, before = (score[:, None] + fit).max(0)
            came.append(before)
        if float(score[first]) > best:
            best, path = float(score[first]), [first]
            for before in reversed(came):
                path.append(int(before[path[-1]]))
            chosen = path[:0:-1]
    return torch.tensor(chosen, device=shares.device)
