"""Law 6 over all mixers; and it must see what should not cross."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flwr_splitmix.clients import SplitClient, exchange
from flwr_splitmix.events import Exchange
from flwr_splitmix.links import link
from flwr_splitmix.mixers import (
    FullShare,
    Mixed,
    Mixer,
    NoMixing,
    PatchCutMix,
    PatchShare,
    Plan,
    SmashedShape,
)
from flwr_splitmix.mixers.noisy import Noisy
from flwr_splitmix.observers import Metrics
from flwr_splitmix.strategies import PSL, CutMixSL, SplitStrategy
from flwr_splitmix.testing.laws import Toy, check_split_equals_whole, check_wire
from tests.attacks.own_channels import ChannelMix
from tests.laws.makers import NAMES, maker, toy_for


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("name", NAMES)
def test_every_mixer(name: str, prefix: int) -> None:
    unchecked = check_wire(maker(name), toy_for(name, prefix=prefix))
    noise = isinstance(maker(name)(Toy().upper()).mixer, Noisy)
    assert unchecked == (["the numbers of uploads: NoisyShare draws noise"] if noise else [])


@pytest.mark.parametrize(
    "options",
    [
        {"k": 3},
        {"gradient": "broadcast"},
        {"k": 3, "k_times": True},
        {"alpha": 0.05},  # mostly zero counts
        {"mask_per_sample": True, "regroup": "epoch"},
    ],
    ids=str,
)
def test_every_form_of_cutmix(options: dict[str, Any]) -> None:
    assert check_wire(partial(CutMixSL, **options)) == []


def test_parts_of_the_width_add_up_to_patches() -> None:
    make = partial(SplitStrategy, mixer=ChannelMix())
    assert check_wire(make, Toy(clients=3)) == []
    check_split_equals_whole(make, Toy(clients=3))


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("Input")])
def test_where_raw_inputs_cross_the_law_says_what_it_does_not_check(name: str) -> None:
    unchecked = check_wire(partial(maker(name), across="clients"))
    assert unchecked == ["that a client learns of itself only: raw inputs cross between clients"]


class Leaky(SplitClient):
    """Changes its own reply; a subclass says how."""

    @exchange
    def step(self, **arguments: Any) -> dict[str, Any]:
        outputs: list[Tensor] = []
        hook = self.segment.register_forward_hook(lambda m, x, y: outputs.append(y.detach()))
        reply = super().step(**arguments)
        hook.remove()
        return self.leak(reply, outputs[0]) if reply and self.order.client == 1 else reply

    def leak(self, reply: dict[str, Any], smashed: Tensor) -> dict[str, Any]:
        raise NotImplementedError


class Everything(Leaky):
    def leak(self, reply: dict[str, Any], smashed: Tensor) -> dict[str, Any]:
        return {**reply, "smashed": [smashed]}


class OtherPatches(Leaky):
    def leak(self, reply: dict[str, Any], smashed: Tensor) -> dict[str, Any]:
        count = reply["smashed"][0].shape[1]
        return {**reply, "smashed": [smashed[:, smashed.shape[1] - count :]]}


class Images(Leaky):
    def leak(self, reply: dict[str, Any], smashed: Tensor) -> dict[str, Any]:
        return {**reply, "images": self.batch(0)[0]}


class Classes(Leaky):
    def leak(self, reply: dict[str, Any], smashed: Tensor) -> dict[str, Any]:
        return {**reply, "labels": self.batch(0)[1]}


class OtherClasses(Leaky):
    def leak(self, reply: dict[str, Any], smashed: Tensor) -> dict[str, Any]:
        return {**reply, "labels": reply["labels"].flip(0).roll(1)}


class HeavyLabels(Leaky):
    def leak(self, reply: dict[str, Any], smashed: Tensor) -> dict[str, Any]:
        return {**reply, "labels": [torch.full_like(soft, 0.5) for soft in reply["labels"]]}


class Unasked(Leaky):
    def leak(self, reply: dict[str, Any], smashed: Tensor) -> dict[str, Any]:
        self.segment(self.batch(0)[0])
        return reply


@pytest.mark.parametrize(
    ("name", "kind", "sentence"),
    [
        ("CutMixSL", Everything, r"step 0, client 1 uploads \(4, 6, 3\), its share is \(4, "),
        ("CutMixSL", OtherPatches, "step 0, client 1 uploads other numbers than its share of"),
        ("PSL", Images, "step 0, client 1 uploads images, labels, smashed; expected"),
        ("PSL", OtherClasses, r"client 1 sends \[.*\] as labels; its batch's classes are \["),
        ("PSL", Unasked, "client 1 ran its lower segment 6 times in 3 steps"),
        ("PatchShuffleSL", Classes, r"client 1 sends \[.*\] as labels; its batch's ids are \["),
        ("InputMixupSL", Classes, "client 1 sends no list of soft labels"),
        ("InputMixupSL", HeavyLabels, r"client 1 sends soft labels of weight 1\.5, its mixing"),
    ],
)
def test_the_law_notices_what_a_client_should_not_send(
    name: str, kind: type[SplitClient], sentence: str
) -> None:
    with pytest.raises(AssertionError, match=f"law 6, the wire carries.*{sentence}"):
        check_wire(maker(name), toy_for(name), kind=kind)


def test_the_law_notices_a_client_that_drops_out() -> None:
    class Dead(Leaky):
        def leak(self, reply: dict[str, Any], smashed: Tensor) -> dict[str, Any]:
            raise RuntimeError("the battery is empty")

    with pytest.raises(AssertionError, match="did not run through; client 1: RuntimeError; the l"):
        check_wire(PSL, kind=Dead)


@dataclass(frozen=True)
class Misleading(Plan):
    """Tells each client another mixing ratio than it has."""

    def for_node(self, client: int) -> Any:
        return [share and {**share, "lam": 0.0} for share in super().for_node(client)]


class Telling(PatchCutMix):
    def plan(self, *arguments: Any) -> Plan:
        plan = super().plan(*arguments)
        return Misleading(plan.shape, plan.passes)


@dataclass(frozen=True, kw_only=True)
class Gossip(FullShare):
    """A share that says with whom it is mixed."""

    name = "gossip"

    def to_wire(self) -> Any:
        return {"share": self.name, "partners": [[4, FullShare().to_wire()]]}

    @classmethod
    def from_wire(cls, values: Any, known: Any) -> Gossip:
        return cls()


class Gossiping(NoMixing):
    shares = (Gossip,)

    def plan(self, members: Sequence[int], shape: SmashedShape, *rngs: Any) -> Plan:
        plan = super().plan(members, shape, *rngs)
        (groups,) = plan.passes
        gossip_groups = tuple(
            replace(group, members=(replace(group.members[0], share=Gossip()),)) for group in groups
        )
        return replace(plan, passes=(gossip_groups,))


class Generous(PatchCutMix):
    """Returns the whole group's gradient to every member."""

    def split(self, gradient: Tensor, mixed: Mixed, plan: Plan) -> dict[int, list[Tensor | None]]:
        right = super().split(gradient, mixed, plan)
        return {client: [gradient[: plan.shape.batch]] for client in right}


