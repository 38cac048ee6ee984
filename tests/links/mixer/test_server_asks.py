"""Servers that ask a mixer for what they must not have, or send invalid calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from flwr_splitmix.links import LinkError, MixerLink
from flwr_splitmix.links.frames.codec import Frame, decode, encode
from flwr_splitmix.links.mixer.channel import MixerAddress, MixerChannel
from flwr_splitmix.links.mixer.protocol import METHOD, PROTOCOL, PROTOCOL_KEY, TOKEN_KEY
from flwr_splitmix.mixer_process.opening import MAX_MIXED_NODES, Opening
from flwr_splitmix.mixer_process.process import MixerServer
from flwr_splitmix.mixer_process.steps import MixedSteps
from flwr_splitmix.privacy import GaussianNoise
from tests.links.mixer.nodes import DESCRIPTION, FIRST, OPENING, Nodes, wait_until_attached
from tests.links.mixer.third_party import TOKEN, grid_of, make, start

Start = Callable[..., MixerServer]
LinkTo = Callable[..., MixerLink]

CUTMIX: dict[str, Any] = {"mixer": "PatchCutMix", "min_patches": 1}
NOISE = GaussianNoise(sigma_s=1.0, sigma_y=1.0).to_plain()
NOISY: dict[str, Any] = {**CUTMIX, "noise": NOISE}
LEDGER: dict[str, Any] = {
    "run": "r", "delta": 1e-5, "relation": "replace", "attempts": {"0": 0, "1": 0},
    "earlier": {},
}  # fmt: skip


def with_noise(**changes: Any) -> dict[str, Any]:
    return {"mixing": {**CUTMIX, "noise": {**NOISE, **changes}}, "ledger": LEDGER}


def with_ledger(**changes: Any) -> dict[str, Any]:
    return {"mixing": NOISY, "ledger": {**LEDGER, **changes}}


def test_a_call_that_cannot_be_encoded_is_not_blamed_on_the_mixer(channel: MixerChannel) -> None:
    with pytest.raises(LinkError, match=r"^the call 'open' cannot be sent to the mixer at"):
        channel.open({**OPENING, "nodes": object()})
    channel.open(OPENING)  # nothing was sent, so the order of calls is kept


def test_the_mixers_log_says_what_a_round_mixes(
    channel: MixerChannel, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "flwr.splitmix"):
        channel.open({**OPENING, **with_noise()})
    (line,) = [message for message in caplog.messages if message.startswith("round ")]
    assert "PatchCutMix (min_patches 1, noise (sigma_s 1.0, sigma_y 1.0, " in line
    assert line.endswith(" of 2 nodes")


def test_an_opening_with_noise_is_none_that_is_refused(channel: MixerChannel) -> None:
    """Each refusal below changes one value of this opening."""
    assert channel.open({**OPENING, **with_ledger()})["tokens"].keys() == {"0", "1"}


def test_attempts_whose_lengths_are_not_told_are_of_unknown_length() -> None:
    ledger = {"attempts": {"0": 2**31 - 1, "1": 2}, "earlier": {"0": [3], "1": [5, 4]}}
    read = Opening.read({**OPENING, **with_ledger(**ledger)})
    assert read.ledger is not None
    assert read.ledger.lengths == {0: [3, None], 1: [5, 4]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (with_noise(sigma_s="1"), "sigma_s is '1'; a standard deviation is a number"),
        (with_noise(sigma_s=-1.0), "sigma_s is -1.0; a standard deviation is a number of at least"),
        (with_noise(sigma_y=float("nan")), "sigma_y is nan"),
        (with_noise(sigma_y=float("inf")), "sigma_y is inf"),
        (with_noise(sigma_y=True), "sigma_y is True"),
        (with_noise(sigma_y=None), "sigma_y is None"),
        (with_noise(sigma_s=10**400), "sigma_s is more than 2147483647; it must be a number that"),
        (with_noise(clip="mine"), "clip is 'mine'; it must be one of patch"),
        (with_noise(clip=["patch"]), "clip is ['patch']"),
        (with_noise(clip_norm=0.0), "clip_norm is 0.0; it must be a number above 0"),
        (with_noise(clamp_labels=1), "clamp_labels is 1; it must be True or False"),
        (with_noise(seed=7), "noise has no seed"),
        ({"mixing": {**CUTMIX, "noise": {"sigma_s": 1.0}}, "ledger": LEDGER}, "needs sigma_y"),
        ({"mixing": {**CUTMIX, "noise": None}, "ledger": LEDGER}, "noise must be a dictionary"),
        ({"mixing": {**CUTMIX, "noise": [1.0, 1.0]}, "ledger": LEDGER}, "must be a dictionary"),
        ({"mixing": NOISY}, "a mixing with noise needs a ledger"),
        ({"ledger": LEDGER}, "one without noise must have none"),
        (with_ledger(delta=0.0), "ledger.delta is wrong"),
        (with_ledger(delta=float("nan")), "ledger.delta is wrong"),
        (with_ledger(relation="none"), "ledger.relation is wrong"),
        (with_ledger(run=""), "ledger.run is wrong"),
        (with_ledger(run="r" * 201), "ledger.run is wrong"),
        (with_ledger(attempts={"0": 0}), "attempts must be those of the nodes"),
        (with_ledger(attempts={"0": -1, "1": 0}), "ledger.attempts.0 is wrong"),
        (with_ledger(attempts={"0": 0.5, "1": 0}), "ledger.attempts.0 is wrong"),
        (with_ledger(earlier={"0": [-1]}), "ledger.earlier.0.0 is wrong"),
        (with_ledger(earlier={"0": 1}), "ledger.earlier.0 is wrong"),
        (with_ledger(**{"wire-dtype": "keep"}), "ledger.wire-dtype is wrong"),
        ({"mixing": {"mixer": "NoMixing", "noise": NOISE}, "ledger": LEDGER}, "unknown mixer"),
        (
            {"mixing": {**NOISY, "min_patches": 0}, "ledger": LEDGER},
            "min_patches is 0: a member of a group may",
        ),
        ({"mixing": {"mixer": "NoMixing"}}, "unknown mixer; available: PatchCutMix"),
        ({"mixing": {**CUTMIX, "k": 1}}, "k is 1; a mixing group needs at least 2"),
        ({"mixing": {**CUTMIX, "min_patches": 0}}, "min_patches is 0: a member of a group may"),
        ({"mixing": {**CUTMIX, "k_times": True}}, "a group's k mixtures together hold every"),
        ({"mixing": {**CUTMIX, "masks": "mine"}}, "has other options"),
        ({"mixing": {"mixer": "Mixup", "k": "two"}}, "has other options, or values of other types"),
        ({"mixing": {"mixer": "Mixup", "k": 2.0}}, "values of other types"),
        ({"mixing": {**CUTMIX, "min_patches": 1.5}}, "values of other types"),
        ({"mixing": {**CUTMIX, "k_times": 0}}, "values of other types"),
        ({"nodes": {"0": 100}}, "no mixture of fewer than 2 members: it is asked for groups of 2"),
        ({"nodes": {}}, "nodes is wrong"),
        ({"nodes": {"me": 100, "1": 101}}, "clients must be numbers from 0"),
        ({"nodes": {"9" * 5000: 100, "1": 101}}, "clients must be numbers from 0"),
        ({"uploads": True}, "uploads is wrong"),
        ({"geometry": {"rows": 3}}, "the geometry is invalid"),
        ({"dtype": "int64"}, "smashed data cannot be int64"),
        ({"step-timeout": float("inf")}, "step-timeout is wrong"),
        ({"round": "1"}, "round is wrong"),
    ],
)
def test_a_round_that_would_hide_nobody_or_is_none_is_refused(
    changes: Mapping[str, Any], message: str, channel: MixerChannel
) -> None:
    with pytest.raises(LinkError) as refused:
        channel.open({**OPENING, **changes})
    assert "refuses: " in str(refused.value)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"least_members": 3}, "no mixture of fewer than 3 members: it is asked for groups of 2"),
        ({"least_patches": 2}, "leaves each member 2 patches: set min-patches to as many"),
        ({"most_ratio": 0.3}, "has more than 0.3, and it is asked for groups of 2: set k to at le"),
    ],
)
@pytest.mark.parametrize("changes", [{}, with_ledger()], ids=["plain", "with noise"])
def test_an_operator_may_ask_for_more(
    changes: dict[str, Any], policy: dict[str, Any], message: str, start_mixer: Start
) -> None:
    mixer = start_mixer(certificate=None, key=None, **policy)
    channel = MixerChannel(MixerAddress(mixer.address, tls=False, token=TOKEN), 5.0)
    with pytest.raises(LinkError, match=message):
        channel.open({**OPENING, **changes})
    channel.close()


def test_groups_are_smaller_where_nodes_are_missing(
    plain: MixerServer, channel: MixerChannel
) -> None:
    """A run of which nodes are lost goes on, in groups that the operator's rules allow."""
    nodes = Nodes(plain, channel, mixing={**CUTMIX, "k": 3})
    threads = [nodes.start(index) for index in (0, 1)]
    wait_until_attached(channel)
    assert channel.ask("begin")["groups"] == 1
    (mixture,) = channel.ask("step", FIRST)["mixtures"].values()
    assert set(mixture["smashed"].unique().tolist()) == {1.0, 2.0}
    channel.close()
    for thread in threads:
        thread.join(30)


