"""The events that a ledger understands, separate from their cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from flwr_splitmix.privacy.noise import GaussianNoise
from flwr_splitmix.values import check_choice

Relation = Literal["replace", "add-remove"]
"""How neighbouring inputs differ: in one record. The number of records is the same, and public.

"replace": the record is another one. "add-remove": it is empty, so that its places in uploads hold
noise alone; what it adds to them is added or removed. (Without the record itself the client would
have other batches throughout, and report another number of examples.)
"""

Family = Literal["full", "mixup", "cutmix"]
Seen = Literal["alone", "sum"]

UNBOUNDED = {
    "clip": "no clipping of the smashed data",
    "sigma_s": "no noise on the smashed data (sigma_s = 0)",
    "sigma_y": "no noise on the labels (sigma_y = 0)",
    "resolution": "noise below the resolution of float32 next to what it should hide",
    "plain": "uploads without noise, by which an earlier strategy or run was trained",
    "missed": "earlier rounds of this run that had no noise, or whose noise another ledger counted",
    "evaluation": "evaluation without noise on data not declared public",
    "batch-norm": "BatchNorm, or another layer across the batch, or a buffer that examples change, "
    "in the lower segment, or a data set whose `batch` mixes examples: a record changes the "
    "smashed data of others",
    "owed": "uploads of an interrupted round, priced when the client is asked for a batch again",
    "attempts": "uploads of an interrupted round whose length, mixer or noise is not known",
    "uncounted": "uploads that no plan asked for and no ledger can count",
    "unledgered": "what a client that this ledger does not count has sent, such as one of the U "
    "shape, with whatever noise",
    "seeded": "noise drawn from the run's seed (repeatable_secrets), which the server knows",
    "unknown": "something that another version of the package noted and this one does not know",
}
"""Why an epsilon is infinite, in words."""

WITHOUT_NOISE = frozenset(
    {
        "plain",
        "missed",
        "evaluation",
        "owed",
        "attempts",
        "uncounted",
        "unledgered",
        "seeded",
        "unknown",
    }
)
"""Reasons that leave neither the labels nor the smashed data an epsilon."""

OUTSIDE = {
    "gradients": "gradients sent to clients",
    "lower-segments": "lower segments sent to be averaged, which the server gets without noise",
    "training": "what a record did to the lower segment, which shows in uploads of other records",
}
"""Exposures that a finite epsilon does not cover, in words."""

OUTSIDE_IN_U_SHAPE = {
    "returned-gradients": "gradients returned to the trunk, which depend on inputs and labels",
    "lengths": "the lengths of texts or series, which masks reveal",
    "losses": "mean losses, and scores on any test data, sent without noise, from which labels can "
    "be read",
    "head": "what a record did to the head, which shows in messages of others",
    "messages": "messages to the trunk, which carry inputs without noise",
    "ends": "heads and tails sent to be averaged",
    "trunk": "what a record did to a trunk that learns, through which later gradients of heads "
    "and tails come",
}
"""The same in the U shape, where epsilon covers only messages, or only head and tail."""

Channel = Literal[
    "plain", "missed", "evaluation", "attempts", "uncounted", "unledgered", "seeded", "gradients",
    "lower-segments", "training", "batch-norm", "returned-gradients", "lengths", "losses", "head",
    "messages", "ends", "trunk",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Release:
    """One upload of one batch by one client.

    Parameters
    ----------
    noise
        Clipping and noise applied to it.
    patches, width
        N and d of the smashed data (b, prefix + N, d).
    prefix
        Tokens that are not masked but, if mixed, scaled by the ratio; clipped like patches.
    family
        "full": everything, unmixed (DP-SL; also a client alone in its group). "mixup": all of it,
        times the ratio. "cutmix": the patches of a mask.
    ratio
        The client's own mixing ratio m as it was drawn; of CutMix, its kept patches over N.
    seen
        "alone": the adversary sees this upload itself, as whenever the server runs the mixer.
        "sum": it sees only the group's mixture, because another party mixes.
    ratios
        For "sum", the ratios of all members whose noise is certainly in the sum, including this
        client's. The noise of a member that may drop out is not certain.
    times
        How often the same was sent with fresh noise; for a batch drawn with replacement, the most
        often that a record occurs in it.

    Raises
    ------
    ValueError
        If a value is not one of those allowed.
    """

    noise: GaussianNoise
    patches: int
    width: int
    prefix: int = 0
    family: Family = "cutmix"
    ratio: float = 1.0
    seen: Seen = "alone"
    ratios: tuple[float, ...] = ()
    times: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.noise, GaussianNoise):
            raise ValueError(f"noise is {self.noise!r}; it must be a GaussianNoise")
        check_choice("family", self.family, get_args(Family))
        check_choice("seen", self.seen, get_args(Seen))
        for name, least in (("patches", 1), ("width", 1), ("prefix", 0), ("times", 1)):
            if not _is_integer(value := getattr(self, name)) or value < least:
                raise ValueError(f"{name} is {value!r}; it must be an integer of at least {least}")
        if not 0 <= self.ratio <= 1:
            raise ValueError(f"ratio is {self.ratio}; a mixing ratio lies in 0..1")
        if self.family == "full" and self.ratio != 1:
            raise ValueError(f"ratio is {self.ratio}; a release without mixing has ratio 1")
        if self.seen == "sum" and self.family != "full":
            if self.ratio not in self.ratios:
                raise ValueError(
                    f"ratios is {self.ratios}; a release seen as a sum needs those of its group, "
                    f"the client's own {self.ratio} among them"
                )
            if min(self.ratios) < 0 or sum(self.ratios) > 1 + 1e-9:
                raise ValueError(f"ratios is {self.ratios}; they lie in 0..1 and sum to at most 1")

    @property
    def gaps(self) -> tuple[str, ...]:
        """Keys of `UNBOUNDED` for why this release has no epsilon; empty if it has one."""
        return self.noise.gaps if self.ratio > 0 else ()


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """A Gaussian release to which every record of the client contributed at most 1 in L2 norm.

    Parameters
    ----------
    noise_multiplier
        Standard deviation of its noise.
    times
        How often it was made.

    Raises
    ------
    ValueError
        If a value is not positive.
    """

    noise_multiplier: float
    times: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier > 0):
            raise ValueError(
                f"noise_multiplier is {self.noise_multiplier}; it must be a number above 0"
            )
        if not _is_integer(self.times) or self.times < 1:
            raise ValueError(f"times is {self.times!r}; it must be an integer of at least 1")


@dataclass(frozen=True)
class Exposure:
    """Something left the client that a ledger cannot quantify.

    Parameters
    ----------
    channel
        "plain", "missed", "evaluation", "attempts", "uncounted", "unledgered", "seeded" and
        "batch-norm" make epsilon infinite; the others are stated in words next to it (see
        `UNBOUNDED` and `OUTSIDE`). Record "training" whenever the lower segment learns from the
        client's own records, and "batch-norm" whenever an example can change what it makes of
        another: by BatchNorm, a shuffle, a running mean.

    Raises
    ------
    ValueError
        If the channel is unknown.
    """

    channel: Channel

    def __post_init__(self) -> None:
        check_choice("channel", self.channel, get_args(Channel))


Event = Release | Gaussian | Exposure


def check_relation(relation: str) -> None:
    """Raise ValueError if `relation` is not one of `Relation`."""
    check_choice("relation", relation, get_args(Relation))


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
