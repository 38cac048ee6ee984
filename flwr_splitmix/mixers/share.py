"""A client's share of a mixing plan: its upload, and the upload's place in the mixture."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor, dtype

from flwr_splitmix.errors import ForeseenError
from flwr_splitmix.mixers.plain import check_fields, fits, is_sent, kind_of
from flwr_splitmix.overriding import overridden
from flwr_splitmix.privacy.events import Family

Plain = bool | int | float | str | list[Any] | dict[str, Any]
"""The values of a share on the wire: plain values, and lists and dictionaries of them."""

LabelKind = Literal["classes", "soft", "ids"]

MAX_CLASSES = 10**6
"""Limit for soft labels: more classes would exhaust a client's memory."""

_SENDS = ("upload", "place", "part")
"""Methods that decide how much of a sample is sent: with noise everywhere, `place` does, too."""


@dataclass(frozen=True, kw_only=True)
class Share(ABC):
    """One client's part of one mixing group: a function from smashed data to an upload.

    A share is a frozen dataclass of plain values. Only these values are sent; both sides compute
    the rest from them. `upload` runs at the client, inside its autograd graph; `place` and `pick`
    run at the mixer. A subclass that acts otherwise needs a `name` of its own, by which clients
    recognise it.

    Parameters
    ----------
    lam
        Mixing ratio of this client in its group.
    learns
        Whether this pass returns a gradient to this client.
    """

    name: ClassVar[str]
    family: ClassVar[Family | None] = None
    """Its family in the accounting of noise: how much of one sample an upload holds.

    "full": no more than the whole sample, by its norm; "mixup": `lam` times that; "cutmix":
    some of its patches, each once. None has no bound, so that no epsilon holds. A subclass that
    sends otherwise than the class whose family it would have, has None unless it states its own.
    """
    enlarges: ClassVar[bool] = True
    """Whether a number of an upload may be larger than all of the smashed data which it was.

    A subclass with an `upload` of its own may, unless it states its own.
    """
    _acts: ClassVar[tuple[str, ...]] = ("upload", "upload_shape", "place", "pick")
    """Methods in which kinds of shares differ; one with its own needs a `name` of its own."""
    deterministic: ClassVar[bool] = True
    """Whether equal smashed data give equal uploads."""
    lam: float = 1.0
    learns: bool = True

    def __init_subclass__(cls, **options: Any) -> None:
        """Check the name and the fields of a kind of share; void what its bases state of others.

        Raises
        ------
        TypeError
            If it acts otherwise than the share whose name it has, its family is unknown, or a
            field cannot be sent.
        """
        super().__init_subclass__(**options)
        if overridden(cls, _SENDS, "family"):
            cls.family = None  # an upload that amplifies must not be priced as the inherited one
        if overridden(cls, ("upload",), "enlarges"):
            cls.enlarges = True
        if cls.family not in (None, *get_args(Family)):
            raise TypeError(
                f"family of share {cls.__name__} is {cls.family!r}; it must be one of "
                f"{', '.join(map(repr, get_args(Family)))}, or None"
            )
        own_acts = [act for act in cls._acts if act in vars(cls)]
        for base in cls.__mro__[1:]:
            if own_acts and vars(base).get("name") == getattr(cls, "name", ""):
                raise TypeError(
                    f"share {cls.__name__} has its own {own_acts[0]}, but the name {cls.name!r} of "
                    f"{base.__name__}, which a client would take it for; give it a new one, such "
                    f"as name: ClassVar[str] = {cls.__name__.lower()!r}"
                )
        if cls.from_wire.__func__ is Share.from_wire.__func__:  # type: ignore[attr-defined]
            check_fields(cls)

    def __post_init__(self) -> None:
        if not 0 <= self.lam <= 1:
            raise ValueError(f"lam is {self.lam}; a mixing ratio lies in 0..1")

    @abstractmethod
    def upload(self, smashed: Tensor) -> tuple[Tensor, Tensor]:
        """Return (upload, anchor) of smashed data (b, prefix + N, d).

        The upload is sent; the anchor is the tensor of the client's graph at which the returned
        gradient enters.
        """

    @abstractmethod
    def upload_shape(self, smashed: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the shape of the upload of smashed data of the given shape."""

    @abstractmethod
    def place(self, mixed: Tensor, upload: Tensor) -> None:
        """Add an upload to its group's mixed smashed data (b, prefix + N, d), in place."""

    @abstractmethod
    def pick(self, gradient: Tensor) -> Tensor:
        """Return this client's cut-layer gradient, taken from its group's (b, prefix + N, d)."""

    def undo(self, placed: Tensor) -> Tensor:
        """Return a placed upload's content to parties that know the share, (b, prefix + N, d).

        Attacks begin with it, because the server, and any listener on the link, know every
        share. Override it if `upload` changes smashed data by values of the share, such as the seed
        of an order or of signs: attacks would otherwise read less than the server can.

        Parameters
        ----------
        placed
            (b, prefix + N, d): the upload in its place, and 0 elsewhere.
        """
        return placed

    @property
    def label_kind(self) -> LabelKind:
        """The labels that are sent.

        "classes": int64 (b,), which the mixer weights by `lam`; "soft": floats (b, L), already
        weighted by the client; "ids": int64 (b,), indices of examples whose labels the server has.
        """
        return "classes"

    @property
    def label_range(self) -> tuple[float, float]:
        """The smallest and the largest number that a soft label may have."""
        return 0.0, 1.0

    def label_dtype(self, smashed: dtype) -> dtype:
        """Return the dtype of soft labels beside smashed data of a dtype: by default the same."""
        return smashed

    @property
    def smashed_limit(self) -> float:
        """The largest magnitude of an upload's numbers; infinite if the share sets none."""
        return math.inf

    @property
    def summed(self) -> bool:
        """Whether `place` adds numbers of the upload to those of other members."""
        return False

    @property
    def noised(self) -> bool:
        """Whether an upload holds noise, which a mixer that divides by a ratio would amplify."""
        return False

    @property
    def labels_noised(self) -> bool:
        """Whether soft labels hold noise, which a mixer that divides by a ratio would amplify."""
        return False

    @property
    def mixed(self) -> bool:
        """Whether the upload itself already mixes several examples."""
        return False

    @property
    def masked(self) -> bool:
        """Whether patches are left out of an upload, which is to reveal nothing of them."""
        return False

    @property
    def overwrites(self) -> bool:
        """Whether `place` overwrites what others have placed, so that it must be alone."""
        return False

    def part(self, first: int) -> Share:
        """Return the share for the part of the batch that begins at sample `first`.

        A share that does not treat all samples alike must override this: `upload`, `place` and
        `pick` of the result are given that part only.
        """
        return self

    def upload_labels(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        """Return what to send as labels, given the batch's classes (b,) or soft labels (b, L).

        Parameters
        ----------
        dtype
            Dtype of soft labels: that of the smashed data.
        """
        return labels

    def to_wire(self) -> dict[str, Plain]:
        """Return the share as plain values.

        Raises
        ------
        ValueError
            If a field that is not sent (`NOT_SENT`) has another value than its default.
        """
        values = asdict(self)
        for field in fields(self):
            if not is_sent(field) and (value := values.pop(field.name)) != field.default:
                raise ValueError(
                    f"{field.name} of share {self.name!r} is {value!r} and cannot be sent: only "
                    "shares of whole batches are"
                )
        return {"share": self.name, **values}

    @classmethod
    def from_wire(cls, values: Mapping[str, Any], known: Iterable[type[Share]]) -> Self:
        """Make a share of this kind from the result of `to_wire`, without its "share" entry.

        Raises
        ------
        ValueError
            If a value is missing, superfluous or of the wrong type, or must not be sent.
        """
        for field in fields(cls):
            if field.name in values:
                if not is_sent(field):
                    raise ValueError(f"{field.name} of share {cls.name!r} must not be sent")
                kind, value = kind_of(field.type), values[field.name]
                if not fits(value, kind):
                    raise ValueError(
                        f"{field.name} of share {cls.name!r} must be {kind}, got "
                        f"{type(value).__name__}" + _convert(value, kind)
                    )
        try:
            return cls(**values)
        except TypeError as error:
            raise ValueError(f"share {cls.name!r}: {error}") from error


def _convert(value: Any, kind: str) -> str:
    """Return how a mixer makes a plain number of a NumPy one."""
    return f": convert it with {kind}(...)" if isinstance(value, np.generic) else ""


class UnknownShareError(ForeseenError, ValueError):
    """A share of a kind that the reader was not given; `name` is what it calls itself."""

    def __init__(self, message: str, name: object) -> None:
        super().__init__(message)
        self.name = name


class OwnShareError(ForeseenError, ValueError):
    """A share's own method returned what it must not; the message shows no values."""


def share_from_wire(values: Mapping[str, Any], known: Iterable[type[Share]]) -> Share:
    """Make a share, of a kind in `known`, from plain values.

    Raises
    ------
    ValueError
        If the kind is unknown (UnknownShareError), or a value is missing, superfluous or of the
        wrong type.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"a share must be a dictionary, got {type(values).__name__}")
    kinds = {kind.name: kind for kind in known}
    arguments = dict(values)
    name = arguments.pop("share", None)
    if not isinstance(name, str) or name not in kinds:
        raise UnknownShareError(
            f"unknown share {name!r}; this client knows {', '.join(sorted(kinds))} "
            "(hand others to SplitClient(shares=...))",
            name,
        )
    return kinds[name].from_wire(arguments, tuple(kinds.values()))
