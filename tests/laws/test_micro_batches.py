"""Laws 1, 4, 5, 6 and 7 with batches that go up in parts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from flwr_splitmix.clients import exchange
from flwr_splitmix.events import Exchange, StepDone, StepResult
from flwr_splitmix.links import StreamLink
from flwr_splitmix.links.arrays import to_arrays
from flwr_splitmix.mixers import PatchCutMix, SmashedShape
from flwr_splitmix.mixers.noisy import Noisy
from flwr_splitmix.observers import Observer
from flwr_splitmix.optimizers import adamw
from flwr_splitmix.runs import Run
from flwr_splitmix.schedule import constant
from flwr_splitmix.seeding import generator
from flwr_splitmix.server.segments.upper import ServerUpdate, TrainedUpper
from flwr_splitmix.strategies import PSL, CutMixSL, SplitStrategy
from flwr_splitmix.testing.agreement import check_same_results, check_same_tensors, read_results
from flwr_splitmix.testing.laws import (
    Toy,
    check_graphs_are_freed,
    check_resume_equals_uninterrupted,
    check_split_equals_whole,
    check_wire,
)
from flwr_splitmix.testing.toy import sgd
from flwr_splitmix.testing.whole import MakeStrategy
from tests.laws.makers import NAMES, averages, maker, toy_for
from tests.links.fake_grid import TURN, FakeGrid, OneAtATime, OnFakeGrid, toy_app

pytestmark = pytest.mark.usefixtures("frozen_objects")

# Without BatchNorm, which needs a whole batch, and dropout, whose draws differ from part to part.
FIELDS: dict[str, Any] = {"batch_norm": False, "dropout": 0.0}
TOY = Toy(clients=4, **FIELDS)
PARTS = (1, 2, 4)


def cut(make: MakeStrategy, parts: int, server_update: ServerUpdate = "sum") -> MakeStrategy:
    return partial(make, micro_batches=parts, server_update=server_update)


def mixer_of(name: str) -> Any:
    return maker(name)(Toy().upper()).mixer


EXACT = [
    name
    for name in NAMES
    if not isinstance(mixer_of(name), Noisy) and not mixer_of(name).needs_whole_batch
]


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("name", EXACT)
def test_law_1_of_every_mixer(name: str, parts: int) -> None:
    make = partial(maker(name), micro_batches=parts)
    update: ServerUpdate = "mean" if parts == 2 else "sum"
    check_split_equals_whole(make, toy_for(name, **FIELDS), server_update=update, steps=3)


@pytest.mark.parametrize(
    "options",
    [
        {"k": 2, "mask_per_sample": True},
        {"k": 3, "k_times": True, "mask_per_sample": True},
        {"k": 2, "alpha": 0.05},  # mostly zero counts
    ],
    ids=str,
)
def test_law_1_of_forms_of_cutmix(options: dict[str, Any]) -> None:
    make = partial(CutMixSL, **options, micro_batches=2)
    check_split_equals_whole(make, Toy(clients=5, prefix=2, **FIELDS))


def test_law_1_of_inputs_mixed_across_clients() -> None:
    make = partial(maker("InputCutMixSL"), across="clients", micro_batches=2)
    check_split_equals_whole(make, TOY)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("name", ["PSL", "CutMixSFL", "DPCutMixSL"])
def test_law_5_resume(name: str, parts: int, tmp_path: Path) -> None:
    toy = Toy(clients=4, batch_norm=False)
    make = cut(maker(name), parts)
    check_resume_equals_uninterrupted(make, tmp_path, toy, num_rounds=2, stop_in=2)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("name", [n for n in NAMES if not mixer_of(n).needs_whole_batch])
def test_law_6_the_wire(name: str, parts: int) -> None:
    unchecked = check_wire(cut(maker(name), parts), toy_for(name, batch_norm=False))
    noise = isinstance(mixer_of(name), Noisy)
    assert unchecked == (["the numbers of uploads: NoisyShare draws noise"] if noise else [])


@pytest.mark.parametrize("name", ["PSL", "CutMixSL"])
def test_law_7_graphs_are_freed(name: str) -> None:
    toy = toy_for(name, clients=2, batch_norm=False)
    check_graphs_are_freed(cut(maker(name), 2), toy, few=10, many=40)


def test_a_part_of_a_plan_has_the_masks_of_its_samples() -> None:
    mixer = PatchCutMix(2, mask_per_sample=True)
    shape = SmashedShape(4, 6, 3)
    plan = mixer.plan([0, 1], shape, generator(1, "plan"))
    (share,), ((later,),) = plan.shares(0), (plan.part(2, 2).shares(0),)
    assert share is not None
    assert later is not None
    smashed = torch.randn(4, 6, 3)
    assert torch.equal(later.upload(smashed[2:])[0], share.upload(smashed)[0][2:])
    assert plan.part(2, 2).shape.batch == 2


class Watch(Observer):
    """Counts calls, and keeps what steps were told to be."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.steps: list[StepDone] = []

    def on_exchange(self, event: Exchange) -> None:
        if event.direction == "down":
            self.calls.append(event.method)

    def on_step(self, event: StepDone) -> None:
        self.steps.append(event)


