"""The entries of a description by shape, and the one reader of a whole description.

A description travels as a flat mapping of plain values, whose keys are the names of the fields here
with "-" for "_". A field that has its default is not sent. Every receiver of a description reads it
once, on its arrival; everything behind that gets the object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from flwr_splitmix.description.fields import (
    Count,
    DescriptionError,
    Part,
    Size,
    Whole,
    is_plain,
    keys_of,
    read_part,
)
from flwr_splitmix.suggestions import folded_key, is_near
from flwr_splitmix.values import wrong_count

MAX_SPLIT_BATCH = 2**20
"""Most examples in a client's batch in the L shape: a full batch of vectors may have many."""

MAX_USHAPE_BATCH = 65_536
"""Most examples in a client's batch in the U shape."""

MAX_CALIBRATION = 100_000
"""Most calibration exchanges of a client, for which the others wait."""


@dataclass(frozen=True, kw_only=True)
class NodeDescription(Part):
    """The entries that a SuperNode adds, from which a third-party mixer compares its nodes.

    Attributes
    ----------
    given_weights
        Digest of the server's lower segment from which the client's own began.
    given_orders
        Digest of all else that the server has told the node for the round.
    allow_training
        Whether gradients may change the lower segment, or may have.
    """

    given_weights: str | None = None
    given_orders: str | None = None
    allow_training: bool | None = None


@dataclass(frozen=True, kw_only=True)
class SegmentDescription(Part):
    """A client's description of its lower segment in the L shape.

    Attributes
    ----------
    prefix, patches, width
        Of the smashed data (b, prefix + patches, width).
    grid_columns
        In how many columns the patches lie; None if they lie in no grid, or it is not known.
    positions
        "lower" if the segment says that it adds the positions of patches; else "".
    edge
        The shuffle of an edge that shuffles, as JSON text; None of other segments.
    trainable
        Whether an edge that shuffles has weights that are trained; None of other segments.

    Raises
    ------
    DescriptionError
        If the patches do not fill so many columns.
    """

    prefix: Count
    patches: Size
    width: Size
    grid_columns: Size | None = None
    positions: str = ""
    edge: str | None = None
    trainable: bool | None = None

    def __post_init__(self) -> None:
        if (columns := self.grid_columns) is None:
            return
        if wrong := wrong_count(columns, 1, self.patches):
            raise DescriptionError(f"says that its grid-columns {wrong}")
        if self.patches % columns:
            raise DescriptionError(f"says that its {self.patches} patches form {columns} columns")

    @property
    def tokens(self) -> int:
        """Tokens of an example's smashed data: prefix + patches."""
        return self.prefix + self.patches


@dataclass(frozen=True, kw_only=True)
class UploadFacts(Part):
    """The facts about a client of the L shape that a server's ledger needs beyond its sizes.

    Attributes
    ----------
    budget_spent
        Whether its privacy budget is spent.
    public_evaluation
        Whether it calls its test data public.
    across_batch
        Whether examples of a batch change each other's uploads.
    same_object
        Whether it is the object that was asked for all batches since it first attached. A client
        that is made anew for each round, as on a node, does not say so.
    unbounded
        Why what it has sent before, perhaps in other runs, has no epsilon: keys of
        `flwr_splitmix.privacy.events.UNBOUNDED`; none if it has one, or the client does not say.
    """

    budget_spent: bool = False
    public_evaluation: bool = False
    across_batch: bool = False
    same_object: bool = False
    unbounded: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Description(Part):
    """The common entries of both shapes' descriptions; the class itself describes no client.

    Attributes
    ----------
    num_examples
        Number of its training examples; None of a client of another shape that does not say it.
    state_round
        The last round that the client's state has; 0 if none. Its host adds it.
    drawn
        Number of batches that it has drawn from its data; None if it does not say: then whatever
        counts its batches continues to count, and a ledger takes the most that there can have been.
    federated_examples, benchmark_examples
        Sizes of its test sets; None, as 0, if it has none.
    repeatable_secrets
        Whether its secrets are drawn from the run's seed, so that a repeated round has the same.
    seeded
        Whether they are and its server is another process, which can derive them (U shape).
    node
        What its SuperNode adds.
    others
        What it says under keys of its own: booleans, numbers, texts, and lists of these.
    """

    num_examples: Size | None = None
    state_round: Count = 0
    drawn: Count | None = None
    federated_examples: Count | None = None
    benchmark_examples: Count | None = None
    repeatable_secrets: bool = False
    seeded: bool = False
    node: NodeDescription = NodeDescription()
    others: Mapping[str, Any] = field(default_factory=dict)

    def tests(self, kind: Literal["federated", "benchmark"]) -> int:
        """Return the size of a test set; 0 if the client has none."""
        size = self.federated_examples if kind == "federated" else self.benchmark_examples
        return size or 0

    def to_plain(self) -> dict[str, Any]:
        """Return the description as it travels."""
        return {**self.others, **super().to_plain()}


