"""The share of all smashed data, unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from flwr_splitmix.mixers.share import Share
from flwr_splitmix.privacy.events import Family


@dataclass(frozen=True, kw_only=True)
class FullShare(Share):
    """All smashed data, unchanged: plain split learning."""

    name: ClassVar[str] = "full"
    family: ClassVar[Family | None] = "full"
    enlarges: ClassVar[bool] = False

    @property
    def overwrites(self) -> bool:
        """True, unless a subclass places its upload otherwise."""
        return type(self).place is FullShare.place

    def upload(self, smashed: Tensor) -> tuple[Tensor, Tensor]:
        """Upload the smashed data itself."""
        return smashed, smashed

    def upload_shape(self, smashed: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the shape unchanged."""
        return smashed

    def place(self, mixed: Tensor, upload: Tensor) -> None:
        """Copy the upload, which is alone in its group, unchanged."""
        mixed.copy_(upload)

    def pick(self, gradient: Tensor) -> Tensor:
        """Return the whole gradient."""
        return gradient
