"""Servers that hang up, rehearse a round, or choose ratios that make one member the mixture."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from flwr_splitmix.links import LinkError
from flwr_splitmix.links.mixer import service
from flwr_splitmix.links.mixer.channel import MixerAddress, MixerChannel
from flwr_splitmix.links.stream.server import StreamService
from flwr_splitmix.mixer_process import process
from flwr_splitmix.mixer_process.opening import Opening
from flwr_splitmix.mixer_process.process import MixerServer
from flwr_splitmix.mixer_process.room import MixingRoom
from flwr_splitmix.mixers import Mixup, PatchCutMix
from flwr_splitmix.mixers.described import describe
from tests.links.mixer.nodes import FIRST, OPENING, Nodes, wait_until_attached
from tests.links.mixer.third_party import TOKEN
from tests.waiting import wait_for

Start = Callable[..., MixerServer]


def stream_to(mixer: MixerServer) -> MixerChannel:
    return MixerChannel(MixerAddress(mixer.address, tls=False, token=TOKEN), 5.0)


def first_step(nodes: Nodes, channel: MixerChannel) -> dict[str, Any]:
    """Run the round's first step with both nodes; return the mixer's answer."""
    for index in (0, 1):
        nodes.start(index)
    wait_until_attached(channel)
    channel.ask("begin")
    return channel.ask("step", FIRST)


def step_with(nodes: Nodes, channel: MixerChannel) -> dict[str, Any]:
    """Run the round's first step with both nodes; return its mixtures."""
    mixtures: dict[str, Any] = first_step(nodes, channel)["mixtures"]
    return mixtures


@pytest.mark.parametrize("alpha", [1e-6, 1e-3])
def test_no_mixture_is_made_that_is_one_members_upload(
    alpha: float, plain: MixerServer, channel: MixerChannel
) -> None:
    """With ratios of 1 and 0, the server would get the upload itself, bit for bit."""
    nodes = Nodes(plain, channel, mixing=describe(Mixup(alpha=alpha)))
    assert step_with(nodes, channel) == {}
    assert nodes.sent == []


def test_errors_of_uploads_do_not_tell_how_much_is_whose(
    plain: MixerServer, channel: MixerChannel
) -> None:
    """The shape of an upload has the number of the member's patches, its range may have its ratio.

    A server that opens the round with another dtype makes every upload an error.
    """
    mixing = describe(PatchCutMix(min_patches=1, alpha=1.0))
    nodes = Nodes(plain, channel, mixing=mixing, dtype="float32")
    reason = (
        "uploaded torch.float64; both segments must compute in one dtype: convert the output of "
        "the client's with .float()"
    )
    assert first_step(nodes, channel)["failures"] == {"0": reason, "1": reason}
    nodes.end(channel)


