"""Checks that the head has an embedding for each token of its texts."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.data.examples import ExampleSet
from flwr_splitmix.data.texts.text_set import TextSet

log = logging.getLogger("flwr.splitmix")


class _Beyond(Exception):  # noqa: N818  # it ends a trial
    """A token has no row in an embedding that is asked for it."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows


def check_vocabulary(head: nn.Module, **texts: ExampleSet | None) -> None:
    """Refuse texts with token ids beyond the head's vocabulary, as another tokenizer makes them.

    On an accelerator such an id would end the process, so it is not looked up: the head is given
    the largest id, and what it asks its embeddings for is compared with their rows. Only `TextSet`
    objects are checked; a head that makes other ids of these is not refused.

    Raises
    ------
    ValueError
        If there are such ids; the message names the argument.
    """
    tables = [part for part in head.modules() if isinstance(part, nn.Embedding)]
    fewest = min((table.num_embeddings for table in tables), default=0)
    for name, data in texts.items():
        if not tables or not isinstance(data, TextSet) or not len(data):
            continue
        largest = int(torch.cat(data.texts).max())
        if largest >= fewest and (rows := _rows_asked(head, tables, largest)) is not None:
            raise ValueError(
                f"{name} has token id {largest}, but the head's vocabulary has {rows} "
                f"(ids 0..{rows - 1}): make the texts with the head's tokenizer"
            )


def _rows_asked(head: nn.Module, tables: list[nn.Embedding], token: int) -> int | None:
    """Return the rows of the embedding that lacks a row asked for; None if each has it."""

    def compare(table: nn.Module, inputs: tuple[Any, ...]) -> None:
        token_ids = inputs[0] if inputs else None
        rows: Any = table.num_embeddings
        if isinstance(token_ids, Tensor) and token_ids.numel() and int(token_ids.max()) >= rows:
            raise _Beyond(rows)

    modes = [(module, module.training) for module in head.modules()]
    with ExitStack() as hooks, torch.random.fork_rng(devices=[]), torch.no_grad():
        for table in tables:
            hooks.enter_context(table.register_forward_pre_hook(compare))
        head.eval()
        ids = torch.tensor([[token]], device=next(head.parameters()).device)
        try:
            head(ids, torch.ones_like(ids))
        except _Beyond as beyond:
            return beyond.rows
        except Exception:  # whatever else is wrong with the head shows in its first round
            log.debug("the head was not tried for its vocabulary", exc_info=True)
        finally:
            for module, mode in modes:
                module.training = mode
    return None
