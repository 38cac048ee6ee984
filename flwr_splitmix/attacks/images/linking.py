"""Which rows of a view show one image: what an attacker who collects has to find out first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from flwr_splitmix.attacks.base import Release, View
from flwr_splitmix.attacks.images.example import queries
from flwr_splitmix.attacks.images.gathering import distances
from flwr_splitmix.mixers.frozen_edge import FrozenEdge

Row = tuple[int, int]
"""Place of a release in its view, and the row in it."""

MOST = 4_000
"""Newest rows of a client that are compared: all pairs are."""


def link(view: View, most: int, near: float | None) -> list[list[Row]]:
    """Put rows that show one image together, newest first, at most `most` of an image.

    Frozen edges send ids of examples: these say it. Else rows of one client are taken together
    that are nearer to each other than `near` at the patches that both hold.

    Parameters
    ----------
    near
        Largest mean square distance; None leaves every row alone.

    Returns
    -------
    Groups that together hold every row once, or not at all where its image has `most` already.
    """
    if isinstance(view.knowledge.mixer, FrozenEdge):
        by_id = ids(view.releases)
        if by_id is not None:
            return [rows[::-1][:most] for rows in by_id.values()]
    if near is None:
        return [[(i, row)] for i, r in enumerate(view.releases) for row in range(len(r.smashed))]
    clients: dict[int | None, list[int]] = {}
    for place, release in enumerate(view.releases):
        clients.setdefault(release.client, []).append(place)
    return [group for places in clients.values() for group in _of_client(view, places, most, near)]


def ids(releases: Sequence[Release]) -> Mapping[tuple[int | None, int], list[Row]] | None:
    """Return the rows of each (client, example's id), oldest first; None where no ids came."""
    rows: dict[tuple[int | None, int], list[Row]] = {}
    for place, release in enumerate(releases):
        if release.labels is None or release.labels.is_floating_point():
            return None
        for row, example in enumerate(release.labels.tolist()):
            rows.setdefault((release.client, example), []).append((place, row))
    return rows


def row_tensors(view: View, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Return the tokens (n, prefix + N, d), weights taken out, and masks (n, N) of rows."""
    tokens, masks, asked = [], [], {}
    for place, row in rows:
        if place not in asked:
            asked[place] = queries(view.releases[place], view.knowledge)[0]
        query = asked[place]
        tokens.append(query.tokens[row])
        known = query.mask is not None
        masks.append(
            query.mask[row]
            if known and query.mask is not None
            else torch.ones(view.knowledge.geometry.patches, dtype=torch.bool)
        )
    return torch.stack(tokens), torch.stack(masks)


def _of_client(view: View, places: Sequence[int], most: int, near: float) -> list[list[Row]]:
    """Take the newest row that is in no group yet, and the nearest of every other release."""
    newest = [(p, r) for p in reversed(places) for r in range(len(view.releases[p].smashed))][:MOST]
    tokens, masks = row_tensors(view, newest)
    prefix = view.knowledge.geometry.prefix
    patches = tokens[:, prefix:]
    release = torch.tensor([place for place, _ in newest])
    free = torch.ones(len(newest), dtype=torch.bool)
    groups = []
    for seed in range(len(newest)):
        if not free[seed]:
            continue
        free[seed] = False
        apart = distances(patches[seed : seed + 1], masks[seed : seed + 1], patches, masks)[0]
        apart[~free | (release == release[seed])] = torch.inf
        members, used = [seed], {int(release[seed])}
        for other in apart.argsort().tolist():
            if apart[other] > near or len(members) == most:
                break
            if int(release[other]) not in used:
                used.add(int(release[other]))
                members.append(other)
                free[other] = False
        groups.append([newest[i] for i in members])
    return groups