def run(
    parts: Any, home: Path, name: str, *, over_stream: bool, toy: Toy = TOY, **formats: Any
) -> tuple[Run, SplitStrategy, Watch]:
    """Train for two rounds, over a stream or in this process."""
    watch = Watch()
    new_run = Run.create({}, name=f"{name}-{parts}-{over_stream}", home=home)
    strategy = maker(name)(
        toy.upper(), optimizer=adamw(0.01), schedule=constant, server_update="mean",
        steps_per_round=3, device="cpu", seed=3, observers=[watch], run=new_run,
        micro_batches=parts,
    )  # fmt: skip
    options: dict[str, Any] = {"optimizer": adamw(0.01), "shares": strategy.mixer.shares}
    arrays = to_arrays(toy.lower().state_dict())
    if not over_stream:
        strategy.fit(toy.make_clients(**options), 2, initial_arrays=arrays)
        return new_run, strategy, watch
    states = {"state-dir": str(home / f"states-{new_run.id}")}
    grid = FakeGrid(toy_app(toy, Kept, **options), toy.clients, **states)
    link = StreamLink(
        address="127.0.0.1:0", attach_timeout=60, step_timeout=60, run=new_run.id, **formats
    )
    strategy.link = OnFakeGrid(link, grid)
    strategy.start(None, arrays, 2)  # type: ignore[arg-type]
    grid.wait()
    return new_run, strategy, watch


class Kept(OneAtATime):
    """Keeps what its segment was at the end of a round, and the gradients that it was sent."""

    kept: ClassVar[dict[int, Any]] = {}
    heard: ClassVar[dict[int, list[Tensor]]] = {}

    @exchange
    def learn_part(self, **arguments: Any) -> dict[str, Any]:
        if (arguments["number"], arguments["part"]) == (0, 0):
            self.heard[self.order.client] = []
        self.heard[self.order.client].append(arguments["gradient"][0])
        return super().learn_part(**arguments)

    def release(self) -> Any:
        self.kept[self.order.client] = self.weights()
        return super().release()


