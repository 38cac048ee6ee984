"""A trace holds whole steps, no more than it may, and only its owner may read it."""

from __future__ import annotations

import errno
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flwr_splitmix.attacks import Recorder
from flwr_splitmix.attacks.recording.disk_trace import DiskTrace
from flwr_splitmix.attacks.recording.packing import UShapeStep, pack_step, tensors_of, unpack_step
from flwr_splitmix.attacks.recording.steps import Step
from flwr_splitmix.attacks.recording.trace import MemoryTrace, Recorded, Trace
from flwr_splitmix.storage import save_tensors
from tests.attacks.victims import attacked

METHODS = (
    "PSL", "MixupSL", "CutMixSL", "VanillaCutMixSL", "CutoutSL", "ShuffledCutMixSL",
    "InputMixupSL", "DPCutMixSL", "BatchShuffleSL",
)  # fmt: skip


def recorded(method: str = "CutMixSL") -> list[Step]:
    return [step for step in attacked(method).trace.steps() if isinstance(step, Step)]


def places(trace: Trace) -> list[tuple[int, int]]:
    return [(step.server_round, step.number) for step in trace.steps()]


def same(one: Recorded, other: Recorded) -> bool:
    mine, others = tensors_of(one), tensors_of(other)
    return mine.keys() == others.keys() and all(torch.equal(mine[n], others[n]) for n in mine)


