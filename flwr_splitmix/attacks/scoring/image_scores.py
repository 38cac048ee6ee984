"""Per-sample similarity of reconstructions to images: errors, structure, retrieval, class."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

Classifier = Callable[[Tensor], Tensor]
"""Images (b, C, H, W), 0 to 1, to logits (b, L)."""

_AT_ONCE = 256
_WINDOW = 11  # pixels on each side, of SSIM


def squared_errors(guesses: Tensor, images: Tensor) -> Tensor:
    """Return the mean squared error of each pair: (n, C, H, W) twice to float64 (n,)."""
    return (guesses.double() - images.double()).square().flatten(1).mean(1)


def peak_ratios(errors: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio in dB for errors (n,) of pixels from 0 to 1."""
    return -10 * errors.clamp_min(1e-20).log10()


def structures(guesses: Tensor, images: Tensor) -> Tensor | None:
    """Return SSIM of each pair: (n, C, H, W) twice to float64 (n,).

    The window is Gaussian, 11 x 11 pixels, of standard deviation 1.5; pixels are from 0 to 1. Only
    windows within the image count, not those beyond its border, which torchmetrics fills by
    reflection. None if images are smaller than the window.

    Source: Wang et al. 2004, as implemented in torchmetrics.
    """
    if min(images.shape[2:]) < _WINDOW:
        return None
    from torchmetrics.functional.image import structural_similarity_index_measure  # an extra

    parts = [
        structural_similarity_index_measure(
            guess,
            image,
            sigma=1.5,
            kernel_size=_WINDOW,
            reduction="none",
            data_range=1.0,
            return_full_image=True,
        )[1]
        for guess, image in zip(
            torch.split(guesses.float(), _AT_ONCE),
            torch.split(images.float(), _AT_ONCE),
            strict=True,
        )
    ]
    half = _WINDOW // 2
    return torch.cat(parts)[..., half:-half, half:-half].flatten(1).double().mean(1)


def perceptual_distances(guesses: Tensor, images: Tensor) -> Tensor | None:
    """Return LPIPS (AlexNet) of each pair: (n, C, H, W), C 1 or 3, twice to float32 (n,).

    None if images are smaller than 32 pixels, or without the weights that torchvision caches in
    torch's hub directory; none are downloaded.

    Source: Zhang et al. 2018, as implemented in torchmetrics.
    """
    weights = Path(torch.hub.get_dir()) / "checkpoints" / "alexnet-owt-7be5be79.pth"
    if not weights.exists() or min(images.shape[2:]) < 32:
        return None
    from torchmetrics.functional.image import learned_perceptual_image_patch_similarity as lpips

    colour = [part.float().expand(-1, 3, -1, -1) for part in (guesses, images)]
    pairs = zip(*colour, strict=True)
    return torch.stack([lpips(g[None], i[None], net_type="alex", normalize=True) for g, i in pairs])


def retrieved(guesses: Tensor, images: Tensor, others: Tensor) -> Tensor:
    """Return whether each image is nearer to its guess than any other image: bool (n,).

    Parameters
    ----------
    others
        (m, C, H, W): images that are not victims; with 999 of them, retrieval is among 1,000.
    """
    rows, gallery = guesses.float().flatten(1), others.float().flatten(1)
    distances = (rows - images.float().flatten(1)).square().sum(1)
    nearest = torch.cat(
        [torch.cdist(part, gallery).square().amin(1) for part in torch.split(rows, _AT_ONCE)]
    )
    return distances < nearest


@torch.no_grad()
def agreements(guesses: Tensor, labels: Tensor, classifier: Classifier) -> Tensor:
    """Return whether a classifier sees each victim's class in its reconstruction: bool (n,)."""
    predictions = [
        classifier(part.float()).argmax(1).cpu() for part in torch.split(guesses, _AT_ONCE)
    ]
    return torch.cat(predictions) == labels
