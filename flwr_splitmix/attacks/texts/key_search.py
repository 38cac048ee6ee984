"""Search for the key: to an attacker, MixGuard's secret is a single direction in R^m."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from flwr_splitmix.attacks.texts.view import (
    PublicTexts,
    TextReading,
    TextRelease,
    TextView,
    head_states,
)
from flwr_splitmix.attacks.texts.vocabulary import ReaderAttack
from flwr_splitmix.segments.language import LanguageParts

__all__ = ["KeySearch", "Unmixing", "search"]

DIRECTIONS = 400
"""Random directions that a search starts from."""

CLIMB_STARTS = 12
"""Climbs start from this many of the best directions, no two of which give similar texts."""

CLIMB_STEPS = 20
"""Steps of a climb: find the nearest states, then the direction that fits them best."""

RIDGE = 1e-6

PLACES = 24
"""Places of a text on which directions are first compared."""

STATES = {"smoke": 2000, "cpu": 6000, "paper": 20000}
"""Number of states of public texts, by scale."""

NEAR, APART = 0.9, 0.98
"""|cos| above which two texts count as the same: among starts, and among results."""


@dataclass(frozen=True)
class Unmixing:
    """A direction found by the search.

    Parameters
    ----------
    direction
        float32 (m,), of unit length.
    estimate
        (T, d): the combination of the messages in this direction.
    fit
        Mean best cosine with states of public texts: 1 if every state is one of them.
    """

    direction: Tensor
    estimate: Tensor
    fit: float


def search(
    messages: Tensor,
    states: Tensor,
    *,
    generator: torch.Generator,
    directions: int = DIRECTIONS,
    most: int | None = None,
    skip: int = 0,
) -> list[Unmixing]:
    """Find directions in which the messages of one text combine to states of a text.

    A direction that isolates one source looks like text. With at most as many sources as messages
    each source can be isolated; with more, only the target, which the secret itself leaves pure.

    Parameters
    ----------
    messages
        (m, T, d), of one text under one secret.
    states
        (n, d), of public texts under the base head, at any place.
    directions
        Number of random directions that the search starts from.
    most
        Most optima to return; None for as many as messages.
    skip
        Number of first places to ignore, such as that of a token that begins every text.

    Returns
    -------
    The optima, best first; they give different texts.

    Raises
    ------
    ValueError
        If shapes do not fit.

    Source: ours (docs/attacks.md).
    """
    if messages.ndim != 3 or states.ndim != 2 or messages.shape[-1] != states.shape[-1]:
        raise ValueError(
            f"messages have shape {tuple(messages.shape)} and states {tuple(states.shape)}; they "
            "must be (m, T, d) and (n, d)"
        )
    m, length = messages.shape[:2]
    mixtures = messages.detach().float()[:, min(skip, length - 1) :]
    bank = F.normalize(states.float(), dim=-1)
    # Equalise the messages' norms, so that directions weigh them comparably.
    scale = mixtures.flatten(1).norm(dim=1).clamp(min=1e-12)
    unit = mixtures / scale[:, None, None]
    places = torch.linspace(0, unit.shape[1] - 1, min(PLACES, unit.shape[1])).long()
    few = unit[:, places]
    drawn = F.normalize(torch.randn(directions, m, generator=generator), dim=-1)
    starts = _distinct_directions(drawn, _fits(drawn, few, bank), few)
    climbed = _climb(starts, unit, bank)
    fits = _fits(climbed, unit, bank)
    answers: list[Unmixing] = []
    for index in fits.argsort(descending=True).tolist():
        direction = F.normalize(climbed[index] / scale, dim=0)
        whole = torch.einsum("m,mtd->td", direction, messages.detach().float())
        if all(_likeness(whole[skip:], other.estimate[skip:]) < APART for other in answers):
            answers.append(Unmixing(direction, whole, float(fits[index])))
        if len(answers) == (most or m):
            break
    return answers


def _fits(directions: Tensor, mixtures: Tensor, bank: Tensor) -> Tensor:
    """Return the mean best cosine with the bank, for the better sign: (n,)."""
    scores = []
    for part in torch.split(directions, max(1, 1024 // mixtures.shape[1])):
        estimates = F.normalize(torch.einsum("nm,mtd->ntd", part, mixtures), dim=-1)
        cosines = estimates.flatten(0, 1) @ bank.T
        both = torch.stack([cosines.amax(1), -cosines.amin(1)])
        scores.append(both.view(2, len(part), -1).mean(2).amax(0))
    return torch.cat(scores)


def _distinct_directions(directions: Tensor, fits: Tensor, mixtures: Tensor) -> Tensor:
    """Return the best directions, only one of those that give similar texts: (n, m)."""
    chosen: list[Tensor] = []
    estimates: list[Tensor] = []
    for index in fits.argsort(descending=True).tolist():
        estimate = torch.einsum("m,mtd->td", directions[index], mixtures)
        if all(_likeness(estimate, other) < NEAR for other in estimates):
            chosen.append(directions[index])
            estimates.append(estimate)
        if len(chosen) == CLIMB_STARTS:
            break
    return torch.stack(chosen)


def _climb(directions: Tensor, mixtures: Tensor, bank: Tensor) -> Tensor:
    """Move directions (n, m) towards those whose texts are nearest to states of the bank.

    A step finds the nearest state for every place, then the direction that fits all of these best:
    a least-squares problem with m unknowns. The sum of cosines hardly ever decreases.
    """
    for _ in range(CLIMB_STEPS):
        estimates = torch.einsum("nm,mtd->ntd", directions, mixtures)
        size = estimates.norm(dim=-1).clamp(min=1e-12)
        cosines = (estimates / size.unsqueeze(-1)).flatten(0, 1) @ bank.T
        likeness, nearest = cosines.abs().max(1)
        sign = cosines.gather(1, nearest[:, None]).sign()
        aims = (bank[nearest] * sign).view(*estimates.shape)
        # Signs differ while a text is not yet read; the majority determines the direction's.
        weight = likeness.view(len(directions), -1) ** 4 / size
        moment = torch.einsum("nt,mtd,ntd->nm", weight, mixtures, aims)
        spread = torch.einsum("nt,mtd,ltd->nml", weight / size, mixtures, mixtures)
        # With fewer sources than messages, some directions contain nothing.
        ridge = (
            RIDGE * spread.diagonal(dim1=1, dim2=2).sum(1)[:, None, None] * torch.eye(len(mixtures))
        )
        directions = F.normalize(torch.linalg.solve(spread + ridge, moment), dim=-1)
    return directions


def _likeness(first: Tensor, second: Tensor) -> float:
    return abs(float(F.cosine_similarity(first.flatten(), second.flatten(), dim=0)))


class KeySearch(ReaderAttack):
    """Search for directions in which the messages of one text give a text, then read its words.

    One text is enough, without gradients, so a separate secret for every text does not help.
    """

    name = "key-search"
    needs: ClassVar[frozenset[str]] = frozenset(
        {"base model", "decoder", "several messages", "public data"}
    )
    source = "ours"

    def learn(self, view: TextView, public: PublicTexts | None) -> None:
        """Compute the hidden states of public texts."""
        assert public is not None
        super().learn(view, public)
        begin = view.knowledge.begin
        self.skip = 0 if begin is None else 1
        self.states = public_states(self.parts, public, STATES[self.budget.scale], begin)
        self.generator = torch.Generator().manual_seed(self.seed)

    def readings(self, release: TextRelease, view: TextView) -> Iterator[TextReading]:
        """Read every direction found by the search."""
        ways = search(release.messages, self.states, generator=self.generator, skip=self.skip)
        for place, one in enumerate(ways):
            ids, _ = self.reader.read(one.estimate, self.pairs)
            yield ids, one.fit, f"direction {place + 1}"


def public_states(
    parts: LanguageParts, public: Sequence[Tensor], most: int, begin: int | None
) -> Tensor:
    """Return about `most` hidden states of public texts, without those of beginning tokens."""
    rows: list[Tensor] = []
    count = 0
    if parts.cut.head == 0:  # a token's state is the same at every place
        words = torch.tensor(sorted({int(i) for ids in public for i in ids} - {begin}))
        return torch.cat([head_states(parts, i[None]) for i in words[:most]])
    skip = 0 if begin is None else 1
    for ids in public:
        rows.append(head_states(parts, ids)[skip:])
        count += len(rows[-1])
        if count >= most:
            break
    return torch.cat(rows)[:most]
