"""Export of a vision model to one ONNX file, including normalisation, checked against torch."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import math
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.data.images.preprocessing import Preprocessing
from flwr_splitmix.extras import how_to_install
from flwr_splitmix.runs.export.folder import ExportError
from flwr_splitmix.segments.vision.patch_shuffle import PatchShuffle

TOLERANCE = 1e-4
"""Largest allowed difference of logits, relative for magnitudes above 1, else absolute; a different
order of float32 sums causes less."""

_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


class PixelsToLogits(nn.Module):
    """Normalisation, lower and upper segment: pixels (n, C, S, S) in 0..1 to logits (n, L).

    A shuffle of the lower segment is left out: the upper segment knows no order of patches, and a
    file would have one fixed order.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, lower: nn.Module, upper: nn.Module, steps: Preprocessing) -> None:
        super().__init__()
        self.lower, self.upper = _in_order(lower), upper
        self.register_buffer("mean", torch.tensor(steps.mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(steps.std).view(1, -1, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:  # noqa: D102
        logits: Tensor = self.upper(self.lower((pixels - self.mean) / self.std))
        return logits


def _in_order(lower: nn.Module) -> nn.Module:
    """Return a lower segment without its shuffle; the same one if it has none."""
    shuffles = [name for name, part in lower.named_modules() if isinstance(part, PatchShuffle)]
    if not shuffles:
        return lower
    lower = copy.deepcopy(lower)
    for name in shuffles:
        lower.set_submodule(name, nn.Identity())
    return lower


def check_packages() -> None:
    """Raise ExportError unless the packages that write and read ONNX files are installed."""
    for package in _PACKAGES:
        try:
            import_module(package)
        except ImportError:
            raise ExportError(
                f"--onnx needs the package {package!r}: {how_to_install('onnx')}"
            ) from None


def write_onnx(file: Path, model: nn.Module, steps: Preprocessing) -> float:
    """Write a model of pixels to an ONNX file, for batches of any size.

    Parameters
    ----------
    model
        A `PixelsToLogits`, or a module with the same inputs and outputs.
    steps
        The preprocessing, which gives channels and image size.

    Returns
    -------
    The largest difference of a logit between onnxruntime and torch (see `TOLERANCE`), on random
    pixels, for one image and for three.

    Raises
    ------
    ExportError
        If a package is missing, torch cannot export the model for batches of any size, or the
        file's logits differ from torch's by more than `TOLERANCE`.
    """
    check_packages()
    model.eval()
    shape = (steps.channels, steps.image_size, steps.image_size)
    pixels = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    with _quiet(), _refused("torch cannot write this model as an ONNX file for any batch size"):
        torch.onnx.export(
            model,
            (pixels,),
            str(file),
            input_names=["pixels"],
            output_names=["logits"],
            dynamic_shapes={"pixels": {0: torch.export.Dim("images")}},
            dynamo=True,
            external_data=False,
        )
    with _refused("onnxruntime cannot run the ONNX file that torch makes of this model"):
        differences = [_difference(file, model, images) for images in (pixels, pixels[:1])]
    worst = max(differences, key=lambda each: math.inf if math.isnan(each) else each)
    if not worst <= TOLERANCE:  # nor NaN
        raise ExportError(f"the ONNX file computes otherwise than torch: logits differ by {worst}")
    return worst


@torch.no_grad()
def _difference(file: Path, model: nn.Module, pixels: Tensor) -> float:
    runtime: Any = import_module("onnxruntime")
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"pixels": pixels.numpy()})
    expected = model(pixels)
    distance = (torch.from_numpy(logits) - expected).abs() / expected.abs().clamp(min=1.0)
    return float(distance.max())


@contextlib.contextmanager
def _refused(sentence: str) -> Iterator[None]:
    """Raise what the libraries refuse as one sentence; each raises exceptions of many kinds."""
    try:
        yield
    except (OSError, MemoryError):  # of the disk and the machine
        raise
    except Exception as error:
        kind = type(error).__name__
        raise ExportError(f"{sentence} ({kind}): export it without --onnx") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporter's progress messages and warnings."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
