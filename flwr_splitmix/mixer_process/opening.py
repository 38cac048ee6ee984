"""A ServerApp's request to a mixer for one round: plain values, each validated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
)

from flwr_splitmix.links.frames.wire import WireDtype
from flwr_splitmix.links.mixer.service import RefusedError
from flwr_splitmix.mixers import Mixer
from flwr_splitmix.mixers.described import mixer_of
from flwr_splitmix.mixers.share import MAX_CLASSES
from flwr_splitmix.privacy import Relation
from flwr_splitmix.segments.geometry import Geometry
from flwr_splitmix.values import MAX_COUNT
from flwr_splitmix.words import one_line

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}
"""The dtypes allowed for smashed data, by name."""

MAX_MIXED_NODES = 3500
"""Most nodes of a round: the tokens of more would not fit into the header of one frame."""

Whole = Annotated[StrictInt, Field(ge=0, le=MAX_COUNT)]
Count = Annotated[StrictInt, Field(ge=1, le=MAX_COUNT)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class LedgerAsked(BaseModel):
    """The ledger that a mixer is asked to keep for a run with noise.

    Attributes
    ----------
    run
        Id of the run; all rounds of a run share one ledger.
    delta, relation
        As in `PrivacyLedger`.
    attempts
        Client index, as text -> how often it may have sent this round's batches before.
    earlier
        Client index, as text -> the batches that it may have sent in each of these attempts;
        attempts of unknown length are missing.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=lambda name: name.replace("_", "-")
    )

    run: Annotated[StrictStr, Field(min_length=1, max_length=200)]
    delta: Annotated[StrictFloat, Field(gt=0, lt=1)]
    relation: Relation
    attempts: dict[str, Whole] = Field(max_length=MAX_MIXED_NODES)
    earlier: dict[str, list[Whole]] = Field(max_length=MAX_MIXED_NODES)

    @property
    def lengths(self) -> dict[int, list[int | None]]:
        """By client index, lengths of its earlier attempts in batches; None for all others."""
        lengths: dict[int, list[int | None]] = {}
        for client, number in self.attempts.items():
            known_lengths = self.earlier.get(client, [])
            lengths[int(client)] = (
                [*known_lengths, None] if number > len(known_lengths) else [*known_lengths]
            )
        return lengths


class Opening(BaseModel):
    """The round that a mixer is asked to mix.

    Attributes
    ----------
    mixing
        The mixer, as described by `flwr_splitmix.mixers.described.describe`.
    ledger
        The ledger, if noise is added; otherwise None.
    classes, multi_label
        Number L of classes, and whether an example may have several; by default not.
    dtype, geometry
        dtype of smashed data; (patches, width, prefix) and the grid, if any, that the upper
        segment expects, or None if it expects no particular geometry.
    steps_per_round, epochs_per_round
        As in the strategy; 0 steps derives them from the epochs.
    seed
        The run's seed, for stochastic rounding on the wire. No plan is drawn from it.
    nodes
        Client index, as text -> node id.
    wire_dtype, wire_feedback
        For gradients sent to the nodes.
    step_timeout, reattach_timeout
        Seconds for an exchange with the nodes, and for a node to reattach after its connection
        broke.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=lambda name: name.replace("_", "-")
    )

    mixing: dict[str, Any]
    ledger: LedgerAsked | None
    classes: Annotated[StrictInt, Field(ge=2, le=MAX_CLASSES)]
    dtype: str
    geometry: dict[str, Any] | None
    steps_per_round: Whole
    epochs_per_round: Count
    round: Count
    seed: StrictInt
    nodes: dict[str, StrictInt] = Field(min_length=1, max_length=MAX_MIXED_NODES)
    wire_dtype: WireDtype
    wire_feedback: StrictBool
    step_timeout: Seconds
    reattach_timeout: Seconds
    multi_label: StrictBool = False

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Validate what a ServerApp sent; raise RefusedError if it is not an opening."""
        nodes = values.get("nodes")
        if isinstance(nodes, Mapping) and len(nodes) > MAX_MIXED_NODES:
            raise RefusedError(
                f"the round has {len(nodes)} nodes, and a mixer takes at most {MAX_MIXED_NODES}: "
                "lower fraction-train"
            )
        try:
            read = cls.model_validate(dict(values))
        except ValidationError as error:
            names = {".".join(map(str, wrong["loc"])) for wrong in error.errors()}
            raise RefusedError(
                f"the round cannot be opened: {one_line(', '.join(sorted(names)))[:200]} is wrong; "
                "is the same flwr-splitmix installed on both?"
            ) from None
        if read.dtype not in DTYPES:
            raise RefusedError(f"smashed data cannot be {one_line(read.dtype)[:40]}")
        if not all(name.isascii() and name.isdigit() and len(name) < 10 for name in read.nodes):
            raise RefusedError("clients must be numbers from 0")
        if (read.ledger is None) == ("noise" in read.mixing):
            raise RefusedError(
                "a mixing with noise needs a ledger, and one without noise must have none"
            )
        if read.ledger is not None and read.ledger.attempts.keys() != read.nodes.keys():
            raise RefusedError("the ledger's attempts must be those of the nodes")
        return read

    @property
    def clients(self) -> dict[int, int]:
        """Client index -> node id, sorted."""
        return dict(sorted((int(client), node) for client, node in self.nodes.items()))

    def mixer(self) -> Mixer:
        """Return the mixer; raise RefusedError if it is unknown or does not hide its members."""
        try:
            return mixer_of(self.mixing)
        except ValueError as error:
            raise RefusedError(str(error)) from None

    def smashed_geometry(self) -> Geometry | None:
        """Return the geometry that the upper segment expects; raise RefusedError if invalid."""
        if self.geometry is None:
            return None
        values = dict(self.geometry)
        grid = values.pop("grid", None)
        try:
            return Geometry(**values, grid=None if grid is None else tuple(grid))
        except (TypeError, ValueError):
            raise RefusedError("the geometry is invalid") from None
