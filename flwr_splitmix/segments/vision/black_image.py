"""A black image tried on a model, so that a size that it cannot compute is found before a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from flwr_splitmix.segments.vision.split_model import Request
from flwr_splitmix.words import counted

_OTHER_SIZE = "try another image_size, such as the one in its name, or 224"

_OF_BACKBONE = "its patch_size counts pixels of its backbone's map: try patch_size=1"


@contextmanager
def computing(request: Request, remedy: str = _OTHER_SIZE) -> Iterator[None]:
    """Turn timm's errors in the block into one that the model does not compute images of a size.

    Raises
    ------
    ValueError
        With the remedy, in place of the block's AssertionError, IndexError or RuntimeError.
    """
    try:
        yield
    except (AssertionError, IndexError, RuntimeError) as error:  # timm's often say nothing
        side = request.image_size
        raise ValueError(
            f"{request.name} does not compute images of {side} x {side} pixels"
            f"{f': {error}' if str(error) else ''}; {remedy}"
        ) from error


@torch.no_grad()
def check_embedding(request: Request, embed: nn.Module, patches: int) -> None:
    """Raise ValueError unless an embedding makes so many patches (b, patches, d) of an image.

    Parameters
    ----------
    embed
        A new model's embedding, in training mode.
    """
    hybrid = any(name.rpartition(".")[2] == "backbone" for name, _ in embed.named_modules())
    remedy = _OF_BACKBONE if hybrid else f"{_OTHER_SIZE}, or another patch_size"
    embed.eval()
    with computing(request, remedy):
        tokens: Tensor = embed(torch.zeros(1, *request.input_shape))
    embed.train()
    if tokens.shape[1] != patches:
        side = request.image_size
        raise ValueError(
            f"{request.name} does not compute images of {side} x {side} pixels with patch_size "
            f"{request.patch_size}: its embedding makes {counted(tokens.shape[1], 'patch')}, and "
            f"it has positions for {patches}; {remedy}"
        )
