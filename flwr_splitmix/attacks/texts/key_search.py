"""Search for the key: MixGuard's secret is, to who would undo it, one direction in R^m."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from flwr_splitmix.attacks.texts.view import (
    PublicTexts,
    Reading,
    TextAttack,
    TextRelease,
    TextView,
    head_states,
)
from flwr_splitmix.attacks.texts.vocabulary import Reader

__all__ = ["KeySearch", "Unmixing", "search"]

DIRECTIONS = 400
"""Random directions that a search begins with."""

STARTS = 12
"""The best of them, of which no two make nearly the same text, are climbed from."""

CLIMB = 20
"""Steps of a climb: nearest states, then the direction that comes nearest to these."""

RIDGE = 1e-6

PLACES = 24
"""Places of a text on which directions are compared at first."""

STATES = {"smoke": 2000, "cpu": 6000, "paper": 20000}
"""States of public texts, by scale."""

NEAR, APART = 0.9, 0.98
"""|cos| of two texts above which they are one: of starts, and of what is returned."""


@dataclass(frozen=True)
class Unmixing:
    """A direction that the search came to.

    Parameters
    ----------
    direction
        float32 (m,), of unit length.
    estimate
        (T, d): what it makes of the messages.
    fit
        Mean best cosine with states of public texts: 1 where every state is one of them.
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
    """Find directions that make states of texts out of the messages of one text.

    Every source that a direction leaves alone looks like text: with at most as many sources as
    messages that is each source; with more it is the target's alone, which the secret itself must
    leave pure.

    Parameters
    ----------
    messages
        (m, T, d) of one text under one secret.
    states
        (n, d) of public texts under the base head, at any place.
    directions
        How many random ones the search begins with.
    most
        How many different optima are returned at most; None: as many as messages.
    skip
        So many first places are not looked at: that of a token which begins every text.

    Returns
    -------
    The optima, the best first; they make different texts.

    Raises
    ------
    ValueError
        If shapes do not fit.

    Source: ours (docs/attacks.md).
    """
    if messages.ndim != 3 or states.ndim != 2 or messages.shape[-1] != states.shape[-1]:
        raise ValueError(
            f"messages have shape {tuple(messages.shape)} and states {tuple(states.shape)}; needed "
            "are (m, T, d) and (n, d)"
        )
    m, length = messages.shape[:2]
    sent = messages.detach().float()[:, min(skip, length - 1) :]
    bank = F.normalize(states.float(), dim=-1)
    # Messages of like size: a direction then means the same in each of them.
    scale = sent.flatten(1).norm(dim=1).clamp(min=1e-12)
    unit = sent / scale[:, None, None]
    places = torch.linspace(0, unit.shape[1] - 1, min(PLACES, unit.shape[1])).long()
    few = unit[:, places]
    drawn = F.normalize(torch.randn(directions, m, generator=generator), dim=-1)
    starts = _different(drawn, _fits(drawn, few, bank), few)
    climbed = _climb(starts, unit, bank)
    fits = _fits(climbed, unit, bank)
    answers: list[Unmixing] = []
    for index in fits.argsort(descending=True).tolist():
        own = F.normalize(climbed[index] / scale, dim=0)
        whole = torch.einsum("m,mtd->td", own, messages.detach().float())
        if all(_likeness(whole[skip:], other.estimate[skip:]) < APART for other in answers):
            answers.append(Unmixing(own, whole, float(fits[index])))
        if len(answers) == (most or m):
            break
    return answers


