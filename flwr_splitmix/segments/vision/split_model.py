"""The parts of a cut vision model, and the request from which they are made."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from flwr_splitmix.segments.geometry import Geometry

Stage = tuple[str, nn.Module]
"""A named part of a model; stages run in sequence, and a cut lies between two of them."""


class LowerSegment(nn.Sequential):
    """The client's part of a vision model.

    It maps images (b, channels, height, width) to smashed data (b, prefix + patches, width), with
    the sizes in `geometry`; images of another shape are a ValueError.
    """

    def __init__(
        self, stages: Sequence[Stage], input_shape: tuple[int, ...], geometry: Geometry
    ) -> None:
        super().__init__(OrderedDict(stages))
        self.input_shape = input_shape
        self.geometry = geometry

    def forward(self, images: Tensor) -> Tensor:  # noqa: D102
        if tuple(images.shape[1:]) != self.input_shape:
            raise ValueError(
                f"images have shape {tuple(images.shape[1:])}, "
                f"the lower segment expects {self.input_shape} (channels, height, width)"
            )
        smashed: Tensor = super().forward(images)  # type: ignore[no-untyped-call]
        return smashed


class UpperSegment(nn.Sequential):
    """The server's part: from smashed data (b, prefix + patches, width) to (b, num_classes).

    `unmixed_at` is the cut before the layers of the lower segment that know the slots of patches,
    if the model has such layers in place of position embeddings; else "".
    """

    unmixed_at = ""

    def __init__(self, stages: Sequence[Stage], geometry: Geometry, num_classes: int) -> None:
        super().__init__(OrderedDict(stages))
        self.geometry = geometry
        self.num_classes = num_classes


class SplitModel(NamedTuple):
    """The two segments of one model."""

    lower: LowerSegment
    upper: UpperSegment


class VisionHead(LowerSegment):
    """The U shape's first part: from images (b, channels, height, width) to tokens (b, T, d)."""

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        return super().forward(images)


class VisionBlocks(nn.Sequential):
    """The trunk, tokens (b, T, d) to (b, T, d), or the tail, which ends in (b, num_classes).

    A mask (b, T) is accepted and ignored, as images have no padding.
    """

    def __init__(self, stages: Sequence[Stage], geometry: Geometry) -> None:
        super().__init__(OrderedDict(stages))
        self.geometry = geometry
        self.width = geometry.width
        self.max_length = geometry.tokens

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        following: Tensor = super().forward(tokens)  # type: ignore[no-untyped-call]
        return following


class VisionParts(NamedTuple):
    """The three parts of one model in the U shape."""

    head: VisionHead
    trunk: VisionBlocks
    tail: VisionBlocks


@dataclass(frozen=True)
class Request:
    """Arguments of `split_vision_model`; see there."""

    name: str
    cut_at: str | None
    num_classes: int
    channels: int
    image_size: int
    patch_size: int
    depth: int | None
    positions: Literal["lower", "upper"]
    cell: int
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of an image."""
        return (self.channels, self.image_size, self.image_size)

    def check_patches(self) -> None:
        """Raise ValueError if the patches do not tile the image."""
        if self.patch_size < 1 or self.image_size % self.patch_size:
            raise ValueError(
                f"patch_size {self.patch_size} does not divide image_size {self.image_size}"
            )

    def depth_option(self) -> dict[str, int]:
        """Return timm's option for the number of blocks, if it is not the model's own.

        Raises
        ------
        ValueError
            If pretrained weights are asked for, which are those of all blocks.
        """
        if self.depth is None:
            return {}
        if self.options.get("pretrained"):
            raise ValueError(
                f"depth is {self.depth}, but pretrained weights are those of the model's own "
                "depth: pass depth=None"
            )
        return {"depth": self.depth}

    def check_positions(self, at_embedding: bool) -> None:
        """Raise ValueError if the upper segment would add positions after blocks that need them."""
        if self.positions == "upper" and not at_embedding:
            raise ValueError(
                f"positions 'upper' needs the cut at 'embedding', not at {self.cut_at!r}: "
                "the blocks below the cut have already used the positions"
            )


@dataclass(frozen=True)
class Cuttable:
    """A built model, its stages, and its possible cuts.

    Parameters
    ----------
    stages
        All stages of the model, from images to logits.
    cuts
        Number of stages below each cut.
    default
        Cut if none is requested.
    split
        Makes the two segments from the number of stages below the cut; all cuts share modules.
    """

    request: Request
    stages: Sequence[Stage]
    cuts: Mapping[str, int]
    default: str
    split: Callable[[int], SplitModel]

    def cut(self) -> SplitModel:
        """Cut the model at the requested place.

        Raises
        ------
        ValueError
            If the model has no such cut; the message lists the possible ones.
        """
        name = self.request.cut_at or self.default
        if name not in self.cuts:
            raise ValueError(
                f"{self.request.name} has no cut {name!r}; available: {', '.join(self.cuts)}"
            )
        return self.split(self.cuts[name])

    def cuts_in_three(self) -> list[str]:
        """Return the names of the cuts at which the model can be cut in three, in their order.

        Raises
        ------
        ValueError
            If there are fewer than two.
        """
        cuts = {name: self.split(at) for name, at in self.cuts.items()}
        names = _of_one_shape({name: self._tokens(name, cut) for name, cut in cuts.items()})
        if len(names) < 2:
            raise ValueError(
                f"{self.request.name} cannot be cut in three: between two cuts tokens must keep "
                "their number and width, as between the blocks of a ViT (of at least two), CaiT, "
                "XCiT or MLP-Mixer"
            )
        return names

    def cut_in_three(self, head_to: str | None, trunk_to: str | None) -> VisionParts:
        """Cut the model behind two of its parts; see `split_vision_parts`.

        Raises
        ------
        ValueError
            If there are no such cuts, or tokens are not of one shape at both; the message lists the
            possible ones.
        """
        names = self.cuts_in_three()
        head_to = head_to or names[0]
        trunk_to = trunk_to or names[max(len(names) - 2, 1)]
        for name, value in {"head_to": head_to, "trunk_to": trunk_to}.items():
            if value not in names:
                raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(names)}")
        if names.index(head_to) >= names.index(trunk_to):
            raise ValueError(
                f"trunk_to is {trunk_to!r}, which is not behind head_to, {head_to!r}: the trunk "
                "would be empty"
            )
        lower, upper = self.split(self.cuts[head_to])
        return VisionParts(
            VisionHead([*lower.named_children()], lower.input_shape, lower.geometry),
            VisionBlocks(
                [*upper.named_children()][: self.cuts[trunk_to] - self.cuts[head_to]],
                upper.geometry,
            ),
            VisionBlocks([*self.split(self.cuts[trunk_to]).upper.named_children()], upper.geometry),
        )

    def _tokens(self, name: str, cut: SplitModel) -> tuple[int, int] | None:
        """Return number and width of the tokens at a cut; None if it is a map in their form."""
        whole = len(cut.upper) == len(self.stages) - self.cuts[name]
        return (cut.lower.geometry.tokens, cut.lower.geometry.width) if whole else None


def _of_one_shape(shapes: Mapping[str, tuple[int, int] | None]) -> list[str]:
    """Return the names of those cuts that have the same tokens as the last one."""
    last = [*shapes.values()][-1]
    return [name for name, shape in shapes.items() if last is not None and shape == last]
