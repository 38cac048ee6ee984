"""Whether the head has an embedding for each token of its texts."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import Dataset

from flwr_splitmix.data.batches import Example
from flwr_splitmix.data.texts.batch import TextSet


def check_vocabulary(head: nn.Module, **texts: Dataset[Example] | None) -> None:
    """Refuse texts with token ids beyond the head's vocabulary, as another tokenizer makes them.

    On an accelerator such an id would end the process. Only `TextSet` objects are checked, and
    only if the head has an embedding; a head that makes other ids of these is not refused.

    Raises
    ------
    ValueError
        If there are such ids; the message names the argument.
    """
    tables = (part for part in head.modules() if isinstance(part, nn.Embedding))
    vocabulary = max((table.num_embeddings for table in tables), default=0)
    for name, data in texts.items():
        if not vocabulary or not isinstance(data, TextSet) or not len(data):
            continue
        largest = int(torch.cat(data.texts).max())
        if largest >= vocabulary and not _takes(head, data, largest):
            raise ValueError(
                f"{name} has token id {largest}, but the head's vocabulary has {vocabulary} "
                f"(ids 0..{vocabulary - 1}): make the texts with the head's tokenizer"
            )


def _takes(head: nn.Module, data: TextSet, token: int) -> bool:
    """Return whether the head computes the text with a token."""
    text = next(text for text in data.texts if bool((text == token).any()))
    device = next(head.parameters()).device
    ids = text[None].to(device)
    try:
        with torch.no_grad():
            head(ids, torch.ones_like(ids))
    except (IndexError, RuntimeError):  # the latter from an accelerator
        return False
    return True
