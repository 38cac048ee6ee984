"""Remark on a cut whose images have too few patches for a method that divides them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flwr_splitmix.apps.checking.report import Report
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.mixers import InputShare, Plan
from flwr_splitmix.mixers.share import Share
from flwr_splitmix.words import counted


def remark_few_patches(config: VisionConfig, plan: Plan, report: Report) -> None:
    """Remark if an image has fewer patches than a mixture has parts, or one that may be left out.

    Parameters
    ----------
    plan
        A plan of the run's strategy for its number of clients.
    """
    parts = max(map(len, _divisions(plan)), default=0)
    patches = plan.shape.patches
    if not parts or patches >= max(parts, 2):
        return
    without = (
        f"{config.strategy} divides patches among {parts} images, so that of some a mixture has "
        "none"
        if parts > 1
        else f"{config.strategy} leaves patches out, but never an image's last one"
    )
    report.remarks.append(
        f"an image has {counted(patches, 'patch')} at the cut, and {without}; a smaller patch-size "
        "(1 to 4 for a hybrid ViT, where it counts pixels of a map) or cell, a larger image-size, "
        "or another cut-at gives more patches"
    )


def _divisions(plan: Plan) -> Iterator[Sequence[Share]]:
    """Yield the shares among which patches of a mixture are divided, or squares of images."""
    for group in plan.groups:
        shares = [member.share for member in group.members]
        yield [share for share in shares if share.masked]
        for share in shares:
            if isinstance(share, InputShare):
                yield [part for _, part in share.parts if part.masked]