class Sparing(PatchCutMix):
    """Gives no client the last patch of a group, but in the step that a run examines."""

    drawn = 0

    def plan(self, *arguments: Any) -> Plan:
        self.drawn += 1
        return super().plan(*arguments)

    def mix(self, clients: Sequence[int], shape: SmashedShape, rng: np.random.Generator) -> Any:
        *others, last = super().mix(clients, shape, rng)
        if self.drawn == 1:
            return [*others, last]
        assert isinstance(last.share, PatchShare)
        stop = max(last.share.stop - 1, last.share.start)
        return [*others, replace(last, share=replace(last.share, stop=stop))]


@pytest.mark.parametrize(
    ("mixer", "sentence"),
    [
        (Telling(), "step 0, client 0 is sent other than its own part of the plan"),
        (Gossiping(), r"step 0, client 0 learns of clients \[4\]"),
        (Generous(), r"is sent gradients of shapes \[\(4, 6, 3\)\], those of its own shares are"),
        (Sparing(2, alpha=None), "a group of 2 sends 5 patches a sample, its mixer needs 6"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_law_notices_what_a_mixer_should_not_do(mixer: Mixer, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_wire(partial(SplitStrategy, mixer=mixer), Toy(clients=4))


def test_the_law_notices_a_link_that_miscounts(monkeypatch: pytest.MonkeyPatch) -> None:
    right = link.tensor_bytes
    monkeypatch.setattr(link, "tensor_bytes", lambda payload: right(payload) and 288)
    with pytest.raises(AssertionError, match=r": 288 bytes were counted, the tensors have 6"):
        check_wire(PSL)


def test_the_law_notices_metrics_that_miscount(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Metrics.on_exchange

    def forgetful(self: Metrics, event: Exchange) -> None:
        if event.client != 2:
            right(self, event)

    monkeypatch.setattr(Metrics, "on_exchange", forgetful)
    with pytest.raises(AssertionError, match=r"uplink_bytes is 7296, the recorded tensors have 9"):
        check_wire(PSL)
