"""Packages that only some users need: what installs them, said where one is missing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

EXTRAS: dict[str, str] = {
    "PIL": "vision",
    "datasets": "vision",
    "flwr_datasets": "vision",
    "timm": "vision",
    "torchvision": "vision",
    "ray": "simulation",
    "accelerate": "language",
    "gguf": "language",
    "nltk": "language",
    "peft": "language",
    "rouge_score": "language",
    "sacrebleu": "language",
    "tokenizers": "language",
    "transformers": "language",
    "psutil": "simulation",
    "scipy": "attacks",
    "sklearn": "attacks",
    "torchmetrics": "attacks",
    "matplotlib": "report",
    "opacus": "dpsgd",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
}
"""For each package that is imported where it is needed, the extra that installs it."""


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra; the package is in no index yet."""
    return f"pip install '.[{extra}]' in a checkout of flwr-splitmix"


class MissingExtraError(ImportError):
    """A package of an extra is missing; the message is one sentence with the remedy."""


@contextmanager
def needed_for(purpose: str, extra: str | None = None) -> Iterator[None]:
    """Say which extra to install if an import within the block fails for want of a package.

    Parameters
    ----------
    purpose
        What needs it, as the subject of the sentence: "cutting vision models".
    extra
        The extra that is named; None: the one that has the package.

    Raises
    ------
    MissingExtraError
        If a package of an extra is missing. Any other error is passed on.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in EXTRAS:
            raise
        raise MissingExtraError(
            f"{purpose} needs the package {package!r}: {how_to_install(extra or EXTRAS[package])}",
            name=package,
        ) from error


@contextmanager
def as_logged_before() -> Iterator[None]:
    """Keep the root logger's handlers over imports in the block, some of which add their own.

    Opacus adds one, which would print each line of Flower's log a second time.
    """
    root = logging.getLogger()
    before = list(root.handlers)
    try:
        yield
    finally:
        for handler in set(root.handlers).difference(before):
            root.removeHandler(handler)
