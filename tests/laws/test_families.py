"""The law of families over every mixer, and shares that break it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from torch import Tensor

from flwr_splitmix.mixers import (
    FullShare,
    Group,
    Member,
    Mixer,
    Noisy,
    PatchCutMix,
    Plan,
    Share,
    SmashedShape,
    VanillaCutMix,
    WeightedShare,
)
from flwr_splitmix.privacy.events import Family
from flwr_splitmix.testing.laws import Toy, check_families
from tests.laws.makers import NAMES, NOISE, maker


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prefix", [0, 1])
def test_no_share_of_this_package_sends_more_than_it_is_charged_for(name: str, prefix: int) -> None:
    check_families(maker(name)(Toy().upper()).mixer, prefix=prefix)


def test_masks_of_each_sample_and_boxes_of_parts_keep_to_it() -> None:
    for mixer in (PatchCutMix(3, 1.0, mask_per_sample=True), VanillaCutMix(2, 0.5)):
        for each in (mixer, Noisy(mixer, NOISE)):
            check_families(each, clients=6, prefix=2)


@dataclass(frozen=True, kw_only=True)
class Louder(FullShare):
    name: ClassVar[str] = "louder"
    family: ClassVar[Family | None] = "full"

    def upload(self, smashed: Tensor) -> tuple[Tensor, Tensor]:
        return 1.1 * smashed, smashed


@dataclass(frozen=True, kw_only=True)
class Unweighted(WeightedShare):
    name: ClassVar[str] = "unweighted"
    family: ClassVar[Family | None] = "mixup"

    def upload(self, smashed: Tensor) -> tuple[Tensor, Tensor]:
        return smashed, smashed


@dataclass(frozen=True, kw_only=True)
class Placed(FullShare):
    name: ClassVar[str] = "placed"
    family: ClassVar[Family | None] = "full"

    def place(self, mixed: Tensor, upload: Tensor) -> None:
        mixed.copy_(2 * upload)


@dataclass(frozen=True, kw_only=True)
class LouderLater(FullShare):
    name: ClassVar[str] = "later"
    family: ClassVar[Family | None] = "full"

    def part(self, first: int) -> Share:
        return Louder()


class Alone(Mixer):
    def __init__(self, kind: type[Share], lam: float) -> None:
        self.kind, self.lam = kind, lam

    def plan(
        self,
        members: Sequence[int],
        shape: SmashedShape,
        rng: np.random.Generator,
        order_rng: np.random.Generator | None = None,
    ) -> Plan:
        return Plan(shape, (tuple(Group((Member(c, self.kind(lam=self.lam)),)) for c in members),))


@pytest.mark.parametrize(
    ("kind", "lam", "message"),
    [
        (Louder, 1.0, "share 'louder' of family 'full', client 0: its upload has 1.21 times"),
        (Unweighted, 0.5, "share 'unweighted' of family 'mixup', client 0: its upload has 4 times"),
        (Placed, 1.0, "share 'placed' of family 'full', client 0: its upload in place has 4 times"),
        (LouderLater, 1.0, "share 'later' of family 'full', client 0: its upload has 1.21 times"),
    ],
)
def test_a_family_that_promises_too_much_is_found(
    kind: type[Share], lam: float, message: str
) -> None:
    with pytest.raises(AssertionError, match="law of families") as broken:
        check_families(Alone(kind, lam))
    assert message in str(broken.value)
