"""The server's view of a run with a third-party mixer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix import adamw
from flwr_splitmix.attacks.recorder import Recorder
from flwr_splitmix.attacks.recording.steps import Step
from flwr_splitmix.events import Exchange, RoundBegun, RoundDone, StepDone
from flwr_splitmix.links import MixerLink
from flwr_splitmix.mixer_process.process import MixerServer
from flwr_splitmix.mixers import Upload
from flwr_splitmix.observers import Observer
from tests.links.mixer.third_party import TOY, grid_of, make, start

Start = Callable[..., MixerServer]
LinkTo = Callable[..., MixerLink]
GROUPS = TOY.clients // 2


class Everything(Observer):
    """Records all events for observers."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.begun: list[RoundBegun] = []
        self.steps: list[StepDone] = []
        self.rounds: list[RoundDone] = []

    def on_exchange(self, event: Exchange) -> None:
        self.exchanges.append(event)

    def on_begin(self, event: RoundBegun) -> None:
        self.begun.append(event)

    def on_step(self, event: StepDone) -> None:
        self.steps.append(event)

    def on_round(self, event: RoundDone) -> None:
        self.rounds.append(event)


def single_uploads() -> list[Upload]:
    """Return the uploads of the same run without a third-party mixer."""
    observer = Everything()
    make("CutMixSL", observers=[observer]).fit(TOY.make_clients(adamw(0.01)), 1)
    return [
        upload
        for step in observer.steps
        for upload in step.uploads.values()
        if isinstance(upload, Upload)
    ]


def holds(view: Tensor, part: Tensor) -> bool:
    """Return whether a view (b, T, d) equals a part (b, a, d)."""
    return view.shape == part.shape and torch.equal(view, part)


def test_the_recorded_view_holds_no_upload_no_mask_and_no_node(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    observer, recorder = Everything(), Recorder()
    strategy = make("CutMixSL", link_to(start_mixer()), observers=[observer, recorder])
    start(strategy, grid_of(tmp_path), 1)
    clients = set(range(TOY.clients))
    # No client's index: the groups' are negative.
    indices = {event.client for event in observer.exchanges}
    indices |= {client for event in observer.begun for client in event.descriptions}
    indices |= {client for step in observer.steps for client in (*step.uploads, *step.gradients)}
    assert indices == {-2, -1}
    assert not indices & clients
    assert observer.rounds[0].client_seconds == {}
    # No mask: all groups are asked for the same, without a word on patches.
    plans = [event.payload["plan"] for event in observer.exchanges if event.direction == "down"]
    shares = {str(plan) for plan in plans if plan is not None}
    assert shares == {"[{'share': 'group', 'lam': 1.0, 'learns': True}]"}
    # No upload: each mixture has all patches, and none is what a client sent.
    uploads = single_uploads()
    assert len(uploads) == len(observer.steps) * TOY.clients
    steps = [step for step in recorder.trace.steps() if isinstance(step, Step)]
    assert len(steps) == len(observer.steps) > 0
    parts = [part for upload in uploads for part in upload.smashed if part is not None]
    assert all(part.shape[1] < TOY.patches for part in parts)
    for step in steps:
        assert len(step.uploads) == GROUPS
        for mixture in step.uploads.values():
            (view,) = mixture.smashed
            assert view is not None
            assert view.shape == (TOY.batch, TOY.patches, TOY.width)
            assert not any(holds(view, part) for part in parts)
            (soft,) = mixture.labels
            assert soft is not None
            assert soft.sum(1).allclose(torch.ones(TOY.batch, dtype=soft.dtype))
    # The patches are in the mixtures: only the masks, which the mixer has, could tell them apart.
    first = [
        view for upload in steps[0].uploads.values() for view in upload.smashed if view is not None
    ]
    patches = torch.cat(first, dim=1)
    for part in parts[: TOY.clients]:
        assert all((patches == patch[:, None]).all(2).any(1).all() for patch in part.unbind(1))


def test_everything_that_goes_to_the_server_is_on_a_list(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path, monkeypatch: Any
) -> None:
    """Law 6, checked on the wire itself, inside TLS."""
    from flwr_splitmix.links.mixer.channel import MixerChannel

    calls: list[tuple[str, dict[str, Any]]] = []
    ask = MixerChannel._ask

    def listen(self: MixerChannel, name: str, arguments: Any) -> dict[str, Any]:
        reply = ask(self, name, arguments)
        calls.append((name, reply))
        return reply

    monkeypatch.setattr(MixerChannel, "_ask", listen)
    strategy = make("CutMixSL", link_to(start_mixer()), steps_per_round=2)
    start(strategy, grid_of(tmp_path), 1)
    sizes = {"groups", "batch-size", "patches", "width", "prefix", "num-examples"}
    allowed = {
        "open": {"tokens"},
        "attach": {"waiting", "failures"},
        "begin": {*sizes, "failures", "spent"},
        "step": {"mixtures", "failures", "spent"},
        "finish": {"failures"},
        "close": set(),
    }
    assert {name for name, _ in calls} == allowed.keys()
    for name, reply in calls:
        assert reply.keys() == allowed[name]
    for reply in (reply for name, reply in calls if name == "step"):
        assert reply["mixtures"].keys() == {"0", "1"}
        for mixture in reply["mixtures"].values():
            assert mixture.keys() == {"smashed", "labels"}
