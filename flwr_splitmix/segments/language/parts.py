"""Head, trunk and tail: the three parts of a language model, and their description."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.segments.language.cut import LanguageCut
from flwr_splitmix.segments.language.layers import Layers, positions_of
from flwr_splitmix.segments.language.layouts.layout import Layout, ModelKind, Task


class Part(nn.Module):
    """Base of the parts: some layers of a model of one family."""

    def __init__(self, stack: Layers, layout: Layout) -> None:
        super().__init__()
        self.stack = stack
        self.layout = layout

    def _check(self, hidden: Tensor) -> None:
        width = self.stack.config.hidden_size
        if hidden.ndim != 3 or hidden.shape[-1] != width:
            raise ValueError(
                f"hidden states have shape {tuple(hidden.shape)}; expected (texts, tokens, {width})"
            )


class Head(Part):
    """Embeddings and first layers: token ids to hidden states.

    `head(ids, mask, cache)` takes ids, int64 (b, T), a mask, 0/1 (b, T) or None for no padding,
    and returns (b, T, d). With a cache (a transformers `DynamicCache`), `ids` are the new tokens,
    and the mask covers cached and new tokens.

    Without a cache, positions are counted from 0 whatever the padding. With padding on the left,
    OPT, RoBERTa (also XLM-RoBERTa and CamemBERT) and MPNet in parts then differ from the whole
    model, which skips padding: pad on the right.
    """

    def __init__(self, embedding: nn.Module, stack: Layers, layout: Layout) -> None:
        super().__init__(stack, layout)
        self.embedding = embedding

    def forward(  # noqa: D102
        self, ids: Tensor, mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        if ids.ndim != 2 or ids.dtype != torch.int64:
            raise ValueError(
                f"token ids have shape {tuple(ids.shape)} and type {ids.dtype}; expected "
                "(texts, tokens) and torch.int64"
            )
        self._check_length(ids.shape[1] if mask is None else mask.shape[1], cache)
        hidden = self.embedding(ids, positions_of(ids, mask, cache, 0))
        out: Tensor = self.stack(hidden, mask, cache)
        return out

    def _check_length(self, length: int, cache: Any) -> None:
        most = self.layout.max_length(self.stack.config)
        past = 0 if cache is None else int(cache.get_seq_length(0))
        if self.layout.bounded and max(length, past + 1) > most:
            raise ValueError(f"texts of {max(length, past + 1)} tokens; the model takes {most}")


class Trunk(Part):
    """Layers between head and tail: `trunk(hidden (b, T, d), mask, cache)` returns (b, T, d)."""

    @property
    def width(self) -> int:
        """Width d of the hidden states."""
        return int(self.stack.config.hidden_size)

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of a text."""
        return int(self.layout.max_length(self.stack.config))

    def forward(  # noqa: D102
        self, hidden: Tensor, mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        self._check(hidden)
        out: Tensor = self.stack(hidden, mask, cache)
        return out


class Tail(Part):
    """Last layers, norm and output layer: hidden states to logits.

    `tail(hidden (b, T, d), mask, cache)` returns (b, T, V) for generation and (b, L) for
    classification: a decoder's at the last token in the mask, an encoder's at the first.
    """

    def __init__(self, stack: Layers, output: nn.Module, layout: Layout) -> None:
        super().__init__(stack, layout)
        self.output = output

    def forward(  # noqa: D102
        self, hidden: Tensor, mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        self._check(hidden)
        logits: Tensor = self.output(self.stack(hidden, mask, cache), mask)
        return logits


@dataclass
class LanguageParts:
    """The built parts of one language model, and a description of the whole.

    Attributes
    ----------
    head, trunk, tail
        None if the part was not requested.
    config, model_class
        Transformers configuration and class of the whole model.
    cut
        Numbers of layers in head and tail.
    kind, task
        Kind of the model, and its task.
    width
        Width d of the hidden states between the parts.
    layers, vocab_size, max_length
        Of the whole model; `max_length` in tokens.
    num_labels
        Number of classes L; None for generation.
    tied
        Whether the output layer's weights are the token embedding's. If so, and if both head and
        tail are built, they share one `nn.Parameter`: it is in both state dicts, loading or
        averaging both does the same work twice, and freezing it in one freezes it in the other.
        An optimizer over both must see it once, as in
        `nn.ModuleList([head, tail]).parameters()`. A head or tail built alone has its own copy.
    """

    head: Head | None
    trunk: Trunk | None
    tail: Tail | None
    config: Any
    model_class: type[Any]
    cut: LanguageCut
    kind: ModelKind
    task: Task
    width: int
    layers: int
    vocab_size: int
    max_length: int
    num_labels: int | None
    tied: bool

    def all_here(self) -> tuple[Head, Trunk, Tail]:
        """Return head, trunk and tail.

        Raises
        ------
        ValueError
            If a part was not built; the message names it.
        """
        if self.head is None or self.trunk is None or self.tail is None:
            parts = {"head": self.head, "trunk": self.trunk, "tail": self.tail}
            missing = " and ".join(name for name, part in parts.items() if part is None)
            raise ValueError(f"head, trunk and tail are needed here; not built: {missing}")
        return self.head, self.trunk, self.tail
