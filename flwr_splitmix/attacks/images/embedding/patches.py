"""Images as rows of patches, in the raster order of their tokens, and back."""

from __future__ import annotations

import math

from torch import Tensor


def grid_of(patches: int, grid: tuple[int, int] | None) -> tuple[int, int]:
    """Return (rows, columns) of the patches; without a known grid they must form a square.

    Raises
    ------
    ValueError
        If the patches form no square.
    """
    side = math.isqrt(patches)
    if grid is None and side * side != patches:
        raise ValueError(f"{patches} patches form no square, and no grid of them is known")
    return grid or (side, side)


def patch_size(image_shape: tuple[int, int, int], grid: tuple[int, int]) -> tuple[int, int]:
    """Return (height, width) in pixels of the part of an image (C, H, W) that a token represents.

    Raises
    ------
    ValueError
        If the grid does not divide the image.
    """
    (_, height, width), (rows, columns) = image_shape, grid
    if height % rows or width % columns:
        raise ValueError(
            f"a grid of {rows} x {columns} tokens does not divide images of {height} x {width}"
        )
    return height // rows, width // columns


def to_patches(images: Tensor, grid: tuple[int, int]) -> Tensor:
    """Cut images (b, C, H, W) into patches (b, N, C h w), row by row."""
    b, channels, height, width = images.shape
    h, w = patch_size((channels, height, width), grid)
    cut = images.reshape(b, channels, grid[0], h, grid[1], w).permute(0, 2, 4, 1, 3, 5)
    return cut.reshape(b, grid[0] * grid[1], channels * h * w)


def to_images(patches: Tensor, grid: tuple[int, int], image_shape: tuple[int, int, int]) -> Tensor:
    """Reassemble patches (..., N, C h w) into images (..., C, H, W)."""
    channels, height, width = image_shape
    h, w = patch_size(image_shape, grid)
    lead = patches.shape[:-2]
    cut = patches.reshape(-1, *grid, channels, h, w).permute(0, 3, 1, 4, 2, 5)
    return cut.reshape(*lead, channels, height, width)
