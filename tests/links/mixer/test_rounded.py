"""Uploads that are rounded on the wire: a mixer does not add them up, whatever the server says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.links import MixerLink
from flwr_splitmix.links.frames.wire import WIRE_DTYPES
from flwr_splitmix.links.mixer.channel import MixerChannel
from flwr_splitmix.mixer_process.process import MixerServer
from flwr_splitmix.mixers import Mixer, Mixup, Noisy, PatchCutMix
from flwr_splitmix.mixers.described import check_adds_nothing, describe
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.sandbox.certificates import Certificates
from flwr_splitmix.strategies import CutMixSL, MixupSL
from tests.links.fake_grid import FakeGrid, OneAtATime, toy_app
from tests.links.mixer.nodes import FIRST, Nodes, wait_until_attached
from tests.links.mixer.third_party import TOY, make, secret, start

NARROW = [wire for wire in WIRE_DTYPES if wire != "keep"]
KEPT = GaussianNoise(sigma_s=1.0, sigma_y=1.0)
EVERYWHERE = replace(KEPT, smashed_noise="all")
SUMS: list[tuple[Mixer, int]] = [
    (Mixup(2), 0),
    (Noisy(Mixup(2), KEPT), 0),
    (PatchCutMix(2, min_patches=1), 1),
    (Noisy(PatchCutMix(2, min_patches=1), EVERYWHERE), 0),
]
PATCHES: list[Mixer] = [
    PatchCutMix(2, min_patches=1),
    Noisy(PatchCutMix(2, min_patches=1), KEPT),
]


@pytest.mark.parametrize("wire", NARROW)
def test_a_mixer_adds_up_no_rounded_uploads(
    wire: str, plain: MixerServer, channel: MixerChannel
) -> None:
    """The server says in the tickets how nodes round; with int4 a sum falls apart into both."""
    nodes = Nodes(plain, channel, mixing=describe(Mixup(2)))
    nodes.tickets = [replace(ticket, wire_dtype=wire) for ticket in nodes.tickets]
    threads = [nodes.start(index) for index in (0, 1)]
    wait_until_attached(channel)
    channel.ask("begin")
    reply = channel.ask("step", FIRST)
    assert reply["mixtures"] == {}
    assert reply["failures"].keys() == {"0", "1"}
    assert all("wire-dtype must be 'keep'" in why for why in reply["failures"].values())
    for thread in threads:
        thread.join(60)


@pytest.mark.parametrize("wire", ["keep", "int4"])
def test_patches_that_are_only_put_side_by_side_may_be_rounded(
    wire: str, plain: MixerServer, channel: MixerChannel
) -> None:
    nodes = Nodes(plain, channel)
    nodes.tickets = [replace(ticket, wire_dtype=wire) for ticket in nodes.tickets]
    for index in (0, 1):
        nodes.start(index)
    wait_until_attached(channel)
    channel.ask("begin")
    assert channel.ask("step", FIRST)["mixtures"].keys() == {"0"}


@pytest.mark.parametrize(("mixer", "prefix"), SUMS, ids=str)
@pytest.mark.parametrize("wire", NARROW)
def test_a_run_that_would_add_up_rounded_uploads_is_refused(
    wire: str, mixer: Mixer, prefix: int
) -> None:
    with pytest.raises(ValueError, match=f"wire_dtype is '{wire}', and this mixer adds uploads up"):
        check_adds_nothing(mixer, prefix, wire)


@pytest.mark.parametrize("mixer", PATCHES, ids=str)
@pytest.mark.parametrize("wire", NARROW)
def test_a_run_that_puts_rounded_patches_side_by_side_is_not(wire: str, mixer: Mixer) -> None:
    check_adds_nothing(mixer, 0, wire)


def test_a_strategy_refuses_it_before_the_run(tmp_path: Path) -> None:
    token = secret(tmp_path / "token", "c0ffee" * 8)
    link = MixerLink("127.0.0.1:9444", token, wire_dtype="int8")
    with pytest.raises(ValueError, match="set wire_dtype to 'keep'"):
        make("MixupSL", link)
    with pytest.raises(ValueError, match="set wire_dtype to 'keep'"):  # prefix tokens are summed
        CutMixSL(replace(TOY, prefix=1).upper(), min_patches=1, link=link)
    make("CutMixSL", link)
    make("MixupSL", MixerLink("127.0.0.1:9444", token, wire_dtype_down="int8"))


def test_a_format_that_rounds_nothing_is_no_rounding(tmp_path: Path) -> None:
    """Such as float32 for float32 uploads, which travel as they are."""
    token = secret(tmp_path / "token", "c0ffee" * 8)
    link = MixerLink("127.0.0.1:9444", token, wire_dtype="float32")
    with pytest.raises(ValueError, match="wire_dtype is 'float32', and this mixer adds uploads up"):
        MixupSL(TOY.upper(), link=link)
    MixupSL(TOY.upper().float(), link=link)


def test_a_node_with_a_mixer_of_its_own_does_not_say_how_many_steps_it_took(
    start_mixer: Callable[..., MixerServer],
    link_to: Callable[..., MixerLink],
    files: Certificates,
    tmp_path: Path,
) -> None:
    """A server that withholds one group's gradient would see in them who is in the group."""
    mixer = start_mixer()
    pinned: dict[str, Any] = {"link-via": mixer.address, "link-via-ca": str(files.ca)}
    for pins, step_counts in ((pinned, {0}), ({}, {3})):
        grid = FakeGrid(
            toy_app(TOY, kind=OneAtATime), TOY.clients,
            **{"state-dir": str(tmp_path / str(step_counts))}, **pins,
        )  # fmt: skip
        start(make("CutMixSL", link_to(mixer)), grid, 1)
        grid.wait()
        records = [reply.content.metric_records for reply in grid.all_replies]
        assert {r["metrics"]["num-steps"] for r in records if "metrics" in r} == step_counts
