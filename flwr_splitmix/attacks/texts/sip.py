"""SIP: a recurrent network trained on public texts to read hidden states."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.texts.view import (
    PublicTexts,
    TextAttack,
    TextReading,
    TextRelease,
    TextView,
    head_states,
    readings_of,
)

__all__ = ["Inverter", "Sip", "train_inverter"]

HIDDEN, DROPOUT, BATCH = 256, 0.1, 6
LEARNING_RATE, WEIGHT_DECAY = 1e-3, 1e-5
EPOCHS = {"smoke": 1, "cpu": 3, "paper": 20}
HELD_OUT = 64
"""Most public texts on which the best epoch is chosen."""

Example = tuple[Tensor, Tensor]
"""Hidden states (T, d) of a text, and its tokens (T,); -1 at places that are not the text's."""


class Inverter(nn.Module):
    """A GRU and a linear layer: hidden states to words.

    Words that no public text contains cannot be learned, so they are not outputs.

    Parameters
    ----------
    width
        d of the hidden states.
    words
        int64 (v,): the tokens that have outputs.
    """

    words: Tensor

    def __init__(self, width: int, words: Tensor, *, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.gru = nn.GRU(width, hidden, batch_first=True)
        self.dropout = nn.Dropout(DROPOUT)
        self.output = nn.Linear(hidden, len(words))
        self.register_buffer("words", words)

    def forward(self, states: Tensor) -> Tensor:
        """Return logits (b, T, v) of hidden states (b, T, d) of any scale."""
        read, _ = self.gru(self.norm(states))
        logits: Tensor = self.output(self.dropout(read))
        return logits

    @torch.no_grad()
    def read(self, states: Tensor) -> tuple[Tensor, float]:
        """Read one text's states (T, d): int64 (T,), and the mean probability of the reading."""
        self.eval()
        likely, place = self(states[None].float())[0].softmax(-1).max(-1)
        return self.words[place], float(likely.mean())


def train_inverter(
    examples: Sequence[Example],
    draw: Callable[[int], Sequence[Example]],
    budget: Budget,
    *,
    epochs: int,
    seed: int = 0,
    name: str = "sip",
) -> Inverter:
    """Train an inverter and return the epoch that reads held-out texts best.

    Parameters
    ----------
    examples
        Held-out examples.
    draw
        Returns an epoch's training examples, which may be generated anew each time.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first = draw(0)
        words = torch.tensor(sorted({int(i) for _, ids in first for i in ids} - {-1}))
        model = Inverter(first[0][0].shape[-1], words)
        optimizer = torch.optim.Adam(
            model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY
        )
        at = torch.full((int(words.max()) + 1,), -1)
        at[words] = torch.arange(len(words))
        per_epoch = -(-len(first) // BATCH)
        best, reached = copy.deepcopy(model), -1.0
        for step in budget.steps(epochs * per_epoch, name):
            epoch, number = divmod(step, per_epoch)
            if number == 0:
                texts = first if epoch == 0 else draw(epoch)
                order = torch.randperm(len(texts)).tolist()
            model.train()
            rows = [texts[i] for i in order[number * BATCH : (number + 1) * BATCH]]
            states = nn.utils.rnn.pad_sequence([s.float() for s, _ in rows], batch_first=True)
            ids = nn.utils.rnn.pad_sequence([i for _, i in rows], True, -1)
            is_known = (ids >= 0) & (ids < len(at))
            labels = torch.where(is_known, at[ids.clamp(0, len(at) - 1)], -1)
            logits = model(states)
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if number == per_epoch - 1 and (accuracy := _accuracy(model, examples)) > reached:
                best, reached = copy.deepcopy(model), accuracy
    return (best if reached >= 0 else model).eval()


def _accuracy(model: Inverter, examples: Sequence[Example]) -> float:
    right = [(model.read(states)[0] == ids)[ids >= 0].double().mean() for states, ids in examples]
    return float(torch.stack(right).mean()) if right else 0.0


class Sip(TextAttack):
    """Learn to read hidden states, on public texts passed through the base model's head.

    It reads every message and their mean; it is not trained on mixtures.
    """

    name = "sip"
    needs: ClassVar[frozenset[str]] = frozenset({"base model", "public data"})
    slow = False
    source = "SIP of Chen et al., BiSR (CCS 2024)"

    def learn(self, view: TextView, public: PublicTexts | None) -> None:
        """Train the network."""
        assert public is not None
        parts = view.knowledge.parts()
        texts = [(head_states(parts, ids), ids) for ids in public]
        held_count = min(HELD_OUT, max(1, len(texts) // 10))
        self.inverter = train_inverter(
            texts[:held_count],
            lambda epoch: texts[held_count:] or texts,
            self.budget,
            epochs=EPOCHS[self.budget.scale],
            seed=self.seed,
        )

    def readings(self, release: TextRelease, view: TextView) -> Iterator[TextReading]:
        """Read every message and their mean."""
        for way, message in readings_of(release.messages).items():
            yield *self.inverter.read(message), way
