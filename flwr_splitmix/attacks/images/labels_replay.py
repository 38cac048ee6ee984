"""`labels-replay`: labels in the U shape, by taking a client's steps along with it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from flwr_splitmix.attacks.base import Attack, Goal, Guess, View
from flwr_splitmix.attacks.fitted import NotApplicable
from flwr_splitmix.attacks.images.label_leaks.gradient_leaks import regrouped
from flwr_splitmix.attacks.tails import MAX_EXACT_MISFIT, TailReading, TailReplay, Tails

log = logging.getLogger("flwr.splitmix")

Place = tuple[int, int, int | None]
"""Round, step and client."""


class LabelsReplay(Attack):
    """Reads labels from returned gradients by replaying each client's tail from its first weights.

    The server has the tail's first weights, all that the tail sees, and all that it returns. So it
    knows the gradient that each class would have, gives each image the class whose gradient is
    nearest, and takes the step that the client takes. No label needs to be known. Images that are
    released after training are not guessed.

    A warning names the first step whose gradients do not fit the replayed tail, as where a step is
    missing, the tail learns with noise or has dropout, the loss is another one, or learning rates
    were others: those of a run that was resumed with more rounds, or interrupted within one.
    Labels are then those of the nearest gradients, corrected by the directions of the others'
    (`regrouped`).

    Source: ours; of a single step, Zhao et al., "iDLG", arXiv 2001.02610.
    """

    name = "labels-replay"
    goal: ClassVar[Goal] = "labels"
    needs = frozenset({"gradients", "tails"})
    source = "ours; of a single step, iDLG, arXiv 2001.02610"

    def run(self, view: View) -> Guess:
        """Guess the label of every row that a client sent in a recorded step."""
        tails = view.tails
        assert tails is not None
        attacked: dict[Place, int] = {
            (release.server_round, release.step, release.client): number
            for number, release in enumerate(view.releases)
            if release.gradient is not None
        }
        replays = {
            client: TailReplay(tails, client, self.budget.device)
            for client in sorted({client for *_, client in attacked if client is not None})
        }
        read: dict[int, TailReading] = {}
        misfits: dict[int, tuple[int, int, float]] = {}
        for place, reading in self._replayed(tails, replays, attacked):
            server_round, number, client = place
            assert client is not None
            if reading.misfit > MAX_EXACT_MISFIT:
                misfits.setdefault(client, (server_round, number, reading.misfit))
            if place in attacked:
                read[attacked[place]] = reading
        _log_inexact_tails(replays, misfits)
        if not read:
            raise NotApplicable(_why_none(replays))
        where = [(release, row) for release, of in read.items() for row in range(len(of.labels))]
        labels = {release: reading.labels for release, reading in read.items()}
        if tails.lam == 1:
            for client in misfits:
                labels |= _corrected(view, read, client)
        margins = torch.cat([reading.margins for reading in read.values()])
        return Guess(torch.cat([*labels.values()]), margins, where)

    def _replayed(
        self, tails: Tails, replays: Mapping[int, TailReplay], attacked: Mapping[Place, int]
    ) -> Iterator[tuple[Place, TailReading]]:
        """Yield the labels of each step of each client; past the budget, of attacked ones only."""
        last = max(place[:2] for place in attacked)
        for step in tails.steps():
            place = step.server_round, step.number
            if place > last:
                return
            for client, replay in replays.items():
                if client not in step.drawn:
                    continue
                replay.meet(step)
                if not replay.known or not step.returned.get(client):
                    continue
                if not self.budget.must_end():
                    yield (*place, client), replay.follow(step)
                elif (*place, client) in attacked:
                    yield (*place, client), replay.read(step)


def _corrected(view: View, read: Mapping[int, TailReading], client: int) -> dict[int, Tensor]:
    """Return the labels of a client's releases whose gradients do not fit its replayed tail."""
    releases = [
        release
        for release, reading in read.items()
        if view.releases[release].client == client and reading.misfit > MAX_EXACT_MISFIT
    ]
    gradients = [g for n in releases if (g := view.releases[n].gradient) is not None]
    if not gradients:
        return {}
    labels = [read[release].labels for release in releases]
    corrected = regrouped(torch.cat(gradients), torch.cat(labels), view.knowledge.num_classes)
    return dict(zip(releases, torch.split(corrected, [len(part) for part in labels]), strict=True))


def _log_inexact_tails(
    replays: Mapping[int, TailReplay], misfits: Mapping[int, tuple[int, int, float]]
) -> None:
    """Log which clients' tails are not known exactly: they may have learned otherwise."""
    for client, (server_round, number, misfit) in misfits.items():
        missing = replays[client].missing
        lost = (
            ""
            if missing is None
            else f"; steps before step {missing[1]} of round {missing[0]} are missing"
        )
        log.warning(
            "client %d: from step %d of round %d on, its gradients do not fit the replayed tail "
            "(first by %.0f %% of their length)%s; its labels are the best that fit (a run that "
            "was resumed with more rounds had other learning rates)",
            client,
            number,
            server_round,
            100 * misfit,
            lost,
        )


def _why_none(replays: Mapping[int, TailReplay]) -> str:
    """Return why no label was read."""
    late = [replay for replay in replays.values() if replay.missing and not replay.known]
    if not late:
        return "no attacked image was sent in a recorded step"
    server_round, number = late[0].missing or (0, 0)
    return (
        f"the recording of client {late[0].client} begins with step {number} of round "
        f"{server_round}, and its tail is not averaged: its weights at that step are not known; "
        "record a run from its first step on (record-attacks=true), and with few steps: the "
        "newest 1,000 are kept, of at most 1 GiB"
    )
