"""A step's mixtures as releases of each client: sums of its uploads and those of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch

from flwr_splitmix.mixers import Mixed, Plan, Share

Ratios = tuple[float, ...]
"""The mixing ratios of a group's members whose uploads came."""

NO_SUMS: Mapping[int, Ratios] = MappingProxyType({})
"""No upload is seen in a sum: each is seen alone."""


class MixtureUploads(NamedTuple):
    """A client's uploads in mixtures.

    Attributes
    ----------
    shares
        Its share of each pass; None for a pass in which it has none.
    groups
        By pass, the ratios of the group, if only the sum of its uploads is seen.
    """

    client: int
    shares: Sequence[Share | None]
    groups: Mapping[int, Ratios]


def merged(plan: Plan, mixed: Mixed, *, rounded: bool = False) -> Iterator[MixtureUploads]:
    """Yield the uploads in a step's mixtures, client by client, and no others.

    Each upload is protected by the noise of all members that sent theirs. A sum of one upload is
    charged as seen alone. For a batch in parts, a client is yielded once for each set of clients
    whose uploads of a part came: a record is in one part, so the pass costs the part with the
    least noise.

    Parameters
    ----------
    rounded
        Whether uploads were rounded on the wire, before they were added. A sum of rounded numbers
        is not a function of the sum of unrounded ones, so each upload is then seen alone; likewise
        if the mixture is narrower than float32, as its uploads then were.
    """
    rounded = rounded or torch.finfo(mixed.smashed.dtype).bits < 32
    parts = zip(*(source.came for source in mixed.sources), strict=True)
    for came in dict.fromkeys(parts):  # mostly all parts have the same clients
        shares: dict[int, list[Share | None]] = {}
        groups: dict[int, dict[int, Ratios]] = {}
        for source, clients in zip(mixed.sources, came, strict=True):
            members = [member for member in source.members if member.client in clients]
            ratios = tuple(member.share.lam for member in members)
            for member in members:
                client_shares = shares.setdefault(member.client, [None] * len(plan.passes))
                client_shares[source.index] = member.share
                groups.setdefault(member.client, {})[source.index] = ratios
        for client, client_shares in shares.items():
            yield MixtureUploads(client, client_shares, NO_SUMS if rounded else groups[client])