@pytest.fixture
def _nodes_in_this_process(outside_of_a_run: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server and the nodes of this process take turns.

    Torch's generator belongs to all of a process, and the server learns while clients compute.
    """
    learn_part = TrainedUpper.learn_part

    def in_turn(self: TrainedUpper, *arguments: Any, **named: Any) -> StepResult:
        with TURN:
            return learn_part(self, *arguments, **named)

    monkeypatch.setattr(TrainedUpper, "learn_part", in_turn)


@pytest.mark.usefixtures("_nodes_in_this_process")
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("name", ["PSL", "DPCutMixSL", "SFL"])
def test_law_4_links_agree_bit_for_bit(name: str, parts: int, tmp_path: Path) -> None:
    toy = Toy(clients=3, batch_norm=False)
    local, _, _ = run(parts, tmp_path, name, over_stream=False, toy=toy)
    stream, _, watch = run(parts, tmp_path, name, over_stream=True, toy=toy)
    assert len(local.rows) == len(stream.rows) == 2
    expected_calls = {"step"} if parts == 1 else {"encode_part", "learn_part"}
    assert set(watch.calls) == expected_calls
    local_results, stream_results = read_results(local), read_results(stream)
    server = {n: t for n, t in local_results.tensors.items() if not n.startswith("client ")}
    theirs = {n: t for n, t in stream_results.tensors.items() if not n.startswith("client ")}
    check_same_tensors("server", server, theirs)
    check_same_results(
        type(local_results)(local_results.rows, {}), type(stream_results)(stream_results.rows, {})
    )
    if not averages(name):
        for client in range(toy.clients):
            client_tensors = {
                key.removeprefix(f"client {client}: segment."): tensor
                for key, tensor in local_results.tensors.items()
                if key.startswith(f"client {client}: segment.")
            }
            check_same_tensors(f"client {client}", client_tensors, Kept.kept[client])


@pytest.mark.usefixtures("_nodes_in_this_process")
@pytest.mark.parametrize("feedback", [True, False])
def test_what_rounding_leaves_of_one_part_goes_with_the_next(
    feedback: bool, tmp_path: Path
) -> None:
    """Only the last part's rest has not arrived at the end of a round: at most half a level."""
    parts = 2
    formats: dict[str, Any] = {"wire_dtype_down": "int4", "wire_feedback": feedback}
    _, _, watch = run(parts, tmp_path, "PSL", over_stream=True, **formats)
    steps = [step for step in watch.steps if step.server_round == 2]
    misses = []
    for client, received in Kept.heard.items():
        gradients = torch.cat([g for step in steps if (g := step.gradients[client][0]) is not None])
        by_part = torch.stack(gradients.chunk(parts * len(steps)))
        level = by_part.abs().amax(dim=(0, -1)).unsqueeze(-1) / 7
        misses.append(((torch.stack(received) - by_part).sum(dim=0).abs() / level).max())
    assert (max(misses) < 1) == feedback


def test_one_part_is_the_step_that_it_was(tmp_path: Path) -> None:
    """As without the option: the same calls, and the same numbers bit for bit."""
    toy = Toy(clients=3)  # with BatchNorm and dropout
    with_one, _, watch = run(1, tmp_path, "CutMixSL", over_stream=False, toy=toy)
    strategy = CutMixSL(
        toy.upper(), optimizer=adamw(0.01), schedule=constant, server_update="mean",
        steps_per_round=3, device="cpu", seed=3,
        run=(without := Run.create({}, name="without", home=tmp_path)),
    )  # fmt: skip
    arrays = to_arrays(toy.lower().state_dict())
    strategy.fit(toy.make_clients(optimizer=adamw(0.01)), 2, initial_arrays=arrays)
    check_same_results(read_results(with_one), read_results(without))
    assert set(watch.calls) == {"step"}


def test_observers_see_one_step_of_a_whole_batch() -> None:
    watch, whole = Watch(), Watch()
    for observer, parts in ((watch, 2), (whole, 1)):
        strategy = PSL(
            TOY.upper(), optimizer=sgd(0.1), schedule=constant, server_update="sum",
            steps_per_round=2, device="cpu", seed=3, observers=[observer], micro_batches=parts,
        )  # fmt: skip
        strategy.fit(TOY.make_clients(sgd(0.1)), 1)
    for ours, theirs in zip(watch.steps, whole.steps, strict=True):
        assert ours.mixed is not None
        assert theirs.mixed is not None
        assert ours.mixed.sources == theirs.mixed.sources
        close = partial(torch.testing.assert_close, rtol=0, atol=1e-12)
        close(ours.mixed.smashed, theirs.mixed.smashed)
        assert torch.equal(ours.mixed.targets, theirs.mixed.targets)
        close(ours.loss, theirs.loss)
        for client, upload in theirs.uploads.items():
            close(ours.uploads[client].smashed, upload.smashed)  # type: ignore[union-attr]
            close(ours.gradients[client], theirs.gradients[client])
