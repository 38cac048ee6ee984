"""Linking of rows that show the same image, the first task of an attacker that collects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from flwr_splitmix.attacks.base import View
from flwr_splitmix.attacks.images.example import queries
from flwr_splitmix.attacks.images.gathering import distances
from flwr_splitmix.attacks.release import Release
from flwr_splitmix.mixers.frozen_edge import FrozenEdge

Row = tuple[int, int]
"""Position of a release in its view, and the row in it."""

MOST = 4_000
"""Number of a client's newest rows that are compared, in all pairs."""


def link(view: View, most: int, near: float | None) -> list[list[Row]]:
    """Group rows that show the same image, newest first, at most `most` per image.

    Frozen edges send ids of examples, which identify images. Otherwise rows of one client are
    grouped if their distance at the patches that both hold is below `near`.

    Parameters
    ----------
    near
        Largest mean square distance; None links no rows.

    Returns
    -------
    Groups that contain every row once, except rows of an image that already has `most`.
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
    """Return the rows of each (client, example id), oldest first; None if no ids were sent."""
    rows: dict[tuple[int | None, int], list[Row]] = {}
    for place, release in enumerate(releases):
        if release.ids is None:
            return None
        for row, example in enumerate(release.ids.tolist()):
            rows.setdefault((release.client, example), []).append((place, row))
    return rows


def row_tensors(view: View, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Return the tokens (n, prefix + N, d), divided by known weights, and masks (n, N) of rows."""
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


def mean_label(view: View, rows: Sequence[Row]) -> Tensor | None:
    """Return each class's share of the labels of rows that show one image: (1, L); None if unknown.

    The mean has less noise than each of them.
    """
    shares = []
    for place, row in rows:
        labels = queries(view.releases[place], view.knowledge)[0].labels
        if labels is None:
            return None
        shares.append(labels[row])
    return torch.stack(shares).mean(0, keepdim=True)


def noises(view: View, rows: Sequence[Row]) -> Tensor | None:
    """Return the variance of the noise in rows' tokens, float64 (n, N); None if there is none."""
    found = []
    for place, row in rows:
        noise = queries(view.releases[place], view.knowledge)[0].noise
        if noise is None:
            return None
        found.append(noise[row])
    return torch.stack(found)


def _of_client(view: View, places: Sequence[int], most: int, near: float) -> list[list[Row]]:
    """Group the newest free row with the nearest row of every other release, repeatedly."""
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
