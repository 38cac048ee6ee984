"""Plans of somebody's own mixer are checked before a client is asked for anything."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from flwr_splitmix.mixers import (
    FullShare,
    Group,
    IdShare,
    InputLevel,
    MaskShare,
    Member,
    Mixer,
    Mixup,
    Noisy,
    NoisyShare,
    NoMixing,
    PatchCutMix,
    Plan,
    Share,
    Shuffled,
    SmashedShape,
    WeightedShare,
)
from flwr_splitmix.mixers.plan_check import check_masks, check_plan
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.strategies import SplitStrategy
from flwr_splitmix.testing.toy import Toy, sgd

SHAPE = SmashedShape(2, 4, 3)


@dataclass(frozen=True, kw_only=True)
class Listed(MaskShare):
    """Keeps the patches of a list, or of a list for each sample."""

    name: ClassVar[str] = "listed"
    kept: list[Any]

    def positions(self, batch: int) -> Tensor:
        return torch.tensor(self.kept)

    def count(self) -> int:
        return torch.tensor(self.kept).shape[-1]


def listed(*position_lists: list[Any]) -> list[Share]:
    return [
        Listed(patches=4, lam=1 / len(position_lists), kept=list(positions))
        for positions in position_lists
    ]


class Planned(Mixer):
    """Gives the clients these shares, in one group."""

    shares = (*Mixer.shares, Listed)

    def __init__(self, shares: Sequence[Share], cover: Any = "partition") -> None:
        self.given = shares
        self.cover = cover

    def plan(
        self,
        members: Sequence[int],
        shape: SmashedShape,
        rng: np.random.Generator,
        order_rng: np.random.Generator | None = None,
    ) -> Plan:
        return Plan(shape, ((Group(tuple(map(Member, range(len(self.given)), self.given))),),))


def check(shares: Sequence[Share], cover: str = "partition") -> None:
    mixer = Planned(shares, cover)
    check_masks(mixer, mixer.plan([0, 1], SHAPE, np.random.default_rng(0)))


def noisy(share: Share) -> Share:
    return NoisyShare.around(share, GaussianNoise(sigma_s=1.0, sigma_y=1.0), 2)


@pytest.mark.parametrize("wrap", [lambda share: share, noisy], ids=["plain", "noisy"])
def test_masks_that_overlap_are_named(wrap: Any) -> None:
    shares = [wrap(share) for share in listed([0, 1, 2], [2, 3])]
    for cover in ("partition", "partial"):
        with pytest.raises(ValueError, match=r"clients 0, 1\) overlap: patch 2 is kept 2 times"):
            check(shares, cover)


def test_masks_may_leave_patches_out_only_if_the_mixer_says_so() -> None:
    shares = listed([0, 1], [3])
    with pytest.raises(ValueError, match=r'leave out patch 2, .*cover = "partial"'):
        check(shares)
    check(shares, "partial")


def test_masks_differ_by_sample() -> None:
    check(listed([[0, 1], [2, 3]], [[3, 2], [1, 0]]))
    with pytest.raises(ValueError, match="overlap: patch 3 is kept 2 times"):
        check(listed([[0, 1], [2, 3]], [[3, 2], [1, 3]]))


@pytest.mark.parametrize(
    "mixer", [NoMixing(), PatchCutMix(2), Mixup(2)], ids=lambda mixer: type(mixer).__name__
)
def test_masks_common_to_all_samples_take_no_memory_for_each(mixer: Mixer) -> None:
    """A batch as large as a client claims would need 103 GB."""
    shape = SmashedShape(2**31 - 1, 6, 3)
    check_masks(mixer, mixer.plan([0, 1], shape, np.random.default_rng(0)))


def test_sums_have_no_masks() -> None:
    check([WeightedShare(lam=0.5)] * 2, "weighted")
    check([WeightedShare(lam=0.5), *listed([0, 1], [2])[:1]])
    with pytest.raises(ValueError, match="leave out patch 3"):
        check(listed([0, 1], [2]))


@pytest.mark.parametrize(
    ("share", "sentence"),
    [
        (Listed(patches=4, kept=[0.0, 1.0]), "must return an int64 tensor, got torch.float32"),
        (Listed(patches=4, kept=[[[0]]]), "the shape (1,) or (2, 1), as its `count` is 1; got"),
        (Listed(patches=4, kept=[3, 4]), "share 'listed' keeps patches 3 to 4; expected 0 to 3"),
        (Listed(patches=4, kept=[-1, 0]), "share 'listed' keeps patches -1 to 0; expected 0 to"),
        (Listed(patches=3, kept=[0]), "the share is for 0 + 3 tokens, the smashed data have "),
    ],
)
def test_positions_that_are_none_are_named(share: Share, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        check([share], "partial")
    smashed = torch.ones(2, 4, 3)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        share.upload(smashed)


def test_a_count_of_its_own_must_be_right() -> None:
    class Miscounted(Listed):
        name = "miscounted"

        def count(self) -> int:
            return 3

    with pytest.raises(ValueError, match=re.escape("as its `count` is 3; got (2,)")):
        check([Miscounted(patches=4, kept=[0, 1])])


@pytest.mark.parametrize(
    ("plan", "error", "sentence"),
    [
        (Plan(replace(SHAPE, batch=3), ()), ValueError, "make the plan with the shape that is"),
        (
            Planned(listed([0, 1], [2], [3])).plan([], SHAPE, np.random.default_rng(0)),
            ValueError,
            "the plan has client 2, which takes no part in this step",
        ),
    ],
)
def test_a_plan_is_one_of_the_clients_that_take_part(
    plan: Any, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=re.escape(sentence)):
        check_plan(Planned([]), plan, [0, 1], SHAPE)


@pytest.mark.parametrize(
    ("other", "kind"),
    [(FullShare(), "classes"), (noisy(FullShare()), "soft")],
    ids=["classes", "soft"],
)
def test_ids_in_one_pass_and_other_labels_in_another_are_refused(other: Share, kind: str) -> None:
    """The server would look up classes that the client sends as ids of examples."""

    def passes(*shares: Share) -> Plan:
        return Plan(SHAPE, tuple((Group((Member(1, share),)),) for share in shares))

    with pytest.raises(ValueError, match=f"client 1 for ids in one pass and for {kind} in another"):
        check_plan(Planned([]), passes(IdShare(), other), [0, 1], SHAPE)
    for share in (IdShare(), other):
        check_plan(Planned([]), passes(share, share), [0, 1], SHAPE)
    check_plan(Planned([]), passes(FullShare(), noisy(FullShare())), [0, 1], SHAPE)


def test_a_run_refuses_masks_that_overlap() -> None:
    toy = Toy(clients=2)
    shares = [Listed(patches=toy.patches, lam=0.5, kept=[*range(toy.patches)])] * 2
    strategy = SplitStrategy(toy.upper(), mixer=Planned(shares), device="cpu", steps_per_round=1)
    with pytest.raises(ValueError, match=r"Planned: the masks of a group .* overlap"):
        strategy.fit(toy.make_clients(sgd(0.1)), 1)


def test_an_unknown_family_is_named() -> None:
    with pytest.raises(
        TypeError, match="family of share Odd is 'nonsense'; it must be one of 'full'"
    ):
        type("Odd", (Listed,), {"family": "nonsense", "name": "odd"})


@pytest.mark.parametrize(
    "wrap",
    [
        lambda mixer: mixer,
        lambda mixer: Noisy(mixer, GaussianNoise(sigma_s=1.0, sigma_y=1.0)),
        Shuffled,
        InputLevel,
    ],
    ids=["plain", "noisy", "shuffled", "inputs"],
)
def test_a_run_refuses_what_is_no_plan(wrap: Callable[[Mixer], Mixer]) -> None:
    class Nothing(Planned):
        def plan(self, *arguments: Any) -> Any:
            return []

    toy = Toy(clients=2)
    mixer = wrap(Nothing([]))
    strategy = SplitStrategy(toy.upper(), mixer=mixer, device="cpu", steps_per_round=1)
    with pytest.raises(TypeError, match="Nothing: `plan` must return a Plan, got a list"):
        strategy.fit(toy.make_clients(sgd(0.1)), 1)
