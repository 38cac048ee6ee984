"""Padding of texts to one length, so that their hidden states can be mixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from flwr_splitmix.words import are, counted

Filler = Callable[[Sequence[int]], Tensor]
"""Makes ids of a given shape, such as `SecretTokens.draw`."""


class PaddedTexts(NamedTuple):
    """k batches of texts of one width T.

    Attributes
    ----------
    ids, masks
        (k, b, T): each text, and whether a place has a token of its own (1) or filler (0).
    union
        (b, T), the mask that crosses the link: 1 where any of the k texts has a token.
    """

    ids: Tensor
    masks: Tensor
    union: Tensor


def pad_together(
    ids: Sequence[Tensor],
    masks: Sequence[Tensor],
    *,
    filler: int | Filler,
    pad_to: int | None = None,
    max_length: int = 512,
) -> PaddedTexts:
    """Pad k batches of texts on the right to a common width.

    Every place without a token of its own is filled, including a batch's existing padding.
    `filler` should be `SecretTokens.draw`: random words. With padding tokens (an int), or zeros,
    the messages at places where only the longest text has tokens would be multiples of one known
    source, and their ratios a column of the secret weights. `masks`, used by head and tail,
    exclude filler; the trunk sees `union`.

    Parameters
    ----------
    ids, masks
        k pairs of integers (b, T_i); widths may differ.
    filler
        Filler of the places after a text's end: one id, or a function from a shape to ids.
    pad_to
        A constant width. The union is then 1 everywhere, as it would reveal the longest length.
    max_length
        Largest width that the model accepts.

    Raises
    ------
    ValueError
        If there are no texts, batch sizes or shapes differ, or the longest text exceeds `pad_to`
        or `max_length`.

    Source: MixGuard, section 4.2, which pads to a common length without specifying the filler.
    """
    if not ids or len(ids) != len(masks):
        raise ValueError(
            f"there {are(len(ids))} {counted(len(ids), 'batch')} of ids and {len(masks)} of masks; "
            "there must be one mask to each, and at least one batch"
        )
    for text, mask in zip(ids, masks, strict=True):
        if text.shape != mask.shape or len(text) != len(ids[0]):
            raise ValueError(
                f"ids have shape {tuple(text.shape)} and their mask {tuple(mask.shape)}; both "
                f"must be (b, T) with b = {len(ids[0])} as in the first batch"
            )
    longest = max(text.shape[1] for text in ids)
    width = longest if pad_to is None else pad_to
    if width > max_length or longest > width:
        allowed = max_length if pad_to is None else min(pad_to, max_length)
        raise ValueError(f"the common width is {max(width, longest)}; it must be at most {allowed}")
    shape = (len(ids), len(ids[0]), width)
    if isinstance(filler, int):
        padded = ids[0].new_full(shape, filler)
    else:
        padded = filler(shape).to(ids[0].device, ids[0].dtype)
    padded_masks = masks[0].new_zeros(shape)
    for source, (text, mask) in enumerate(zip(ids, masks, strict=True)):
        padded_masks[source, :, : text.shape[1]] = mask
        stretch = padded[source, :, : text.shape[1]]
        padded[source, :, : text.shape[1]] = torch.where(mask != 0, text, stretch)
    union = padded_masks.amax(0) if pad_to is None else torch.ones_like(padded_masks[0])
    return PaddedTexts(padded, padded_masks, union)
