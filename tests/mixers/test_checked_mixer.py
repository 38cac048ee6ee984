"""What the methods of somebody's own mixer or share wrongly return is named, in a run."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from flwr_splitmix.links import LinkError
from flwr_splitmix.mixers import (
    FullShare,
    Group,
    Member,
    Mixed,
    Mixer,
    NoMixing,
    PatchCutMix,
    Plan,
    Share,
    Shuffled,
)
from flwr_splitmix.strategies import SplitStrategy
from flwr_splitmix.testing import laws
from flwr_splitmix.testing.toy import Toy, sgd

TOY = Toy(clients=2, batch_norm=False)


def own(**attributes: Any) -> Mixer:
    mixer: Mixer = type("Own", (NoMixing,), attributes)()
    return mixer


def train(mixer: Mixer, **options: Any) -> float:
    """Train for a round of two steps, and return the loss."""
    strategy = SplitStrategy(
        TOY.upper(), mixer=mixer, device="cpu", steps_per_round=2, server_update="sum", **options
    )
    strategy.fit(TOY.make_clients(sgd(0.1), shares=mixer.shares), 1)
    return float(strategy.rows[-1]["loss"])


def planned(passes: Callable[[Any], Any]) -> Mixer:
    def plan(self: Mixer, members: Any, shape: Any, rng: Any, order_rng: Any = None) -> Any:
        return Plan(shape, passes(members))

    return own(plan=plan)


def alone(client: Any, share: Any = None) -> Group:
    return Group((Member(client, FullShare() if share is None else share),))


@pytest.mark.parametrize(
    ("passes", "message"),
    [
        (lambda members: None, "passes of the plan is None; expected Plan(shape, passes)"),
        (
            lambda members: tuple(map(alone, members)),
            "a pass of the plan is a Group; expected Plan(shape, passes): passes are a tuple of",
        ),
        (lambda members: (map(alone, members),), "a pass of the plan is a map; expected Plan("),
        (
            lambda members: (tuple((Member(c, FullShare()),) for c in members),),
            "in a pass of the plan is a tuple of a Member; expected Plan(shape, passes)",
        ),
        (
            lambda members: ((Group(tuple(members)),),),
            "in a group of the plan is an int; expected Group(members), a tuple of Member(client,",
        ),
        (
            lambda members: ((Group(map(Member, members)),),),  # type: ignore[arg-type]
            "a group's members of the plan is a map; expected Group(members)",
        ),
        (
            lambda members: ((alone("0"),),),
            "a member's client is '0'; expected one of the numbers that `plan` is given",
        ),
        (
            lambda members: ((alone(0, FullShare),),),
            "the share of client 0 is the class FullShare; expected an object of a subclass",
        ),
    ],
)
def test_the_parts_of_a_plan(passes: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(f"Own: {message}")):
        train(planned(passes))


def test_lists_and_numbers_of_numpy_are_parts_of_a_plan() -> None:
    listed = planned(lambda members: [[Group([Member(np.int64(c), FullShare())]) for c in members]])  # type: ignore[arg-type]
    assert train(listed) == train(planned(lambda members: (tuple(map(alone, members)),)))


SPLIT = "Own: `split` returns "


def changed(change: Callable[[Mixed], Mixed]) -> Callable[..., Mixed]:
    """Return a `merge` that changes the mixture that it returns."""
    return lambda mixer, *arguments, **more: change(NoMixing.merge(mixer, *arguments, **more))


@pytest.mark.parametrize(
    ("method", "wrong", "error", "message"),
    [
        ("merge", lambda *_, **__: None, TypeError, "Own: `merge` must return a Mixed(smashed, ta"),
        (
            "merge",
            lambda mixer, *arguments, **more: replace(
                NoMixing.merge(mixer, *arguments, **more),
                sources=(1,),  # type: ignore[arg-type]
            ),
            TypeError,
            "Own: the sources that `merge` returns are not a tuple of Source",
        ),
        (
            "merge",
            lambda mixer, *arguments, **more: replace(
                NoMixing.merge(mixer, *arguments, **more), smashed=torch.zeros(1, 2, 3)
            ),
            ValueError,
            "Own: the smashed that `merge` returns are a tensor (1, 2, 3); expected a tensor (",
        ),
        (
            "merge",
            lambda mixer, *arguments, **more: replace(
                NoMixing.merge(mixer, *arguments, **more), targets=torch.zeros(3)
            ),
            ValueError,
            "Own: the targets that `merge` returns are a tensor (3,); expected a tensor (",
        ),
        (
            "merge",
            changed(lambda mixed: replace(mixed, targets=mixed.targets[:, :1])),
            ValueError,
            ", 1); expected a tensor (",
        ),
        (
            "merge",
            changed(lambda mixed: replace(mixed, smashed=mixed.smashed.float())),
            ValueError,
            "Own: the smashed data that `merge` returns are torch.float32; expected torch.float64",
        ),
        ("split", lambda *_: None, TypeError, SPLIT + "None; expected a dictionary by client"),
        ("split", lambda *_: [None, None], TypeError, SPLIT + "a list of None, None; expected"),
        (
            "split",
            lambda mixer, gradient, *_: {0: gradient, 1: gradient},
            TypeError,
            SPLIT + "a tensor (",
        ),
        (
            "split",
            lambda *_: {0: []},
            TypeError,
            SPLIT + "a list of nothing for client 0; expected",
        ),
        ("split", lambda _, gradient, *__: {7: [gradient]}, ValueError, SPLIT + "a gradient for "),
        (
            "split",
            lambda _, gradient, *__: {"0": [gradient]},
            ValueError,
            "client '0', which has no",
        ),
    ],
)
@pytest.mark.parametrize("parts", [1, 2])
def test_what_a_mixer_returns(
    method: str, wrong: Any, error: type[Exception], message: str, parts: int
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        train(own(**{method: wrong}), micro_batches=parts)


def test_targets_of_whole_numbers_are_converted() -> None:
    def loss(dtype: torch.dtype) -> float:
        merge = changed(lambda mixed: replace(mixed, targets=mixed.targets.to(dtype)))
        return train(own(merge=merge))

    assert loss(torch.bool) == loss(torch.int64) == loss(torch.float64)


@pytest.mark.parametrize("returned", [{}, {0: [None], 1: [None]}, {7: [None]}])
def test_a_mixer_by_which_nobody_learns_is_told(
    returned: dict[int, list[None]], caplog: pytest.LogCaptureFixture
) -> None:
    """The upper segment learns alone, and the loss falls, so that nobody would notice."""
    train(own(split=lambda *_: returned))
    warnings = [message for message in caplog.messages if "got a gradient" in message]
    assert warnings == [
        "round 1: no client got a gradient, so no lower segment learned; if no other warning "
        "explains it, `Own.split` returned no gradients (for shares that are not meant to learn, "
        "set `learns=False`)"
    ]


def test_a_mixer_may_withhold_the_gradients_of_some_steps(
    caplog: pytest.LogCaptureFixture,
) -> None:
    steps = iter(range(2))
    train(own(split=lambda *arguments: NoMixing.split(*arguments) if next(steps) else {}))
    assert not [message for message in caplog.messages if "got a gradient" in message]


@dataclass(frozen=True, kw_only=True)
class Sent(FullShare):
    """As the full share, with a name of its own."""

    name: ClassVar[str] = "sent"

    def place(self, mixed: Tensor, upload: Tensor) -> None:
        mixed += upload


def sharing(**methods: Any) -> Mixer:
    kind = type("Odd", (Sent,), {"name": "odd", **methods})

    def plan(self: Mixer, members: Any, shape: Any, rng: Any, order_rng: Any = None) -> Plan:
        return Plan(shape, (tuple(alone(client, kind()) for client in members),))

    return own(shares=(kind,), plan=plan)


@pytest.mark.parametrize(
    ("methods", "error", "message"),
    [
        (
            {"place": lambda self, mixed, upload: mixed + upload},
            TypeError,
            "`place` of share 'odd' returns a tensor (",
        ),
        (
            {"pick": lambda self, gradient: None},
            TypeError,
            "`pick` of share 'odd' returns None; expected the gradient of the client's anchor",
        ),
        (
            {"pick": lambda self, gradient: gradient[:, :1]},
            LinkError,
            "`pick` of an own share must return the gradient of its anchor",
        ),
        (
            {"upload_shape": lambda self, smashed: None},
            LinkError,
            "`upload_shape` of share 'odd' must return the shape (b, a, d) of its upload, three",
        ),
    ],
)
def test_what_a_share_returns(
    methods: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        train(sharing(**methods))


def test_a_share_may_return_the_mixture_that_it_changed() -> None:
    assert train(sharing(place=lambda self, mixed, upload: mixed.add_(upload))) == train(sharing())


def test_a_wrapped_mixer_is_checked_too() -> None:
    mixer = Shuffled(own(plan=lambda self, members, shape, rng: None))
    with pytest.raises(TypeError, match="Own: `plan` cannot be called so"):
        SplitStrategy(TOY.upper(), mixer=mixer)


def test_kinds_of_shares_may_be_a_set() -> None:
    assert train(own(shares=frozenset({Sent}))) == train(own(shares=(Sent,)))


@dataclass(frozen=True, kw_only=True)
class Signed(FullShare):
    """Sends its part of a weighted sum with signs that the mixer draws."""

    name: ClassVar[str] = "signed"
    seed: int

    def _signs(self, like: Tensor) -> Tensor:
        drawn = np.random.default_rng(self.seed).choice([-1.0, 1.0], like.shape[-1])
        return torch.as_tensor(drawn, dtype=like.dtype)

    def upload(self, smashed: Tensor) -> tuple[Tensor, Tensor]:
        return self.lam * smashed * self._signs(smashed), smashed

    def place(self, mixed: Tensor, upload: Tensor) -> None:
        mixed += upload

    def pick(self, gradient: Tensor) -> Tensor:
        return self.lam * gradient * self._signs(gradient)

    def undo(self, placed: Tensor) -> Tensor:
        return placed * self._signs(placed)


@dataclass(frozen=True, kw_only=True)
class Forgets(Signed):
    """Does not say how its signs are undone."""

    name: ClassVar[str] = "forgets"

    def undo(self, placed: Tensor) -> Tensor:
        return placed


class Signs(PatchCutMix):
    """Weighted sums of pairs, each client's with signs of its own."""

    cover = "weighted"
    shares: ClassVar[tuple[type[Share], ...]] = (Signed, Forgets)
    kind: ClassVar[type[Signed]] = Signed

    def plan(self, members: Any, shape: Any, rng: Any, order_rng: Any = None) -> Plan:
        def member(client: int) -> Member:
            return Member(client, self.kind(lam=0.5, seed=int(rng.integers(99))))

        pairs = [members[i : i + 2] for i in range(0, len(members), 2)]
        return Plan(shape, (tuple(Group(tuple(map(member, pair))) for pair in pairs),))


class UnsaidSigns(Signs):
    kind = Forgets


def test_the_law_of_masks_knows_what_a_share_can_undo() -> None:
    laws.check_masks_partition(Signs(k=2), clients=4)
    with pytest.raises(AssertionError, match=r"weighs its patches by -0\.5 to 0\.5"):
        laws.check_masks_partition(UnsaidSigns(k=2), clients=4)