def _fits(directions: Tensor, sent: Tensor, bank: Tensor) -> Tensor:
    """Return the mean best cosine with the bank, of the better sign: (n,)."""
    scores = []
    for part in torch.split(directions, max(1, 1024 // sent.shape[1])):
        made = F.normalize(torch.einsum("nm,mtd->ntd", part, sent), dim=-1)
        cosines = made.flatten(0, 1) @ bank.T
        both = torch.stack([cosines.amax(1), -cosines.amin(1)])
        scores.append(both.view(2, len(part), -1).mean(2).amax(0))
    return torch.cat(scores)


def _different(directions: Tensor, fits: Tensor, sent: Tensor) -> Tensor:
    """Return the best directions, of those that make nearly the same text only one: (n, m)."""
    chosen: list[Tensor] = []
    made: list[Tensor] = []
    for index in fits.argsort(descending=True).tolist():
        own = torch.einsum("m,mtd->td", directions[index], sent)
        if all(_likeness(own, other) < NEAR for other in made):
            chosen.append(directions[index])
            made.append(own)
        if len(chosen) == STARTS:
            break
    return torch.stack(chosen)


def _climb(directions: Tensor, sent: Tensor, bank: Tensor) -> Tensor:
    """Move directions (n, m) towards those whose texts are nearest to states of the bank.

    A step takes for every place the nearest state, and then the direction that comes nearest to
    all of these: a least-squares problem of m unknowns. The sum of cosines hardly ever falls.
    """
    for _ in range(CLIMB):
        made = torch.einsum("nm,mtd->ntd", directions, sent)
        size = made.norm(dim=-1).clamp(min=1e-12)
        cosines = (made / size.unsqueeze(-1)).flatten(0, 1) @ bank.T
        likeness, nearest = cosines.abs().max(1)
        sign = cosines.gather(1, nearest[:, None]).sign()
        aims = (bank[nearest] * sign).view(*made.shape)
        # Signs differ where a text is not yet read; the majority's is that of the direction.
        weight = likeness.view(len(directions), -1) ** 4 / size
        moment = torch.einsum("nt,mtd,ntd->nm", weight, sent, aims)
        spread = torch.einsum("nt,mtd,ltd->nml", weight / size, sent, sent)
        # Fewer sources than messages leave directions in which there is nothing.
        ridge = RIDGE * spread.diagonal(dim1=1, dim2=2).sum(1)[:, None, None] * torch.eye(len(sent))
        directions = F.normalize(torch.linalg.solve(spread + ridge, moment), dim=-1)
    return directions


def _likeness(first: Tensor, second: Tensor) -> float:
    return abs(float(F.cosine_similarity(first.flatten(), second.flatten(), dim=0)))


class KeySearch(TextAttack):
    """Search the directions in which messages of one text become a text, then read the words.

    One text is enough, and no gradient: a secret of its own for every text does not help.
    """

    name = "key-search"
    needs: ClassVar[frozenset[str]] = frozenset(
        {"base model", "decoder", "several messages", "public data"}
    )
    source = "ours"

    def learn(self, view: TextView, public: PublicTexts | None) -> None:
        """Take the hidden states of public texts."""
        assert public is not None
        known = view.knowledge
        self.skip = 0 if known.begin is None else 1
        self.states = public_states(view, public, STATES[self.budget.scale])
        self.reader = Reader(known.parts(), known.begin)
        self.generator = torch.Generator().manual_seed(self.seed)

    def readings(self, release: TextRelease, view: TextView) -> Iterator[Reading]:
        """Read every direction that the search came to."""
        ways = search(release.messages, self.states, generator=self.generator, skip=self.skip)
        for place, one in enumerate(ways):
            ids, _ = self.reader.read(one.estimate)
            yield ids, one.fit, f"direction {place + 1}"


def public_states(view: TextView, public: Sequence[Tensor], most: int) -> Tensor:
    """Return up to so many hidden states of public texts, without those of first tokens."""
    known, rows, count = view.knowledge, [], 0
    if known.parts().cut.head == 0:  # a token's state is the same wherever it stands
        words = torch.tensor(sorted({int(i) for ids in public for i in ids} - {known.begin}))
        return torch.cat([head_states(known.parts(), i[None]) for i in words[:most]])
    skip = 0 if known.begin is None else 1
    for ids in public:
        rows.append(head_states(known.parts(), ids)[skip:])
        count += len(rows[-1])
        if count >= most:
            break
    return torch.cat(rows)[:most]
