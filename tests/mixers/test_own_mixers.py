"""Plans and shares of somebody's own that would silently train something else are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from flwr_splitmix.clients import ClientError
from flwr_splitmix.clients.split.graphs import upload
from flwr_splitmix.mixers import (
    SHARES,
    FullShare,
    Group,
    MaskShare,
    Member,
    Mixer,
    NoisyShare,
    NoMixing,
    PatchShare,
    Plan,
    Share,
    SmashedShape,
    Upload,
    WeightedShare,
    known_shares,
    share_from_wire,
)
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.strategies import SplitStrategy
from flwr_splitmix.testing.toy import Toy, sgd

B, N, D, L = 2, 4, 3, 2
SHAPE = SmashedShape(B, N, D)


def patches(start: int, stop: int, **options: Any) -> PatchShare:
    return PatchShare(patches=N, seed=3, start=start, stop=stop, **options)


def plan_of(*groups: dict[int, Share]) -> Plan:
    plan_groups = tuple(Group(tuple(Member(*pair) for pair in group.items())) for group in groups)
    return Plan(SHAPE, (plan_groups,))


def merge(*shares: Share, arrived: Sequence[int] = (0, 1)) -> Tensor:
    """Return the targets of a group of clients 0, 1, ..., of which some arrived."""
    plan = plan_of(dict(enumerate(shares)))
    one = torch.ones(B, N, D)
    uploads = {
        c: Upload([shares[c].upload(one)[0]], torch.zeros(B, dtype=torch.int64)) for c in arrived
    }
    return NoMixing().merge(uploads, plan, num_classes=L).targets


def test_a_client_has_one_share_in_a_pass() -> None:
    half = {"lam": 0.5}
    plan = plan_of(
        {0: patches(0, 2, **half), 1: patches(2, 4, **half)},
        {1: patches(0, 2, **half), 2: patches(2, 4, **half)},
    )
    with pytest.raises(ValueError, match="client 1 has two shares in one pass"):
        plan.for_node(0)


@pytest.mark.parametrize("arrived", [(0, 1), (0,)])
def test_the_ratios_of_a_group_sum_to_1_whoever_arrives(arrived: Sequence[int]) -> None:
    with pytest.raises(ValueError, match="are 1, 1; they must sum to 1"):
        merge(patches(0, 2), patches(2, 4), arrived=arrived)
    targets = merge(patches(0, 2, lam=0.5), patches(2, 4, lam=0.5), arrived=arrived)
    torch.testing.assert_close(targets.sum(1), torch.ones(B))


def test_a_share_that_fills_the_mixture_is_alone_in_its_group() -> None:
    half = FullShare(lam=0.5)
    with pytest.raises(ValueError, match="'full' fills the whole mixture, but NoMixing has put"):
        merge(half, half)
    assert NoisyShare.around(half, GaussianNoise(sigma_s=1.0, sigma_y=1.0), L).overwrites
    weighted = WeightedShare(lam=0.5)
    torch.testing.assert_close(merge(weighted, weighted).sum(1), torch.ones(B))


@pytest.mark.parametrize("named", [{}, {"name": "patches"}])
def test_a_share_that_acts_otherwise_needs_a_name_of_its_own(named: dict[str, str]) -> None:
    acts = {"positions": lambda self, batch: torch.arange(2)}
    with pytest.raises(TypeError, match="its own positions, but the name 'patches' of PatchShare"):
        type("Turned", (PatchShare,), acts | named)
    type("Turned", (PatchShare,), acts | {"name": "turned"})


def kept_share(annotation: Any) -> type[Share]:
    """Return a share whose field `kept` has a type."""

    class Kept(MaskShare):
        name: ClassVar[str] = "kept"
        __annotations__ = {"name": ClassVar[str], "kept": annotation}

        def positions(self, batch: int) -> Tensor:
            return torch.tensor(vars(self)["kept"])

        def count(self) -> int:
            return len(vars(self)["kept"])

    return dataclass(frozen=True, kw_only=True)(Kept)


@pytest.mark.parametrize("annotation", [list[int], "list[int]", list, "list"])
def test_a_share_may_hold_lists(annotation: Any) -> None:
    kind = kept_share(annotation)
    share = kind(patches=N, kept=[3, 1])  # type: ignore[call-arg]
    wire_values = json.loads(json.dumps(share.to_wire()))
    assert share_from_wire(wire_values, (*SHARES, kind)) == share
    for wrong in ("31", {"3": 1}, 3):
        with pytest.raises(ValueError, match="kept of share 'kept' must be list"):
            share_from_wire({**wire_values, "kept": wrong}, (kind,))


@pytest.mark.parametrize(
    ("annotation", "value", "wrong"),
    [
        ("list[int]", [1], [True]),
        ("list[list[float]]", [[1, 0.5]], [1.0]),
        ("dict[str, int]", {"a": 1}, {"a": "b"}),
        (dict[str, list[str]], {"a": ["b"]}, {"a": [1]}),
        ("dict[str, Any]", {"a": [1, "b"]}, []),
    ],
    ids=str,
)
def test_what_is_in_lists_and_dictionaries_is_checked(
    annotation: Any, value: Any, wrong: Any
) -> None:
    kind = kept_share(annotation)
    wire_values = {"share": "kept", "lam": 1.0, "patches": N, "kept": value}
    assert share_from_wire(wire_values, (kind,)).kept == value  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="kept of share 'kept' must be"):
        share_from_wire({**wire_values, "kept": wrong}, (kind,))


@pytest.mark.parametrize(
    "annotation", [tuple[int, ...], Sequence[int], Any, Tensor, "int | None", "list[Tensor]"]
)
def test_a_field_that_cannot_be_sent_is_named_where_the_share_is_defined(annotation: Any) -> None:
    with pytest.raises(TypeError, match=r"kept of share Kept is annotated .*int, float, bool, str"):
        kept_share(annotation)


def test_numpys_numbers_are_to_be_converted() -> None:
    share = patches(0, np.int64(2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"got int64: convert it with int\(...\)"):
        share_from_wire(share.to_wire(), SHARES)


@dataclass(frozen=True, kw_only=True)
class Detaching(FullShare):
    """Sends what it clips, and forgets that the clipped tensor has no graph."""

    name: ClassVar[str] = "detaching"

    def upload(self, smashed: Tensor) -> tuple[Tensor, Tensor]:
        clipped = smashed.detach().clamp(-3, 3)
        return clipped, clipped


def test_a_share_that_detaches_is_refused() -> None:
    smashed = torch.ones(2, 3, 4, requires_grad=True)
    labels = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ClientError, match="share 'detaching' detaches the smashed data"):
        upload([Detaching()], smashed, labels, labels)
    upload([Detaching(learns=False)], smashed, labels, labels)
    upload([Detaching()], smashed.detach(), labels, labels)  # a frozen lower segment


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (torch.ones(2, 3, 4), "must return (upload, anchor), two tensors; got Tensor"),
        ((torch.ones(2, 3, 4), None), "two tensors; got Tensor, NoneType"),
        (
            (torch.ones(2, 1, 4), torch.ones(2, 3, 4)),
            "makes a tensor of shape (2, 1, 4), but its `upload_shape` states (2, 3, 4)",
        ),
    ],
)
def test_what_an_own_upload_returns_is_checked(returned: Any, sentence: str) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Odd(FullShare):
        name: ClassVar[str] = "odd"

        def upload(self, smashed: Tensor) -> tuple[Tensor, Tensor]:
            return returned  # type: ignore[no-any-return]

    labels = torch.zeros(2, dtype=torch.int64)
    noise = GaussianNoise(sigma_s=1.0, sigma_y=1.0)
    for share in (Odd(), NoisyShare.around(Odd(), noise, 2)):
        with pytest.raises(ValueError, match=re.escape(sentence)):
            upload([share], torch.ones(2, 3, 4), labels, labels)


def test_a_round_that_mixes_nobody_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class Nobody(Mixer):
        def plan(
            self,
            members: Sequence[int],
            shape: SmashedShape,
            rng: np.random.Generator,
            order_rng: np.random.Generator | None = None,
        ) -> Plan:
            return Plan(shape, ((),))

    toy = Toy()
    strategy = SplitStrategy(toy.upper(), mixer=Nobody(), device="cpu", steps_per_round=2)
    strategy.fit(toy.make_clients(sgd(0.1)), 1)
    assert "round 1: nothing was learned, as no step had a patch of a client" in caplog.text


def test_a_client_that_no_plan_of_a_round_has_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Picky(NoMixing):
        """Leaves out client 2 always, and client 1 in the first step of a round."""

        steps = 0

        def plan(
            self,
            members: Sequence[int],
            shape: SmashedShape,
            rng: np.random.Generator,
            order_rng: np.random.Generator | None = None,
        ) -> Plan:
            self.steps += 1
            chosen = [0] if self.steps % 2 else [0, 1]
            return super().plan(chosen, shape, rng, order_rng)

    toy = Toy(clients=3)
    strategy = SplitStrategy(toy.upper(), mixer=Picky(), device="cpu", steps_per_round=2)
    strategy.fit(toy.make_clients(sgd(0.1)), 2)
    warnings = [line for line in caplog.messages if "none of the plans" in line]
    assert len(warnings) == 1
    assert warnings[0].startswith(
        "client 2 was in none of the plans that Picky made for a round, so"
    )


def renamed(name: str | None) -> type[Share]:
    attributes = {} if name is None else {"name": name}
    return dataclass(frozen=True, kw_only=True)(type("Mine", (Share,), attributes))


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        (renamed("mine"), "shares must be a sequence of kinds of shares, such as (MyShare,), not "),
        (3, "shares must be a sequence of kinds of shares"),
        ((FullShare(),), "shares must be subclasses of Share, got FullShare("),
        ((NoMixing,), "shares must be subclasses of Share, got <class"),
        ((renamed(None),), "share Mine has no name, by which clients know it; give it one, such"),
        ((renamed("full"),), "share Mine has the name 'full' of FullShare; give it a new one"),
        ((renamed("mine"), renamed("mine")), "share Mine has the name 'mine' of Mine"),
    ],
)
def test_kinds_of_shares_that_a_client_could_not_tell_apart_are_refused(
    shares: Any, sentence: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(sentence)):
        known_shares(shares)


def test_a_kind_that_is_named_twice_is_known_once() -> None:
    mine = renamed("mine")
    assert known_shares((mine, FullShare, mine)) == (*SHARES, mine)


def test_a_patch_that_is_sent_twice_is_refused() -> None:
    """The accounting of noise knows of one."""

    class Twice(MaskShare):
        name = "twice"

        def positions(self, batch: int) -> Tensor:
            return torch.tensor([2, 0, 2])

        def count(self) -> int:
            return 3

    with pytest.raises(ValueError, match="share 'twice' keeps a patch twice; `positions` must"):
        Twice(patches=N).upload(torch.ones(B, N, D))


def test_a_plan_knows_the_kinds_of_shares_that_others_wrap() -> None:
    noise = GaussianNoise(sigma_s=1.0, sigma_y=1.0)
    wrapped = NoisyShare(lam=1.0, inner=FullShare(), noise=noise, classes=L)

    @dataclass(frozen=True, kw_only=True)
    class Own(FullShare):
        name: ClassVar[str] = "own"
        inner: int = 3

    assert plan_of({0: wrapped}, {1: Own()}).kinds == {NoisyShare, FullShare, Own}


def test_a_weighted_sum_of_ones_own_is_divided_by_what_came() -> None:
    class Sums(NoMixing):
        cover = "weighted"

    plan = plan_of({0: WeightedShare(lam=0.25), 1: WeightedShare(lam=0.75)})
    smashed = torch.ones(B, N, D)
    share = plan.shares(0)[0]
    assert share is not None
    came = {0: Upload([share.upload(smashed)[0]], torch.zeros(B, dtype=torch.int64))}
    mixed = Sums().merge(came, plan, num_classes=L)
    assert torch.equal(mixed.smashed, smashed)
    assert torch.equal(mixed.targets.sum(1), torch.ones(B))
