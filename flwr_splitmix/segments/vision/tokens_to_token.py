"""The tokens-to-token embedding of images: overlapping windows, merged in three steps."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

TOKEN_WIDTH = 64
"""Width of the tokens between two soft splits."""

_STRIDES = {4: (2, 2), 8: (2, 2, 2), 16: (4, 2, 2)}
"""Strides of the soft splits, by patch size, which is their product."""

_STD = 0.02
"""Standard deviation of initial weights, as in timm's vision transformers."""


class TokensToToken(nn.Module):
    """Embedding of images (b, channels, height, width) as tokens (b, N, d), row by row.

    A soft split takes the windows around every place of a map, each of which overlaps the next
    ones. A small transformer layer turns the windows into tokens of width 64, which are the map
    of the next soft split; a linear projection turns the last windows into tokens of width d.
    There is one token for each patch of the plain embedding: N = (height width) / patch_size².

    The paper gives the windows for patches of 16 pixels: sides 7, 3 and 3 with strides 4, 2 and 2
    and paddings 2, 1 and 1. Other patch sizes have windows of the same form, of side 2 s - 1 and
    padding s // 2 for a stride s: strides 2 and 2 for patches of 4 pixels, 2, 2 and 2 for 8.

    Parameters
    ----------
    channels
        Number of image channels.
    width
        Width d of the tokens.
    patch_size
        Side of a patch in pixels: 4, 8 or 16; a multiple of it is the side of the images.

    Raises
    ------
    ValueError
        If there are no windows for the patch size.

    Source: Yuan et al., "Tokens-to-Token ViT", ICCV 2021, section 3.1, with transformer layers.
    """

    def __init__(self, channels: int, width: int, patch_size: int) -> None:
        super().__init__()
        if patch_size not in _STRIDES:
            raise ValueError(
                f"patch_size is {patch_size}; the embedding 'tokens-to-token' allows "
                f"{', '.join(map(str, _STRIDES))}"
            )
        strides = _STRIDES[patch_size]
        widths = [channels, *[TOKEN_WIDTH] * (len(strides) - 1)]
        windows = [of * (2 * stride - 1) ** 2 for of, stride in zip(widths, strides, strict=True)]
        self.splits = nn.ModuleList(
            nn.Unfold(2 * stride - 1, padding=stride // 2, stride=stride) for stride in strides
        )
        self.layers = nn.ModuleList(TokenLayer(window) for window in windows[:-1])
        self.projection = nn.Linear(windows[-1], width)
        self.strides = strides
        self.apply(_initialise)

    def forward(self, images: Tensor) -> Tensor:  # noqa: D102
        maps = images
        for split, layer, stride in zip(self.splits, self.layers, self.strides, strict=False):
            rows, columns = maps.shape[2] // stride, maps.shape[3] // stride
            maps = layer(split(maps).mT).mT.unflatten(2, (rows, columns))
        tokens: Tensor = self.projection(self.splits[-1](maps).mT)
        return tokens


class TokenLayer(nn.Module):
    """Transformer layer from windows (b, N, window) to tokens (b, N, width), with one head.

    As the widths differ, what skips the attention is the values instead of the windows. The MLP's
    hidden layer is as wide as the tokens.

    Source: Yuan et al., "Tokens-to-Token ViT", ICCV 2021, section 3.1.
    """

    def __init__(self, window: int, width: int = TOKEN_WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(window)
        self.qkv = nn.Linear(window, 3 * width, bias=False)
        self.attended = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)
        )

    def forward(self, windows: Tensor) -> Tensor:  # noqa: D102
        # With a dimension for the single head, the fused kernels can be used.
        queries, keys, values = self.qkv(self.norm(windows)).unsqueeze(1).chunk(3, dim=-1)
        mixed = F.scaled_dot_product_attention(queries, keys, values)
        tokens: Tensor = (values + self.attended(mixed)).squeeze(1)
        return tokens + self.mlp(tokens)  # type: ignore[no-any-return]


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=_STD)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
