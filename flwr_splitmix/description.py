"""A client's description of itself when it attaches to a round: keys, ranges, one reader.

A description travels as a flat mapping of plain values, whose keys are the names of the fields here
with "-" for "_". A field that has its default is not sent. Every receiver of a description reads it
once, on its arrival; everything behind that gets the object.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_type_hints

from flwr_splitmix.errors import ForeseenError
from flwr_splitmix.values import MAX_COUNT, shown, wrong_count

MAX_SPLIT_BATCH = 2**20
"""Most examples in a client's batch in the L shape: a full batch of vectors may have many."""

MAX_USHAPE_BATCH = 65_536
"""Most examples in a client's batch in the U shape."""

MAX_CALIBRATION = 100_000
"""Most calibration exchanges of a client, for which the others wait."""

_MAX_INTEGER = 2**63 - 1
"""Most that a whole number under a key of a client's own may be, without its sign: longer ones, in
JSON of any length, could not be written to a file where they are kept."""


class DescriptionError(ForeseenError, ValueError):
    """A client describes itself in values that it cannot have; the message is about the client."""


class Whole(NamedTuple):
    """The range of a whole number."""

    least: int
    most: int = MAX_COUNT


Count = Annotated[int, Whole(0)]
Size = Annotated[int, Whole(1)]


class _Part:
    """Some fields of a description."""

    def to_plain(self) -> dict[str, Any]:
        """Return the fields as plain values by key, without those that have their default."""
        plain: dict[str, Any] = {}
        for each in _entries(type(self)):
            value = getattr(self, each.name)
            if isinstance(value, _Part):
                plain |= value.to_plain()
            elif each.required or value != each.default:
                plain[each.key] = list(value) if isinstance(value, tuple) else value
        return plain


@dataclass(frozen=True, kw_only=True)
class NodeDescription(_Part):
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
class SegmentDescription(_Part):
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
class UploadFacts(_Part):
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
class Description(_Part):
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


def read_description(description: Mapping[str, Any]) -> Description:
    """Return what a client says of itself, by the class of its shape.

    Unknown keys, such as those of a user's own client class, are kept as `others`. A value
    None counts as a key that is missing.

    Raises
    ------
    DescriptionError
        If a required key is missing, a value has another type or is beyond its range (the message
        names the key), or the value of an unknown key is not plain.
    """
    shape = next((kind for key, kind in SHAPES.items() if key in description), Description)
    known_keys = keys_of(shape)
    others = {key: value for key, value in description.items() if key not in known_keys}
    if not all(map(_is_plain, others.values())):
        raise DescriptionError("described itself in other than plain values")
    return _read(shape, description, others=others)


def keys_of(kind: type[_Part]) -> dict[str, Any]:
    """Return the keys of a part of a description, and of its own parts, with their types.

    A type is bool, str, float, tuple[str, ...] or, for a whole number, Annotated[int, Whole].
    """
    keys: dict[str, Any] = {}
    for each in _entries(kind):
        keys |= keys_of(each.kind) if _is_part(each.kind) else {each.key: each.kind}
    return keys


class _Entry(NamedTuple):
    """A field: its type, without None, and its default."""

    name: str
    kind: Any
    default: Any

    @property
    def key(self) -> str:
        return self.name.replace("_", "-")

    @property
    def required(self) -> bool:
        return self.default is MISSING


_ENTRIES: dict[Any, tuple[_Entry, ...]] = {}
"""The fields of each class, once they are known: type hints take a millisecond to resolve."""


def _entries(kind: Any) -> tuple[_Entry, ...]:
    """Return the fields of a part of a description, without `others`."""
    if kind not in _ENTRIES:
        hints = get_type_hints(kind, include_extras=True)
        _ENTRIES[kind] = tuple(
            _Entry(one.name, _without_none(hints[one.name]), one.default)
            for one in fields(kind)
            if one.name != "others"
        )
    return _ENTRIES[kind]


def _without_none(hint: Any) -> Any:
    return get_args(hint)[0] if NoneType in get_args(hint) else hint


def _is_part(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, _Part)


Part = TypeVar("Part", bound=_Part)


def _read(kind: type[Part], description: Mapping[str, Any], **presets: Any) -> Part:
    values = dict(presets)
    for entry in _entries(kind):
        value = description.get(entry.key)
        if _is_part(entry.kind):
            values[entry.name] = _read(entry.kind, description)
        elif value is not None or entry.required:
            values[entry.name] = _checked(entry, value)
    return kind(**values)


def _checked(entry: _Entry, value: Any) -> Any:
    """Return the value of a field; raise DescriptionError if it has another type or range."""
    kind, wrong = entry.kind, ""
    if value is None:
        raise DescriptionError(f"does not say its {entry.key}, as it must")
    if isinstance(limits := next(iter(getattr(kind, "__metadata__", ())), None), Whole):
        wrong = wrong_count(value, *limits)
    elif kind is float:
        if type(value) is not float or not math.isfinite(value):
            wrong = f"is {shown(value)}; it must be a finite floating-point number"
    elif kind in (bool, str):
        if not isinstance(value, kind):
            allowed = "true or false" if kind is bool else "a text"
            wrong = f"is {shown(value)}; it must be {allowed}"
    elif not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
        wrong = "is no list of texts"
    if wrong:
        raise DescriptionError(f"says that its {entry.key} {wrong}")
    return tuple(value) if isinstance(value, list) else value


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_single(each) for each in value)
    return _is_single(value)


def _is_single(value: object) -> bool:
    if isinstance(value, int):
        return abs(value) <= _MAX_INTEGER
    return value is None or isinstance(value, (float, str))
