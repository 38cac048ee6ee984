"""A Qwen3-shaped model to be timed, whole and in three parts, and clients with random texts."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen3Config

from flwr_splitmix import adamw
from flwr_splitmix.clients import MixGuardClient, TextSet, UShapeClient
from flwr_splitmix.hiding.mixguard import MixGuardOptions
from flwr_splitmix.schedule import constant
from flwr_splitmix.scoring.texts import text_loss
from flwr_splitmix.segments.language import LanguageCut, LanguageParts, build_language_parts

K, M, SECRET_TOKENS = 3, 3, 20


@dataclass(frozen=True)
class Size:
    """Of the model, and of a batch: `batch` texts of `tokens` tokens."""

    hidden: int
    layers: int
    vocab: int
    batch: int
    tokens: int


SIZES = {"full": Size(512, 14, 12288, 4, 64), "small": Size(32, 3, 128, 2, 8)}


def build(size: Size) -> LanguageParts:
    """Make the parts with random weights: one layer in the head, one in the tail."""
    config = Qwen3Config(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=3 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=size.hidden // 8,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    return build_language_parts(config, LanguageCut(1, 1), seed=0)


def parameters(parts: LanguageParts) -> int:
    """Count the weights of all parts, those of the tied embedding once."""
    return sum(p.numel() for p in nn.ModuleList(parts.all_here()).parameters())


def texts(size: Size, batches: int = 4, seed: int = 0) -> TextSet:
    """Draw random texts, all of one length, each its own labels."""
    rng = torch.Generator().manual_seed(seed)
    drawn = torch.randint(3, size.vocab, (batches * size.batch, size.tokens), generator=rng)
    return TextSet(list(drawn), list(drawn))


def plain_client(parts: LanguageParts, size: Size) -> UShapeClient:
    """Make a client of the plain U shape, with copies of head and tail."""
    return UShapeClient(*_ends(parts), texts(size), **_training(size))


def mixguard_client(parts: LanguageParts, size: Size, *, refined: bool) -> MixGuardClient:
    """Make a client of MixGuard; a refined one takes a step of calibration in every step."""
    calibration: dict[str, Any] = (
        {"calibration_epochs": 1, "refine_every": 1}
        if refined
        else {"calibration_epochs": 0, "perturbation": "constant"}
    )
    options = MixGuardOptions(k=K, m=M, secret_tokens=SECRET_TOKENS, **calibration)
    return MixGuardClient(
        *_ends(parts),
        texts(size),
        texts(size, batches=1, seed=1),
        vocab_size=size.vocab,
        special_ids=(0, 1, 2),
        options=options,
        **_training(size),
    )


def _ends(parts: LanguageParts) -> tuple[nn.Module, nn.Module]:
    head, _, tail = parts.all_here()
    both = copy.deepcopy(nn.ModuleList([head, tail]))  # one copy of the embedding that they share
    return both[0], both[1]


def _training(size: Size) -> dict[str, Any]:
    return {
        "batch_size": size.batch,
        "optimizer": adamw(),
        "schedule": constant,
        "device": "cpu",
    }


class Unsplit:
    """The whole model, trained as one would without any of this."""

    def __init__(self, parts: LanguageParts, size: Size) -> None:
        self.parts = nn.ModuleList(copy.deepcopy(nn.ModuleList(parts.all_here())))
        self.optimizer = adamw()(self.parts.parameters())
        self.ids, self.labels = texts(size).batch(torch.arange(size.batch).numpy())
        self.mask = torch.ones_like(self.ids)

    def __call__(self) -> None:
        """Take one step: forward, loss, backward, optimizer."""
        self.parts.train()
        self.optimizer.zero_grad(set_to_none=True)
        hidden = self.ids
        for part in self.parts:
            hidden = part(hidden, self.mask)
        loss = text_loss(hidden, self.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        loss.item()


class Passes:
    """The passes that a step of MixGuard cannot do without, and nothing else.

    k head passes, of which the target's has a graph; m trunk passes; one tail pass; backward
    through all that has a graph; the optimizers' steps. Refined: k head passes and m + 1 trunk
    passes more, without a graph.

    Parameters
    ----------
    refined
        Whether the calibrator learns beside.
    """

    def __init__(self, parts: LanguageParts, size: Size, *, refined: bool) -> None:
        head, trunk, tail = copy.deepcopy(nn.ModuleList(parts.all_here()))
        self.head, self.trunk, self.tail = head, trunk, tail
        self.refined = refined
        self.optimizers = [
            adamw()(nn.ModuleList([head, tail]).parameters()),
            adamw()(trunk.parameters()),
        ]
        wide = size.tokens + SECRET_TOKENS
        rng = torch.Generator().manual_seed(2)
        self.ids = torch.randint(3, size.vocab, (K * size.batch, wide), generator=rng)
        self.batch = size.batch

    def __call__(self) -> None:
        """Take one step."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        if self.refined:
            with torch.no_grad():
                public = self._run(self.head, self.ids)
                self._run(self.trunk, public.repeat(-(-M // K), 1, 1)[: M * self.batch])
                self._run(self.trunk, public[: self.batch])
        private = self.ids[: self.batch]
        hidden = self._run(self.head, private)
        with torch.no_grad():
            self._run(self.head, self.ids[self.batch :])
        messages = hidden.detach().repeat(M, 1, 1).requires_grad_()
        outputs = self._run(self.trunk, messages)
        decoded = outputs.detach()[: self.batch].requires_grad_()
        loss = text_loss(self._run(self.tail, decoded), private)
        loss.backward()  # type: ignore[no-untyped-call]
        assert decoded.grad is not None
        torch.autograd.backward(outputs, decoded.grad.repeat(M, 1, 1))
        assert messages.grad is not None
        torch.autograd.backward(hidden, messages.grad[: self.batch])
        for optimizer in self.optimizers:
            optimizer.step()
        loss.item()

    @staticmethod
    def _run(part: nn.Module, inputs: Tensor) -> Tensor:
        outputs: Tensor = part(inputs, torch.ones(inputs.shape[:2], dtype=torch.int64))
        return outputs
