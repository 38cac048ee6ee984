"""The online adaptive attack: a network that learns from clients' calibration on public texts."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.texts.adaptive import OFFLINE_EPOCHS, network_input
from flwr_splitmix.attacks.texts.sip import BATCH, DROPOUT, HELD_OUT, HIDDEN, LEARNING_RATE
from flwr_splitmix.attacks.texts.view import PublicTexts, TextReading, TextRelease, TextView
from flwr_splitmix.attacks.texts.vocabulary import ReaderAttack

Pair = tuple[Tensor, Tensor]
"""Network input for a text's messages (T, D), and its plain states (t, d), t <= T."""


class Restorer(nn.Module):
    """Messages to hidden states: the sum of a linear map and a GRU's output.

    Parameters
    ----------
    inputs, width
        D of the input for the messages, and d of the states.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(inputs, elementwise_affine=False)
        self.gru = nn.GRU(inputs, HIDDEN, batch_first=True)
        self.dropout = nn.Dropout(DROPOUT)
        self.output = nn.Linear(HIDDEN, width)
        self.straight = nn.Linear(inputs, width, bias=False)

    def forward(self, messages: Tensor) -> Tensor:
        """Return estimates (b, T, d), of arbitrary scale, for inputs (b, T, D)."""
        inputs = self.norm(messages)
        read, _ = self.gru(inputs)
        restored: Tensor = self.straight(inputs) + self.output(self.dropout(read))
        return restored


class AdaptiveOnline(ReaderAttack):
    """Learn from public texts that a client sends mixed and plain, then invert private mixtures.

    Calibration shows the server true messages with true secrets, together with the hidden states
    that decoding must give; so does refinement, with the current heads. Two networks learn from
    that: "joint", from all messages concatenated, and "cancelled", from their sum; with a single
    message, which may be noisy, both are the same. The states they restore for a private text are
    read as in `vocabulary`, with the base model's head.
    """

    name = "adaptive-online"
    needs: ClassVar[frozenset[str]] = frozenset({"base model", "decoder", "public releases"})
    slow = False
    source = "MixGuard, equation 30 and Table V (online); the network is ours"

    def learn(self, view: TextView, public: PublicTexts | None) -> None:
        """Train the networks."""
        super().learn(view, public)
        ways = ("joint", "cancelled") if "several messages" in view.available else ("joint",)
        self.restorers = {
            way: train_restorer(
                [
                    (network_input(one.messages, way).float(), one.states)
                    for one in view.public_releases
                ],
                self.budget.share(len(ways) - number),
                epochs=OFFLINE_EPOCHS[self.budget.scale],
                seed=self.seed,
            )
            for number, way in enumerate(ways)
        }

    def readings(self, release: TextRelease, view: TextView) -> Iterator[TextReading]:
        """Read what each network restores."""
        for way, restorer in self.restorers.items():
            with torch.no_grad():
                restored = restorer(network_input(release.messages, way).float()[None])[0]
            yield *self.reader.read(restored, self.pairs), way


def train_restorer(
    pairs: Sequence[Pair], budget: Budget, *, epochs: int, seed: int = 0
) -> Restorer:
    """Train a network and return the epoch that restores held-out texts best.

    The newest texts are held out.
    """
    held_count = min(HELD_OUT, max(1, len(pairs) // 10))
    held_out, training = pairs[-held_count:], pairs[:-held_count] or pairs
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Restorer(pairs[0][0].shape[1], pairs[0][1].shape[1])
        optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
        per_epoch = -(-len(training) // BATCH)
        best, reached = copy.deepcopy(model), float("inf")
        for step in budget.steps(epochs * per_epoch, "adaptive-online"):
            number = step % per_epoch
            if number == 0:
                order = torch.randperm(len(training)).tolist()
            model.train()
            rows = [training[i] for i in order[number * BATCH : (number + 1) * BATCH]]
            loss = _distance(model, rows)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if number == per_epoch - 1:
                model.eval()
                with torch.no_grad():
                    distance = float(_distance(model, held_out))
                if distance < reached:
                    best, reached = copy.deepcopy(model), distance
    return (best if reached < float("inf") else model).eval()


def _distance(model: Restorer, rows: Sequence[Pair]) -> Tensor:
    """Return the mean over places of 1 - cos."""
    messages = nn.utils.rnn.pad_sequence([m for m, _ in rows], batch_first=True)
    restored = model(messages)
    fits = [
        F.cosine_similarity(one[: len(states)], states.float(), dim=1)
        for one, (_, states) in zip(restored, rows, strict=True)
    ]
    return 1 - torch.cat(fits).mean()