def test_soft_labels_that_are_too_large_are_refused_before_a_step(
    plain: MixerServer, channel: MixerChannel
) -> None:
    """With so many classes, a step would take all memory of the mixer."""
    nodes = Nodes(plain, channel, classes=10**6)
    nodes.description = {**DESCRIPTION, "batch-size": 200, "num-examples": 200}
    threads = [nodes.start(index) for index in (0, 1)]
    wait_until_attached(channel)
    with pytest.raises(LinkError, match="mixtures would be larger than a frame may be"):
        channel.ask("begin")
    assert nodes.sent == []
    channel.close()
    for thread in threads:
        thread.join(30)


def test_as_many_nodes_as_a_mixer_takes_get_their_tokens(channel: MixerChannel) -> None:
    """Of 4,000 the tokens do not fit into the reply."""
    many = {str(10**8 + client): 2**64 - 1 - client for client in range(MAX_MIXED_NODES + 1)}
    opening = {**OPENING, "round": 2**31 - 1, "nodes": many}
    with pytest.raises(LinkError, match="has 3501 nodes, and a mixer takes at most 3500: lower f"):
        channel.open(opening)
    many.popitem()
    assert channel.open(opening)["tokens"].keys() == many.keys()


def test_no_call_asks_for_a_single_upload(channel: MixerChannel) -> None:
    channel.open(OPENING)
    for name in ("uploads", "plan", "seed", "step", "open", "answer", "_mint"):
        with pytest.raises(LinkError, match=rf"does not answer '{name}' now, but attach, begin"):
            channel.ask(name)


