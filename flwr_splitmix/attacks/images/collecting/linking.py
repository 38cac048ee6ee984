"""Linking of rows that show the same image, the first task of an attacker that collects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from flwr_splitmix.attacks.base import View
from flwr_splitmix.attacks.images.collecting.gathering import distances
from flwr_splitmix.attacks.images.networks.example import Query, queries
from flwr_splitmix.attacks.release import Release
from flwr_splitmix.mixers.frozen_edge import FrozenEdge

Row = tuple[int, int]
"""Position of a release in its view, and the row in it."""

MAX_ROWS = 4_000
"""Number of a client's newest rows that are compared, in all pairs."""


def link(view: View, most: int, near: float | None) -> list[list[Row]]:
    """Group rows that show the same image, at most `most` in a group, its newest row first.

    Frozen edges send ids of examples, which identify images; rows beyond `most` are left out.
    Otherwise rows of one client are grouped if their distance at the patches that both hold is
    below `near`, nearest first; rows beyond `most` form another group, and rows older than a
    client's newest `MAX_ROWS` are left out.

    Parameters
    ----------
    near
        Largest mean square distance; None links no rows.

    Returns
    -------
    Groups that contain every row once, except those left out.
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


def query_of(view: View, rows: Sequence[Row]) -> Query:
    """Return one query about rows of a client; without a known mask, all patches were sent.

    Labels and noise are None if any row has none.
    """
    by_place = {place: queries(view.releases[place], view.knowledge)[0] for place, _ in rows}
    everything = torch.ones(view.knowledge.geometry.patches, dtype=torch.bool)

    def of_rows(part: str) -> Any:
        each = [(getattr(by_place[place], part), row) for place, row in rows]
        if any(values is None for values, _ in each):
            return None
        return torch.stack([values[row] for values, row in each])

    masks = [(by_place[place].mask, row) for place, row in rows]
    return Query(
        of_rows("tokens"),
        torch.stack([everything if mask is None else mask[row] for mask, row in masks]),
        view.releases[rows[0][0]].client,
        of_rows("labels"),
        of_rows("noise"),
    )


def _of_client(view: View, places: Sequence[int], most: int, near: float) -> list[list[Row]]:
    """Group the newest free row with the nearest row of every other release, repeatedly."""
    newest = [(p, r) for p in reversed(places) for r in range(len(view.releases[p].smashed))][
        :MAX_ROWS
    ]
    received = query_of(view, newest)
    masks = received.mask
    assert masks is not None
    prefix = view.knowledge.geometry.prefix
    patches = received.tokens[:, prefix:]
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
