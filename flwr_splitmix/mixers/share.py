"""A client's share of a mixing plan: its upload, and the place of that in the mixture."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, Self, TypeVar

from torch import Tensor

from flwr_splitmix.privacy.events import Family

Plain = bool | int | float | str | list[Any] | dict[str, Any]
"""What a share is made of on the wire: plain values, and lists and dictionaries of them."""

LabelKind = Literal["classes", "soft", "ids"]

T = TypeVar("T")

MAX_CLASSES = 10**6
"""Of soft labels: a server that says more would cost its clients their memory."""

_PLAIN: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
}


@dataclass(frozen=True, kw_only=True)
class Share(ABC):
    """One client's part of one mixing group: a function from smashed data to an upload.

    A share is a frozen dataclass of plain values; these few values are all that travels, and both
    sides compute the rest from them. `upload` runs at the client, inside its autograd graph;
    `place` and `pick` run at the mixer.

    Parameters
    ----------
    lam
        Mixing ratio of this client in its group.
    learns
        Whether this pass returns a gradient to this client.
    """

    name: ClassVar[str]
    family: ClassVar[Family | None] = None
    """What the accounting of noise knows it as: "full", "mixup", "cutmix"; None has no bound."""
    deterministic: ClassVar[bool] = True
    """Whether equal smashed data make equal uploads."""
    lam: float = 1.0
    learns: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.lam <= 1:
            raise ValueError(f"lam is {self.lam}; a mixing ratio lies in 0..1")

    @abstractmethod
    def upload(self, smashed: Tensor) -> tuple[Tensor, Tensor]:
        """Return (upload, anchor) of smashed data (b, prefix + N, d).

        The upload is what travels; the anchor is the tensor of the client's graph at which the
        returned gradient enters.
        """

    @abstractmethod
    def upload_shape(self, smashed: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the shape of the upload of smashed data of the given shape."""

    @abstractmethod
    def place(self, mixed: Tensor, upload: Tensor) -> None:
        """Add an upload to its group's mixed smashed data (b, prefix + N, d), in place."""

    @abstractmethod
    def pick(self, gradient: Tensor) -> Tensor:
        """Take this client's cut-layer gradient out of its group's (b, prefix + N, d)."""

    @property
    def label_kind(self) -> LabelKind:
        """What travels as labels.

        "classes": int64 (b,), which the mixer weights by `lam`; "soft": floats (b, L), which the
        client has weighted; "ids": int64 (b,), the examples' indices, whose labels the server has.
        """
        return "classes"

    @property
    def labels_clamped(self) -> bool:
        """Whether soft labels lie in 0..1."""
        return True

    @property
    def mixed(self) -> bool:
        """Whether the upload holds several examples already, before anything joins it."""
        return False

    def part(self, first: int) -> Share:
        """Return the share for a part of the batch, whose samples begin at its sample `first`.

        A share that does not treat all samples alike overrides it: what it is given then, to
        upload, to place and to pick from, is that part alone.
        """
        return self

    def upload_labels(self, labels: Tensor, dtype: Any) -> Tensor:
        """Return what travels as labels, for classes (b,), or soft labels (b, L), of the batch.

        Parameters
        ----------
        dtype
            Of soft labels: that of the smashed data.
        """
        return labels

    def to_wire(self) -> dict[str, Plain]:
        """Return the share as plain values."""
        return {"share": self.name, **asdict(self)}

    @classmethod
    def from_wire(cls, values: Mapping[str, Any], known: Iterable[type[Share]]) -> Self:
        """Make a share of this kind from what `to_wire` returned, less its kind.

        Raises
        ------
        ValueError
            If a value is missing, superfluous or of the wrong type.
        """
        for field in fields(cls):
            if field.name in values:
                # The annotation is text where `from __future__ import annotations` stands.
                kind = getattr(field.type, "__name__", str(field.type))
                value = values[field.name]
                wrong_bool = isinstance(value, bool) and kind != "bool"
                if not isinstance(value, _PLAIN[kind]) or wrong_bool:
                    raise ValueError(f"{field.name} of share {cls.name!r} must be {kind}")
        try:
            return cls(**values)
        except TypeError as error:
            raise ValueError(f"share {cls.name!r}: {error}") from error


def grow(value: Any, kind: type[T], **more: Any) -> T:
    """Return a dataclass value as an instance of a subclass of its class, with further fields."""
    return kind(**{f.name: getattr(value, f.name) for f in fields(value)}, **more)


def share_from_wire(values: Mapping[str, Any], known: Iterable[type[Share]]) -> Share:
    """Make a share from plain values; only kinds in `known` are made.

    Raises
    ------
    ValueError
        If the kind is unknown, or a value is missing, superfluous or of the wrong type.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"a share must be a dictionary, here is {type(values).__name__}")
    kinds = {kind.name: kind for kind in known}
    arguments = dict(values)
    name = arguments.pop("share", None)
    if not isinstance(name, str) or name not in kinds:
        raise ValueError(
            f"unknown share {name!r}; this client knows {', '.join(sorted(kinds))} "
            "(hand others to SplitClient(shares=...))"
        )
    return kinds[name].from_wire(arguments, tuple(kinds.values()))


@dataclass(frozen=True, kw_only=True)
class FullShare(Share):
    """Everything, as it is: plain split learning."""

    name: ClassVar[str] = "full"
    family: ClassVar[Family | None] = "full"

    def upload(self, smashed: Tensor) -> tuple[Tensor, Tensor]:
        """Upload the smashed data itself."""
        return smashed, smashed

    def upload_shape(self, smashed: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the shape unchanged."""
        return smashed

    def place(self, mixed: Tensor, upload: Tensor) -> None:
        """Put the upload there as it is: it is alone in its group."""
        mixed.copy_(upload)

    def pick(self, gradient: Tensor) -> Tensor:
        """Return the whole gradient."""
        return gradient