def texts(number: int = 0) -> UShapeStep:
    states = [torch.randn(2, 3, 4) for _ in range(3)]
    mask = torch.ones(2, 3, dtype=torch.uint8)
    gradients = [states[0], None, None]
    return UShapeStep(
        1, number, messages={5: states}, masks={5: mask}, outputs={5: states},
        returned={5: states}, gradients={5: gradients}, drawn={5: number},
    )  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_steps_of_every_kind_of_plan_outlive_the_disk(method: str) -> None:
    for step in recorded(method):
        tensors, meta = pack_step(step)
        again = unpack_step(tensors, meta)
        assert isinstance(again, Step)
        assert same(step, again)
        assert again.plan == step.plan
        assert again.drawn == step.drawn


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("smashed-shape", {"patches": 10**12}),
        ("smashed-shape", {"patches": "16"}),
        ("smashed-shape", {"batch": 5}),
        ("smashed.0.0", torch.zeros(3, 2)),
        ("step.gradient", torch.zeros(2)),
        ("labels.0", torch.zeros(1, dtype=torch.int64)),
    ],
    ids=str,
)
def test_a_step_of_other_shapes_than_it_says_is_left_out(
    name: str, changed: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors, meta = pack_step(recorded()[0])
    if isinstance(changed, torch.Tensor):
        assert name in tensors
        tensors[name] = changed
    else:
        meta[name] = {**meta[name], **changed}
    save_tensors(tmp_path / "step-000001-000000.safetensors", tensors, meta)
    assert list(DiskTrace(tmp_path).steps()) == []
    assert "1 recorded step cannot be read and is left out, first step 0 of round 1: " in (
        caplog.text
    )


def test_steps_that_cannot_be_read_are_told_once_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not each by itself, and not again when somebody reads the steps again."""
    tensors, meta = pack_step(texts())
    DiskTrace(tmp_path).add(texts())
    older = {name: value for name, value in meta.items() if name != "drawn"}
    for number in (7, 8, 9):
        save_tensors(tmp_path / f"step-000001-00000{number}.safetensors", tensors, older)
    trace = DiskTrace(tmp_path)
    for _ in range(2):
        assert next(trace.backwards()).number == texts().number
    assert caplog.messages == [
        "3 recorded steps cannot be read and are left out, first step 9 of round 1: it lacks "
        "'drawn'"
    ]


def test_more_messages_than_there_are_arrays_are_left_out(tmp_path: Path) -> None:
    tensors, meta = pack_step(texts())
    forged = {**meta, "messages": {"5": 10**12}}
    save_tensors(tmp_path / "step-000001-000000.safetensors", tensors, forged)
    assert list(DiskTrace(tmp_path).steps()) == []


@pytest.mark.parametrize("name", ["messages.5.0", "outputs.5.2", "returned.5.1", "mask.5", "drawn"])
def test_a_step_of_texts_whose_parts_do_not_fit_is_left_out(name: str, tmp_path: Path) -> None:
    tensors, meta = pack_step(texts())
    if name in tensors:
        tensors[name] = torch.zeros(2, 7, 4)
    else:
        meta[name] = {}
    save_tensors(tmp_path / "step-000001-000000.safetensors", tensors, meta)
    assert list(DiskTrace(tmp_path).steps()) == []


def test_steps_of_texts_outlive_the_disk(tmp_path: Path) -> None:
    trace, step = DiskTrace(tmp_path / "trace"), texts()
    trace.add(step)
    (again,) = trace.steps()
    assert isinstance(again, UShapeStep)
    assert torch.equal(again.masks[5], step.masks[5])
    assert again.drawn == step.drawn
    for kind in ("messages", "outputs", "returned"):
        pairs = zip(getattr(again, kind)[5], getattr(step, kind)[5], strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    trace = DiskTrace(tmp_path / "trace")
    trace.add(recorded()[0])
    trace.add_segment(1, {"weight": torch.ones(3)})
    modes = {stat.S_IMODE(file.stat().st_mode) for file in trace.path.iterdir()}
    assert modes == {0o600}
    assert stat.S_IMODE(trace.path.stat().st_mode) == 0o700


def test_a_directory_may_be_text(tmp_path: Path) -> None:
    assert Recorder(directory=str(tmp_path / "seen")).directory == tmp_path / "seen"
    DiskTrace(str(tmp_path / "seen")).add(texts(3))
    assert places(DiskTrace(tmp_path / "seen")) == [(1, 3)]


def test_a_recording_that_was_cut_off_is_read_up_to_its_last_whole_step(tmp_path: Path) -> None:
    trace = DiskTrace(tmp_path / "trace")
    for step in recorded():
        trace.add(step)
    files = sorted(trace.path.glob("step-*"))
    files[-1].write_bytes(files[-1].read_bytes()[:1000])
    (trace.path / ".step-000002-000009.safetensors.x1").write_bytes(b"half")
    again = DiskTrace(trace.path)
    assert places(again) == [(1, 0), (1, 1), (2, 0)]
    assert [(step.server_round, step.number) for step in again.steps(newest=2)] == [(1, 1), (2, 0)]
    assert next((step.server_round, step.number) for step in again.backwards()) == (2, 0)


@pytest.mark.parametrize("target", ["nowhere", "step-000001-000001.safetensors"])
def test_a_step_that_is_a_link_to_nothing_is_left_out(target: str, tmp_path: Path) -> None:
    trace = DiskTrace(tmp_path)
    for step in recorded()[:2]:
        trace.add(step)
    lost = tmp_path / "step-000001-000001.safetensors"
    lost.unlink()
    lost.symlink_to(target)
    again = DiskTrace(tmp_path)
    assert places(again) == [(1, 0)]
    again.forget()
    assert not tmp_path.exists()


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_the_oldest_steps_go(kind: str, tmp_path: Path) -> None:
    steps = recorded()

    def trace_of(max_bytes: int = 2**30, max_steps: int = 1000) -> Trace:
        if kind == "memory":
            return MemoryTrace(max_bytes, max_steps)
        return DiskTrace(tmp_path / f"{max_bytes}-{max_steps}", max_bytes, max_steps)

    few = trace_of(max_steps=2)
    for step in steps:
        few.add_segment(step.server_round, {"weight": torch.ones(2)})
        few.add(step)
    assert places(few) == [(2, 0), (2, 1)]
    assert few.segment(1) is None
    assert few.segment(2) is not None
    size = sum(t.numel() * t.element_size() for t in tensors_of(steps[0]).values())
    small = trace_of(max_bytes=int(2.5 * size))
    for step in steps:
        small.add(step)
    assert places(small) == [(2, 0), (2, 1)]


LEFT_OUT = (
    "averaged lower segments are left out of the recording, first that of round 1, of 0.1 MB: "
    "together they may have half of its 0.1 MB"
)

MADE: dict[str, Callable[[Path, int], Trace]] = {
    "memory": lambda path, size: MemoryTrace(size),
    "disk": DiskTrace,
}


def small(server_round: int) -> UShapeStep:
    """Return a step of less than 200 bytes, 1 kB on disk."""
    return of_one(server_round, 0, torch.zeros(1, 2, 4))


def of_one(server_round: int, number: int, message: Tensor) -> UShapeStep:
    mask = torch.ones(message.shape[:2], dtype=torch.uint8)
    return UShapeStep(
        server_round, number, messages={0: [message]}, masks={0: mask}, drawn={0: 0},
        outputs={}, returned={}, gradients={},
    )  # fmt: skip


def kept_bytes(trace: Trace) -> int:
    if isinstance(trace, DiskTrace):
        on_disk = sum(file.stat().st_size for file in trace.path.iterdir())
        assert trace.nbytes == on_disk == DiskTrace(trace.path).nbytes
        return on_disk
    contents = [
        *(tensors_of(step) for step in trace.steps()),
        *(trace.segment(r) for r in range(20)),
    ]
    return sum(t.nbytes for tensors in contents if tensors for t in tensors.values())


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_segments_count_and_leave_half_to_steps(kind: str, tmp_path: Path) -> None:
    """A recording of at most 1 MB could otherwise take 60."""
    trace = MADE[kind](tmp_path / "trace", 100_000)
    for server_round in range(1, 13):
        trace.add_segment(server_round, {"weight": torch.zeros(5_000)})  # 20 kB
        assert kept_bytes(trace) <= 100_000
        trace.add(small(server_round))
        assert kept_bytes(trace) <= 100_000
    assert len(places(trace)) == 12
    assert [r for r in range(1, 13) if trace.segment(r) is not None] == [11, 12]


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_segment_that_leaves_no_room_for_steps_is_not_kept(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trace = MADE[kind](tmp_path / "trace", 100_000)
    for server_round in (1, 2):
        trace.add_segment(server_round, {"weight": torch.zeros(15_000)})
        trace.add(small(server_round))
    assert len(places(trace)) == 2
    assert trace.segment(2) is None
    assert caplog.text.count("left out") == caplog.text.count(LEFT_OUT) == 1


def test_a_segment_that_only_its_file_makes_too_large_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its tensors have half of the bound, its file a bit more."""
    trace = DiskTrace(tmp_path / "trace", 100_000)
    trace.add_segment(1, {"weight": torch.zeros(12_500)})
    assert trace.segment(1) is None
    assert caplog.text.count(LEFT_OUT) == 1


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_segment_that_goes_before_its_steps_is_warned_of_and_no_other(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trace = MADE[kind](tmp_path / "trace", 100_000)
    trace.max_steps = 1
    for server_round in (1, 2):
        trace.add_segment(server_round, {"weight": torch.zeros(2_500)})
        trace.add(small(server_round))
    assert (trace.segment(1), caplog.text) == (None, "")  # it went with its steps
    trace.add(of_one(2, 1, torch.zeros(1, 2, 20_000)))
    assert trace.segment(2) is None
    assert caplog.text.count(LEFT_OUT.replace("1, of 0.1", "2, of 0.0")) == 1


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_rounds_that_will_be_repeated_are_forgotten(kind: str, tmp_path: Path) -> None:
    trace = MADE[kind](tmp_path / "trace", 2**30)
    for step in recorded():
        trace.add_segment(step.server_round, {"weight": torch.ones(2)})
        trace.add(step)
    trace.add_segment(3, {"weight": torch.ones(2)})
    trace.rewind(2)
    assert places(trace) == [(1, 0), (1, 1)]
    for newest, numbers in ((0, []), (1, [1]), (9, [0, 1])):
        assert [step.number for step in trace.steps(newest)] == numbers
    assert [r for r in range(5) if trace.segment(r) is not None] == [1]
    if isinstance(trace, DiskTrace):
        assert len(list(trace.path.iterdir())) == 3


def test_a_disk_that_takes_no_step_costs_a_warning_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "trace").write_text("no directory")
    trace = DiskTrace(tmp_path / "trace" / "below")
    trace.add(recorded()[0])
    assert f"a step could not be recorded in {trace.path}: " in caplog.text
    assert places(trace) == []


def test_a_full_disk_keeps_the_steps_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third, _ = recorded()
    trace = DiskTrace(tmp_path / "trace", max_steps=2)
    trace.add_segment(first.server_round, {"weight": torch.ones(2)})
    trace.add(first)
    trace.add(second)
    with monkeypatch.context() as patch:
        patch.setattr("flwr_splitmix.attacks.recording.disk_trace.save_tensors", _full)
        trace.add(third)
    assert places(trace) == [(1, 0), (1, 1)]
    trace.add(third)
    assert places(trace) == [(1, 1), (2, 0)]
    assert places(DiskTrace(trace.path)) == places(trace)


def _full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_step_larger_than_the_bound_is_kept_alone(tmp_path: Path) -> None:
    trace = DiskTrace(tmp_path / "trace", max_bytes=1)
    for step in recorded():
        trace.add(step)
    assert places(trace) == [(2, 1)]


def test_bounds_must_be_positive() -> None:
    with pytest.raises(ValueError, match="max_bytes is 0; it must be at least 1"):
        MemoryTrace(max_bytes=0)


def test_a_recording_that_is_removed_does_not_come_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It would hold data that the user has just removed, where no command sees it."""
    trace = DiskTrace(tmp_path / "run" / "trace")
    trace.add(texts())
    shutil.rmtree(tmp_path / "run")
    for number in (1, 2):
        trace.add(texts(number))
        trace.add_segment(number, {"weight": torch.ones(3)})
        assert not (tmp_path / "run").exists()
    assert caplog.messages == [f"{trace.path} has been removed: the run records nothing further"]


def test_a_reason_for_which_nothing_is_recorded_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would be told of every step, thousands of times."""
    trace = DiskTrace(tmp_path / "trace")
    with monkeypatch.context() as patch:
        patch.setattr("flwr_splitmix.attacks.recording.disk_trace.save_tensors", _full)
        for number in range(3):
            trace.add(texts(number))
            trace.add_segment(number, {"weight": torch.ones(3)})
    (warning,) = caplog.messages
    assert warning.startswith(f"a step could not be recorded in {trace.path}: No space left on dev")