def test_a_server_that_breaks_the_order_or_sends_other_gradients_gets_nothing(
    plain: MixerServer, channel: MixerChannel
) -> None:
    nodes = Nodes(plain, channel)
    threads = [nodes.start(index) for index in (0, 1)]
    wait_until_attached(channel)
    assert channel.ask("begin")["groups"] == 1
    gradient = torch.zeros(2, 6, 3, dtype=torch.float64)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"number": 1}, "the next step is number 0"),
        ({"progress": "now"}, "progress is not a number"),
        ({"progress": float("nan")}, "progress is not a number"),
        ({"progress": 10**400}, "progress is not a number of rounds"),  # no float can hold it
        ({"progress": -1.0}, "progress is not a number"),
        ({"gradients": None}, "must name its gradients"),
        ({"gradients": {"0": gradient}}, "no mixture for these gradients"),
    ]
    for wrong, message in refused:
        with pytest.raises(LinkError, match=message):
            channel.ask("step", {**FIRST, **wrong})
    assert nodes.sent == []
    mixtures = channel.ask("step", FIRST)["mixtures"]
    assert mixtures.keys() == {"0"}
    assert set(mixtures["0"]["smashed"].unique().tolist()) == {1.0, 2.0}
    second = {"number": 1, "progress": 0.5, "gradients": {"0": gradient}}
    with pytest.raises(LinkError, match="no mixture for these gradients"):
        channel.ask("step", {**second, "gradients": {"1": gradient}})
    for odd in (gradient[:1], gradient.float(), "gradient"):
        with pytest.raises(LinkError, match="not have the shape and dtype of its mixture"):
            channel.ask("step", {**second, "gradients": {"0": odd}})
    for number in (float("nan"), float("inf"), -1e9):
        # Its members would refuse it, and the server would hear who they are.
        harm = {"0": gradient + number}
        with pytest.raises(LinkError, match="a gradient has NaN or infinite numbers, or"):
            channel.ask("step", {**second, "gradients": harm})
    assert len(nodes.sent) == 2
    assert channel.ask("step", second)["mixtures"].keys() == {"0"}
    channel.ask("finish", {"number": 2, "progress": 1.0, "gradients": {}})
    with pytest.raises(LinkError, match="does not answer 'step' now, but close"):
        channel.ask("step", second)
    channel.ask("close")
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    "payload",
    [b"", b"no frame", encode(Frame("hello", 1)), encode(Frame("call", 7, "open")), b"\x80\x04K."],
    ids=["empty", "text", "hello", "number", "pickle"],
)
def test_bytes_that_are_no_call_are_answered_with_a_sentence(
    plain: MixerServer, payload: bytes
) -> None:
    shown = ((TOKEN_KEY, TOKEN), (PROTOCOL_KEY, str(PROTOCOL)))
    with grpc.insecure_channel(plain.address) as channel:
        stream = channel.stream_stream(METHOD)(iter([payload]), metadata=shown, timeout=60)
        frame = decode(next(stream))
    assert frame.kind == "error"
    assert frame.text


def test_a_mixer_that_answers_nonsense_is_named(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = MixedSteps.take

    def bare(self: MixedSteps, arguments: Mapping[str, Any]) -> Any:
        return {group: {"smashed": 1} for group in take(self, arguments)}

    monkeypatch.setattr(MixedSteps, "take", bare)
    strategy = make("CutMixSL", link_to(start_mixer(), reattach_timeout=1.0))
    grid = grid_of(tmp_path)
    with pytest.raises(LinkError, match="the mixer sent a mixture without numbers or labels"):
        start(strategy, grid, 1)
    grid.wait()
