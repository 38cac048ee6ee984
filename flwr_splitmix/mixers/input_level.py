"""Mixing raw inputs before the lower segment: for comparison with mixing behind it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.labels import target_rows
from flwr_splitmix.mixers.checked_mixer import checked_plan
from flwr_splitmix.mixers.full_share import FullShare
from flwr_splitmix.mixers.mixer import Mixer
from flwr_splitmix.mixers.plan import Group, Plan, SmashedShape, each_alone
from flwr_splitmix.mixers.share import MAX_CLASSES, LabelKind, Plain, Share, share_from_wire
from flwr_splitmix.mixers.wrapper import OuterMixer
from flwr_splitmix.seeding import frozen_generator
from flwr_splitmix.values import check_choice, whole_number
from flwr_splitmix.words import described

Across = Literal["clients", "batch"]


@dataclass(frozen=True, kw_only=True)
class InputShare(FullShare):
    """All smashed data of inputs that were mixed with others.

    Parameters
    ----------
    rows, columns
        The grid of cells that inputs are divided into; the shares in `parts` treat them as patches.
    classes
        Number L of classes.
    parts
        (client, share) of each member of the mixture. A client that occurs again stands for its
        own batch in another order.
    seed
        Seed of those orders.
    """

    name: ClassVar[str] = "input"
    rows: int
    columns: int
    classes: int
    parts: tuple[tuple[int, Share], ...]
    seed: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.rows, self.columns) < 1:
            raise ValueError(f"a grid of {self.rows} x {self.columns} cells has none")
        if not 1 <= self.classes <= MAX_CLASSES:
            raise ValueError(f"classes is {self.classes}; it must be from 1 to {MAX_CLASSES}")
        if not self.parts:
            raise ValueError("share 'input' has no parts")

    @property
    def mixed(self) -> bool:
        """Whether there is more than one part."""
        return len(self.parts) > 1

    @property
    def label_kind(self) -> LabelKind:
        """Soft labels, mixed together with the inputs."""
        return "soft"

    def upload_labels(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the soft labels that `mix` made."""
        return labels.to(dtype)

    def mix(
        self, inputs: Mapping[int, Tensor], labels: Mapping[int, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Mix one batch of each client in `parts`.

        Parameters
        ----------
        inputs
            By client: cells (b, rows * columns, width).
        labels
            By client: int64 (b,), or multi-label (b, classes).

        Returns
        -------
        Mixed cells (b, rows * columns, width) in the dtype of the inputs, and soft labels
        (b, classes) in the same, or in float32 if these are integers.
        """
        first = next(iter(inputs.values()))
        mixed = torch.zeros_like(first)
        kind = first.dtype if first.is_floating_point() else torch.float32
        soft = torch.zeros(len(first), self.classes, dtype=kind, device=first.device)
        rng = frozen_generator(self.seed)
        used: set[int] = set()
        for client, share in self.parts:
            cells, classes = inputs[client], labels[client].to(first.device)
            if client in used:
                order = torch.from_numpy(rng.permutation(len(cells))).to(cells.device)
                cells, classes = cells[order], classes[order]
            used.add(client)
            share.place(mixed, share.upload(cells)[0])
            soft += share.lam * target_rows(classes, self.classes, soft.dtype)
        return mixed, soft

    def to_wire(self) -> dict[str, Plain]:
        """Return the share as plain values."""
        return {
            "share": self.name,
            "rows": self.rows,
            "columns": self.columns,
            "classes": self.classes,
            "parts": [[client, share.to_wire()] for client, share in self.parts],
            "seed": self.seed,
        }

    @classmethod
    def from_wire(cls, values: Mapping[str, Any], known: Iterable[type[Share]]) -> Self:
        """Make the share and those of its parts."""
        rest = dict(values)
        parts = rest.pop("parts", None)
        if not isinstance(parts, (list, tuple)) or not all(
            isinstance(part, (list, tuple)) and len(part) == 2 and type(part[0]) is int
            for part in parts
        ):
            raise ValueError("parts of share 'input' must be a list of (client, share)")
        part_shares = tuple((client, share_from_wire(share, known)) for client, share in parts)
        # Parts are not plain values, so the parent class cannot check them.
        numbers = {"rows", "columns", "classes", "seed"}
        if rest.keys() != numbers or not all(type(rest[name]) is int for name in numbers):
            raise ValueError(f"share 'input' needs the integers {', '.join(sorted(numbers))}")
        return cls(parts=part_shares, **rest)


class InputLevel(OuterMixer):
    """Applies another mixer to raw inputs, divided into cells, instead of smashed data.

    Each client passes its own mixture through its lower segment and sends everything, with soft
    labels. Nothing is mixed between the cut and the upper segment.

    Parameters
    ----------
    mixer
        Defines how inputs are mixed: `Mixup`, `RandomCutout`, `VanillaCutMix` or `PatchCutMix`.
    grid
        (rows, columns) of the cells that every channel of an image is divided into, (1, columns)
        for series (b, C, length), along their length, unless C equals columns: such inputs count
        as cells (b, columns, width), and a warning says so. None uses the grid of patches at the
        cut, and for `Mixup` and others that weigh whole inputs (`cover` is "weighted") a single
        cell.
    across
        "batch": mix with other images of the client's own batch; works everywhere. "clients": mix
        with images of other clients, for comparison; works only within one process (`fit`), and
        other links reject it.

    Raises
    ------
    TypeError
        If `mixer` is not a mixer, or `grid` neither a tuple nor a list of two numbers.
    ValueError
        If rows or columns are not whole numbers of at least 1, or `across` is unknown.

    Source: DP-CutMixSL, table 6 and appendix F.
    """

    def __init__(
        self, mixer: Mixer, grid: tuple[int, int] | None = None, *, across: Across = "batch"
    ) -> None:
        check_choice("across", across, get_args(Across))
        crosses = across == "clients"
        input_facts = {"raw_inputs_cross": crosses} | ({} if crosses else {"min_members": 1})
        # Each mixture is alone at the cut, and inputs are mixed before a batch is cut into parts.
        at_cut = {"cover": "partition", "positions": None, "needs_whole_batch": False}
        groups = {"k": 0, "min_patches": 0, "k_times": False, "mask_per_sample": False}
        super().__init__(mixer, **input_facts, **at_cut, **groups, takes_noise=False)
        self.grid = None if grid is None else _checked_grid(grid)
        self.across = across

    def check_clients(self, n: int) -> None:
        """Ask the inner mixer, unless mixing stays within a batch."""
        if self.across == "clients":
            super().check_clients(n)

    def without_effect(self, patches: int) -> str:
        """Ask the inner mixer of the cells, which without a grid are as patches lie at the cut."""
        return self.mixer.without_effect(patches if self.grid is None else math.prod(self.grid))

    def group_within(self, classes: Mapping[int, int]) -> None:
        """Have the inner mixer do the same, unless mixing stays within a batch."""
        if self.across == "clients":
            self.mixer.group_within(classes)

    def plan(
        self,
        members: Sequence[int],
        shape: SmashedShape,
        rng: np.random.Generator,
        order_rng: np.random.Generator | None = None,
    ) -> Plan:
        """Draw the inner mixer's plan over the cells, and give each client its mixture."""
        rows, columns = grid = self._grid_for(shape)
        cells = SmashedShape(shape.batch, rows * columns, 1, grid=grid, classes=shape.classes)
        parts = self._parts(members, cells, rng, order_rng)
        mixed = [client for client in members if client in parts]  # one that is left over is not
        shares = (
            InputShare(
                rows=rows,
                columns=columns,
                classes=shape.classes,
                parts=parts[client],
                seed=int(rng.integers(2**32)),
            )
            for client in mixed
        )
        return each_alone(shape, zip(mixed, shares, strict=True))

    def _grid_for(self, shape: SmashedShape) -> tuple[int, int]:
        if self.grid is not None:
            return self.grid
        return (1, 1) if self.mixer.cover == "weighted" else shape.rows_and_columns()

    def _parts(
        self,
        members: Sequence[int],
        cells: SmashedShape,
        rng: np.random.Generator,
        order_rng: np.random.Generator | None,
    ) -> dict[int, tuple[tuple[int, Share], ...]]:
        """Return the parts of each client's mixture, its own part first."""
        parts: dict[int, tuple[tuple[int, Share], ...]] = {}
        if self.across == "clients":
            for group in self._groups(members, cells, rng, order_rng):
                drawn = [(member.client, member.share) for member in group.members]
                for place, (client, _) in enumerate(drawn):
                    parts[client] = (drawn[place], *drawn[:place], *drawn[place + 1 :])
        else:
            size = self.mixer.k or 1
            for client in members:
                (group,) = self._groups(range(size), cells, rng, None)
                parts[client] = tuple((client, member.share) for member in group.members)
        return parts

    def _groups(
        self,
        members: Sequence[int],
        cells: SmashedShape,
        rng: np.random.Generator,
        order_rng: np.random.Generator | None,
    ) -> tuple[Group, ...]:
        plan = checked_plan(self.mixer, self.mixer.plan(members, cells, rng, order_rng))
        if len(plan.passes) != 1:
            raise ValueError("inputs are mixed once a step; k_times is for smashed data")
        return plan.passes[0]


def _checked_grid(grid: object) -> tuple[int, int]:
    if not isinstance(grid, (tuple, list)) or len(grid) != 2:
        description = repr(grid) if isinstance(grid, (tuple, list, str)) else described(grid)
        raise TypeError(f"grid is {description:.80}; expected (rows, columns), or None")
    rows, columns = (whole_number(f"grid[{i}]", size, least=1) for i, size in enumerate(grid))
    return rows, columns