@dataclass(frozen=True, kw_only=True)
class SplitDescription(Description):
    """A client's description of itself in the L shape."""

    num_examples: Size = field()  # always
    batch_size: Annotated[int, Whole(1, MAX_SPLIT_BATCH)]
    segment: SegmentDescription
    uploads: UploadFacts = UploadFacts()


@dataclass(frozen=True, kw_only=True)
class UShapeDescription(Description):
    """A client's description of itself in the U shape.

    Attributes
    ----------
    width
        Of its hidden states.
    calibration_steps
        Exchanges on public texts that it needs before it trains.
    least_batch
        The fewest test examples that it sends at once: a rest of fewer is joined with the batch
        before.
    hiding
        Names of the classes of its hiding, from the class itself up, with a space between.
    frozen_weights
        A number of its frozen weights (`flwr_splitmix.clients.ushape.frozen_weights.sketch`); None
        if there are none, or they are not averaged with others.

    Raises
    ------
    DescriptionError
        If `least_batch` is larger than a batch.
    """

    num_examples: Size = field()  # always
    batch_size: Annotated[int, Whole(1, MAX_USHAPE_BATCH)]
    width: Size
    calibration_steps: Annotated[int, Whole(0, MAX_CALIBRATION)]
    least_batch: Annotated[int, Whole(1, MAX_USHAPE_BATCH)] = 1
    hiding: str = ""
    frozen_weights: float | None = None

    def __post_init__(self) -> None:
        if wrong := wrong_count(self.least_batch, 1, self.batch_size):
            raise DescriptionError(f"says that its least-batch {wrong}")


SHAPES: Mapping[str, type[Description]] = {
    "patches": SplitDescription,
    "calibration-steps": UShapeDescription,
}
"""By the key that tells it, the shape of a client. One that has both keys has the L shape."""

_ALIASES = {"batchnorm": "across-batch", "goeson": "same-object"}
"""Other words, folded, for facts without which an epsilon would be too small."""


def read_description(description: Mapping[str, Any]) -> Description:
    """Return what a client says of itself, by the class of its shape.

    Unknown keys, such as those of a user's own client class, are kept as `others`, unless they are
    nearly one of these: a fact must not be missed for its spelling. A value None counts as a key
    that is missing.

    Raises
    ------
    DescriptionError
        If a required key is missing or misspelt, a value has another type or is beyond its range
        (the message names the key), or the value of an unknown key is not plain.
    """
    shape = next((kind for key, kind in SHAPES.items() if key in description), Description)
    known_keys = keys_of(shape)
    others = {key: value for key, value in description.items() if key not in known_keys}
    if not all(map(is_plain, others.values())):
        raise DescriptionError("described itself in other than plain values")
    for key in others:
        if likely_key := _likely_key(key, known_keys.keys() - description.keys()):
            raise DescriptionError(
                f"describes itself by a key that is not {likely_key!r}, but means it or is nearly "
                "it: write it so, or give a key of your own another name"
            )
    return read_part(shape, description, others=others)


def _likely_key(key: str, absent_keys: Iterable[str]) -> str:
    """Return the known key, of those that are absent, that another one seems to mean, or ""."""
    folded = folded_key(key)
    near = (absent for absent in sorted(absent_keys) if is_near(folded, folded_key(absent)))
    return _ALIASES.get(folded) or next(near, "")