def test_an_upload_of_another_shape_is_named_in_the_mixers_log_alone(
    plain: MixerServer, channel: MixerChannel, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = Nodes(plain, channel, mixing=describe(PatchCutMix(min_patches=1)))
    nodes.width = 4
    reason = "uploaded something else than it was asked for; the mixer's log says what"
    assert first_step(nodes, channel)["failures"] == {"0": reason, "1": reason}
    logged = [line for line in caplog.messages if "is left out: it uploaded (2, " in line]
    assert len(logged) == 2
    nodes.end(channel)


def test_the_operator_may_ask_for_more_even_ratios(start_mixer: Start) -> None:
    mixing = describe(Mixup(alpha=1.0))
    shown = []
    for most in (1.0, 0.5):
        mixer = start_mixer(certificate=None, key=None, most_ratio=most)
        channel = stream_to(mixer)
        shown.append(step_with(Nodes(mixer, channel, mixing=mixing), channel).keys())
        channel.close()
    assert shown == [{"0"}, set()]


def test_a_round_cannot_be_rehearsed(start_mixer: Start) -> None:
    """With its own nodes instead of the real ones, a server could see the real round's masks."""
    mixer = start_mixer(certificate=None, key=None, seed_file=None)
    plans = []
    for _ in range(4):
        channel = stream_to(mixer)
        nodes = Nodes(mixer, channel, mixing=describe(PatchCutMix(min_patches=1, alpha=1.0)))
        step_with(nodes, channel)
        channel.close()
        plans.append(sorted(map(repr, nodes.plans)))
    assert any(plan != plans[0] for plan in plans)


def test_nobody_waits_for_nodes_of_a_server_that_has_hung_up(
    plain: MixerServer, channel: MixerChannel
) -> None:
    """The call's thread would stay until the server's timeout for nodes, up to a day."""
    nodes = Nodes(plain, channel, step_timeout=3600.0, reattach_timeout=3600.0)
    nodes.answers.clear()
    for index in (0, 1):
        nodes.start(index)
    wait_until_attached(channel)
    channel.ask("begin")
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(channel.ask, "step", FIRST)
        wait_for("the nodes to be asked", lambda: len(nodes.plans) == 2)
        assert any(map(_is_call, threading.enumerate()))
        channel.close()
        assert step.exception(60) is not None
    wait_for("the call's end", lambda: not any(map(_is_call, threading.enumerate())))
    nodes.answers.set()


def _is_call(thread: threading.Thread) -> bool:
    return thread.name.startswith("splitmix-mixer")


def test_a_server_that_hangs_up_while_it_opens_leaves_no_line_behind(
    plain: MixerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise lines of a thousand nodes would stay for ever."""
    begun, go_on = threading.Event(), threading.Event()
    read = Opening.read

    def slow(values: Any) -> Opening:
        begun.set()
        go_on.wait(60)
        return read(values)

    departure = threading.Event()
    leave = MixingRoom.leave

    def noted(room: MixingRoom) -> None:
        leave(room)
        departure.set()

    monkeypatch.setattr(Opening, "read", slow)
    monkeypatch.setattr(MixingRoom, "leave", noted)
    registered: list[Any] = []
    monkeypatch.setattr(StreamService, "open", lambda self, lines: registered.append(lines))
    channel = stream_to(plain)
    with ThreadPoolExecutor(1) as pool:
        many = {str(client): 100 + client for client in range(1000)}
        opened = pool.submit(channel.open, {**OPENING, "nodes": many})
        assert begun.wait(60)
        channel.close()
        assert opened.exception(60) is not None
        assert departure.wait(60)
        go_on.set()
    wait_for("the call's end", lambda: not any(map(_is_call, threading.enumerate())))
    assert not registered


def test_a_large_call_is_not_read_before_there_are_mixtures(
    plain: MixerServer, channel: MixerChannel
) -> None:
    with pytest.raises(LinkError, match="refuses: a frame's body has"):
        channel.open({**OPENING, "more": torch.zeros(service.SMALL_CALL)})


def test_so_many_streams_and_no_more(
    start_mixer: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(service, "MAX_STREAMS", 2)
    mixer = start_mixer(certificate=None, key=None)
    streams = [stream_to(mixer) for _ in range(3)]
    for stream in streams[:2]:
        stream.open(OPENING)
    with pytest.raises(LinkError, match="the mixer has 2 rounds in hand"):
        streams[2].open(OPENING)
    streams[0].close()
    wait_for("a place", lambda: _opens(stream_to(mixer)))
    streams[1].close()


def test_a_round_that_cannot_begin_takes_no_place(
    start_mixer: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 64 of them a mixer would turn every ServerApp away, until it is restarted."""
    monkeypatch.setattr(service, "MAX_STREAMS", 1)
    mixer = start_mixer(certificate=None, key=None)
    with monkeypatch.context() as patched:
        patched.setattr(process, "MixingRoom", _no_room)
        with pytest.raises(LinkError, match="turns this run away: Unexpected"):
            stream_to(mixer).open(OPENING)
    assert _opens(stream_to(mixer))


def _no_room(*_: Any) -> Any:
    raise MemoryError


def _opens(channel: MixerChannel) -> bool:
    try:
        channel.open(OPENING)
    except LinkError:
        return False
    finally:
        channel.close()
    return True
