"""Scores of answers that a client generates with the server's trunk, one token per exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.data.texts.text_set import IGNORED
from flwr_splitmix.scoring.answers import bleu, exact_match, meteor, rouge_l
from flwr_splitmix.scoring.texts import TextScores


@dataclass
class _Answer:
    """An answer generated so far; `ids` begin with the `prompt` tokens of the prompt.

    `right` is None for a text without an answer, which is not scored.
    """

    ids: list[int]
    prompt: int
    right: list[int] | None
    ended: bool = False

    @property
    def predicted(self) -> list[int]:
        return self.ids[self.prompt :]


class GenerationScores(TextScores):
    """Adds scores of greedily decoded answers to loss, accuracy and perplexity.

    The scores are exact match, ROUGE-L, BLEU and METEOR; see `scoring.answers`.

    Each test batch is sent once with its right answers, which gives the loss and the first tokens,
    and then once per further token. All texts of a batch are sent until the last answer has ended,
    so the server learns only the length of the longest one. Every exchange carries the whole
    texts: the trunk keeps no cache. Of a text that is all answer the first token is prompt.

    Parameters
    ----------
    decode
        Converts tokens to text.
    end
        The token that ends an answer.
    max_new_tokens
        Most tokens of an answer; >= 1.
    max_length
        Most tokens of prompt and answer together.
    pad_to
        Length to which texts are padded after the first exchange; None: the longest text.

    Raises
    ------
    ValueError
        If `max_new_tokens` is below 1.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        *,
        end: int,
        max_new_tokens: int,
        max_length: int,
        pad_to: int | None = None,
    ) -> None:
        super().__init__()
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {max_new_tokens}; it must be at least 1")
        self.decode = decode
        self.end = end
        self.max_new_tokens = max_new_tokens
        self.max_length = max_length
        self.pad_to = pad_to
        self.predicted: list[str] = []
        self.right: list[str] = []
        self._answers: list[_Answer] = []

    def begin(self, batch: MaskedBatch) -> MaskedBatch:
        """Return what to send first: prompts with their right answers."""
        self._answers = []
        return batch

    def add(self, logits: Tensor, batch: MaskedBatch) -> MaskedBatch | None:
        """Score the right answers the first time, then add the next token to each answer.

        Returns
        -------
        The batch to send next; None when all answers have ended.
        """
        if not self._answers:
            super().add(logits, batch)
            self._answers = [self._of(*row) for row in zip(batch.inputs, batch.labels, strict=True)]
        for answer, row in zip(self._answers, logits, strict=True):
            if not answer.ended:
                # The logits after a prompt do not depend on the right answer that follows it.
                self._write(answer, int(row[len(answer.ids) - 1].argmax()))
        if all(answer.ended for answer in self._answers):
            for answer in self._answers:
                if answer.right is not None:
                    self.predicted.append(self.decode(answer.predicted).strip())
                    self.right.append(self.decode(answer.right).strip())
            self._answers = []
            return None
        return self._batch(batch.inputs.device)

    def _of(self, ids: Tensor, labels: Tensor) -> _Answer:
        # Nothing predicts a text's first token, so it is prompt even if it has a label.
        answered = (labels[1:] != IGNORED).nonzero().flatten() + 1
        if not len(answered):
            return _Answer(ids.tolist(), len(ids), None, ended=True)
        prompt = int(answered[0])
        right = [token for token in labels[answered].tolist() if token != self.end]
        return _Answer(ids[:prompt].tolist(), prompt, right)

    def _write(self, answer: _Answer, token: int) -> None:
        if token != self.end:
            answer.ids.append(token)
        full = len(answer.predicted) >= self.max_new_tokens or len(answer.ids) >= self.max_length
        answer.ended = token == self.end or full

    def _batch(self, device: torch.device) -> MaskedBatch:
        length = self.pad_to or max(len(answer.ids) for answer in self._answers)
        ids = torch.zeros(len(self._answers), length, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, answer in enumerate(self._answers):
            ids[row, : len(answer.ids)] = torch.tensor(answer.ids)
            mask[row, : len(answer.ids)] = 1
        labels = torch.full_like(ids, IGNORED)
        return MaskedBatch(ids.to(device), mask.to(device), labels.to(device))

    def result(self) -> dict[str, float]:
        """Return loss, accuracy, perplexity and the scores of answers.

        These scores are "exact_match", "rouge_l" and "meteor", 0 to 1, and "bleu", 0 to 100.
        """
        pairs = list(zip(self.predicted, self.right, strict=True))
        return {
            **super().result(),
            "exact_match": sum(exact_match(s, r) for s, r in pairs) / max(len(pairs), 1),
            "rouge_l": rouge_l(self.predicted, self.right),
            "bleu": bleu(self.predicted, self.right),
            "meteor": meteor(self.predicted, self.right),
        }
