"""Servers and nodes that ask a mixer for what they must not have, or send what is no call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from flwr_splitmix.links import LinkError, MixerLink, RoundLostError
from flwr_splitmix.links.frames.codec import Frame, encode
from flwr_splitmix.links.mixer.channel import Dialled, MixerChannel
from flwr_splitmix.links.mixer.protocol import METHOD, PROTOCOL, PROTOCOL_KEY, TOKEN_KEY
from flwr_splitmix.links.stream.certificates import Certificates
from flwr_splitmix.links.stream.protocol import NODE_KEY
from flwr_splitmix.links.stream.session import Session
from flwr_splitmix.links.ticket import Ticket
from flwr_splitmix.mixers import PatchCutMix
from flwr_splitmix.mixers.elsewhere import describe
from flwr_splitmix.server.mixing.process import MixerServer
from tests.links.mixer.third_party import TOKEN, grid_of, make, secret, start
from tests.links.stream import peers

Start = Callable[..., MixerServer]
LinkTo = Callable[..., MixerLink]

OPENING: dict[str, Any] = {
    "mixing": describe(PatchCutMix(min_patches=1)),
    "classes": 3,
    "dtype": "float64",
    "geometry": None,
    "steps-per-round": 2,
    "epochs-per-round": 1,
    "round": 1,
    "seed": 7,
    "nodes": {"0": 100, "1": 101},
    "wire-dtype": "keep",
    "wire-feedback": False,
    "step-timeout": 5.0,
    "reattach-timeout": 1.0,
}


@pytest.fixture
def mixer(start_mixer: Start) -> MixerServer:
    """Return a mixer in plaintext on the loopback: what is said is at stake, not who can hear."""
    return start_mixer(certificate=None, key=None)


@pytest.fixture
def channel(mixer: MixerServer) -> Iterator[MixerChannel]:
    """Return a ServerApp's stream, with the right token."""
    channel = MixerChannel(Dialled(mixer.address, tls=False, token=TOKEN), 5.0)
    yield channel
    channel.close()


@pytest.mark.parametrize("token", ["", TOKEN[:-1], TOKEN + "0", "f" * 48])
def test_who_has_not_the_token_is_turned_away(mixer: MixerServer, token: str) -> None:
    channel = MixerChannel(Dialled(mixer.address, tls=False, token=token), 5.0)
    with pytest.raises(LinkError, match=r"turns this run away: this is not the mixer's token"):
        channel.open(OPENING)


def test_a_mixer_without_the_right_certificate_is_not_dialled(
    start_mixer: Start, files: Certificates, tmp_path: Path
) -> None:
    mixer = start_mixer()
    for ca in (b"", files.of_node(0)[0].read_bytes()):
        channel = MixerChannel(Dialled(mixer.address, tls=True, ca=ca, token=TOKEN), 1.0)
        with pytest.raises(LinkError, match=r"could not be reached within 1 s"):
            channel.open(OPENING)


def test_with_an_authority_for_its_peers_a_mixer_asks_the_serverapp_for_a_certificate(
    start_mixer: Start, link_to: LinkTo, files: Certificates, tmp_path: Path
) -> None:
    mixer = start_mixer(client_ca=files.ca)
    with pytest.raises(LinkError, match="could not be reached"):
        MixerChannel(Dialled(mixer.address, True, files.ca.read_bytes(), None, TOKEN), 1.0).open(
            OPENING
        )
    certificate, key = files.of_node(0)
    dialled = Dialled(
        mixer.address,
        True,
        files.ca.read_bytes(),
        (certificate.read_bytes(), key.read_bytes()),
        TOKEN,
    )
    channel = MixerChannel(dialled, 5.0)
    assert channel.open(OPENING)["tokens"].keys() == {"0", "1"}
    # A server that has made itself nodes: their tokens are its own, their certificates are not.
    ticket = Ticket(
        1, 7, 1, 9, address=mixer.address, ca=files.ca.read_text(), token="", timeout=2.0
    )
    from flwr_splitmix.links.stream.session import ClientIdentity

    token = MixerChannel(dialled, 5.0)
    own = token.open(OPENING)["tokens"]["1"]
    import dataclasses

    with pytest.raises(LinkError, match=r"shows a certificate of node-0, but it is client 1"):
        Session(
            dataclasses.replace(ticket, token=own),
            101,
            peers.DESCRIPTION,
            peers.echo,
            ClientIdentity(certificate, key),
        ).run()
    token.close()
    channel.close()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mixing": {"mixer": "NoMixing"}}, "there is no such mixer here"),
        ({"mixing": {"mixer": "PatchCutMix", "k": 1}}, "k is 1; a mixing group needs at least 2"),
        ({"mixing": {"mixer": "PatchCutMix", "k": 2}}, "min-patches is 0: a member of a group may"),
        (
            {"mixing": {"mixer": "PatchCutMix", "min_patches": 1, "k_times": True}},
            "k-times is true: a group's k mixtures together hold every patch",
        ),
        ({"mixing": {"mixer": "PatchCutMix", "masks": "mine"}}, "has other options"),
        ({"mixing": {"mixer": "Mixup", "k": "two"}}, "has other options, or values of other types"),
        ({"mixing": {"mixer": "Mixup", "k": 5}}, "k is 5, but only 2 clients take part"),
        ({"nodes": {"0": 100}}, "no mixture of fewer than 2 members: it is asked for groups of 2"),
        ({"nodes": {}}, "nodes is wrong"),
        ({"nodes": {"me": 100, "1": 101}}, "clients must be numbers from 0"),
        ({"uploads": True}, "uploads is wrong"),
        ({"geometry": {"rows": 3}}, "the geometry is none"),
        ({"dtype": "int64"}, "smashed data cannot be int64"),
        ({"step-timeout": float("inf")}, "step-timeout is wrong"),
        ({"round": "1"}, "round is wrong"),
    ],
)
def test_a_round_that_would_hide_nobody_or_is_none_is_refused(
    changes: Mapping[str, Any], said: str, channel: MixerChannel
) -> None:
    with pytest.raises(LinkError) as refused:
        channel.open({**OPENING, **changes})
    assert "refuses: " in str(refused.value)
    assert said in str(refused.value)


def test_an_operator_may_ask_for_larger_groups(start_mixer: Start) -> None:
    mixer = start_mixer(certificate=None, key=None, least_members=3)
    channel = MixerChannel(Dialled(mixer.address, tls=False, token=TOKEN), 5.0)
    with pytest.raises(LinkError, match=r"no mixture of fewer than 3 members.*groups of 2 out of"):
        channel.open(OPENING)
    channel.close()


def test_no_call_asks_for_a_single_upload(channel: MixerChannel) -> None:
    channel.open(OPENING)
    for name in ("uploads", "plan", "seed", "step", "open", "answer", "_mint"):
        with pytest.raises(LinkError, match=rf"does not answer '{name}' now, but attach, begin"):
            channel.ask(name)


class Uploads:
    """Two nodes of a round at a mixer, played by raw sessions; the server is played by the test."""

    def __init__(self, mixer: MixerServer, channel: MixerChannel) -> None:
        self.sent: list[torch.Tensor] = []
        self.asked: list[Mapping[str, Any]] = []
        tokens = channel.open(OPENING)["tokens"]
        self.tickets = [
            Ticket(c, 7, 1, 9, address=mixer.address, tls=False, token=tokens[str(c)], timeout=5.0)
            for c in (0, 1)
        ]

    def node(self, index: int) -> Any:
        """Return what plays one node."""
        import threading

        said = {
            "num-examples": 8, "batch-size": 2, "patches": 6, "width": 3, "prefix": 0,
            "state-round": 0,
        }  # fmt: skip

        def answer(method: str, arguments: Mapping[str, Any]) -> Any:
            from flwr_splitmix.links.link import Outcome

            self.asked.append(arguments)
            if arguments["plan"] is None:
                return Outcome({})
            (share,) = arguments["plan"]
            kept = share["stop"] - share["start"]
            sent = torch.full((2, kept, 3), float(index + 1), dtype=torch.float64)
            self.sent.append(sent)
            return Outcome({"smashed": [sent], "labels": torch.tensor([index, index])})

        session = Session(self.tickets[index], 100 + index, said, answer)
        thread = threading.Thread(target=session.run, daemon=True)
        thread.start()
        return thread


def attached(channel: MixerChannel) -> None:
    from tests.waiting import wait_for

    wait_for("the nodes", lambda: not channel.ask("attach", {"gone": {}})["waiting"], 10)


def test_a_server_that_breaks_the_order_or_sends_other_gradients_gets_nothing(
    mixer: MixerServer, channel: MixerChannel
) -> None:
    uploads = Uploads(mixer, channel)
    threads = [uploads.node(index) for index in (0, 1)]
    attached(channel)
    assert channel.ask("begin")["groups"] == 1
    first = {"number": 0, "progress": 0.0, "gradients": {}}
    gradient = torch.zeros(2, 6, 3, dtype=torch.float64)
    for wrong, said in [
        ({**first, "number": 1}, "the next step is number 0"),
        ({**first, "progress": "now"}, "progress is no number"),
        ({**first, "progress": float("nan")}, "progress is no number"),
        ({**first, "gradients": None}, "must say its gradients"),
        ({**first, "gradients": {"0": gradient}}, "no mixture that these gradients are of"),
    ]:
        with pytest.raises(LinkError, match=said):
            channel.ask("step", wrong)
    mixtures = channel.ask("step", first)["mixtures"]
    assert mixtures.keys() == {"0"}
    assert set(mixtures["0"]["smashed"].unique().tolist()) == {1.0, 2.0}
    second = {"number": 1, "progress": 0.5, "gradients": {"0": gradient}}
    with pytest.raises(LinkError, match="no mixture that these gradients are of"):
        channel.ask("step", {**second, "gradients": {"1": gradient}})
    # What is refused is over: the step's gradients were the server's to send.
    assert channel.ask("step", {**second, "gradients": {}})["mixtures"].keys() == {"0"}
    for odd in (gradient[:1], gradient.float(), "gradient"):
        with pytest.raises(LinkError, match="no mixture that|not the shape and dtype of its"):
            channel.ask("step", {**second, "number": 2, "gradients": {"0": odd}})
    channel.ask("finish", {"number": 2, "progress": 1.0, "gradients": {}})
    with pytest.raises(LinkError, match="does not answer 'step' now, but close"):
        channel.ask("step", second)
    channel.ask("close")
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_node_that_dials_twice_has_one_place(mixer: MixerServer, channel: MixerChannel) -> None:
    uploads = Uploads(mixer, channel)
    uploads.node(0), uploads.node(1)
    attached(channel)
    again = peers.Raw(uploads.tickets[0], 100)
    error = again.refusal()
    assert error.code() == grpc.StatusCode.ALREADY_EXISTS
    assert "another connection with this token stands" in str(error.details())
    other = peers.Raw(uploads.tickets[0], 101)
    assert other.refusal().code() == grpc.StatusCode.PERMISSION_DENIED
    assert channel.ask("begin")["failures"] == {}
    step = {"number": 0, "progress": 0.0, "gradients": {}}
    assert channel.ask("step", step)["mixtures"].keys() == {"0"}
    again.close(), other.close()


def test_a_group_that_lost_a_member_sends_nothing(
    mixer: MixerServer, channel: MixerChannel
) -> None:
    """The one who is left would be the mixture."""
    uploads = Uploads(mixer, channel)
    uploads.node(0)
    silent = peers.Raw(uploads.tickets[1], 101)
    said = {
        "num-examples": 8, "batch-size": 2, "patches": 6, "width": 3, "prefix": 0, "state-round": 0
    }  # fmt: skip
    silent.say(encode(Frame("hello", 0, payload=said)))
    attached(channel)
    assert channel.ask("begin")["groups"] == 1
    silent.close()
    reply = channel.ask("step", {"number": 0, "progress": 0.0, "gradients": {}})
    assert reply["mixtures"] == {}
    assert reply["failures"].keys() == {"1"}
    assert len(uploads.sent) == 1


@pytest.mark.parametrize(
    "bytes_sent",
    [b"", b"no frame", encode(Frame("hello", 1)), encode(Frame("call", 7, "open")), b"\x80\x04K."],
)
def test_bytes_that_are_no_call_are_answered_with_a_sentence(
    mixer: MixerServer, bytes_sent: bytes
) -> None:
    channel = grpc.insecure_channel(mixer.address)
    shown = ((TOKEN_KEY, TOKEN), (PROTOCOL_KEY, str(PROTOCOL)))
    stream = channel.stream_stream(METHOD)(iter([bytes_sent]), metadata=shown, timeout=10)
    from flwr_splitmix.links.frames.codec import decode

    frame = decode(next(stream))
    assert frame.kind == "error"
    assert frame.text
    channel.close()


def test_a_servers_token_admits_to_no_line_and_a_nodes_token_to_no_mixtures(
    mixer: MixerServer, channel: MixerChannel
) -> None:
    token = channel.open(OPENING)["tokens"]["0"]
    with pytest.raises(LinkError, match="turns this run away"):
        MixerChannel(Dialled(mixer.address, tls=False, token=token), 2.0).open(OPENING)
    ticket = Ticket(0, 7, 1, 9, address=mixer.address, tls=False, token=TOKEN)
    raw = peers.Raw(ticket, 100)
    assert raw.refusal().code() == grpc.StatusCode.UNAUTHENTICATED
    raw.close()
    assert NODE_KEY != TOKEN_KEY


def test_a_round_whose_server_is_gone_lets_its_nodes_go(
    mixer: MixerServer, channel: MixerChannel
) -> None:
    uploads = Uploads(mixer, channel)
    raw = peers.Raw(uploads.tickets[0], 100)
    raw.hello()
    channel.close()
    frame = raw.hear()
    assert (frame.kind, frame.text) == ("leave", "the ServerApp has ended the round")
    raw.close()


def test_a_mixer_that_answers_nonsense_is_named(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flwr_splitmix.server.mixing.steps import MixedSteps

    take = MixedSteps.take

    def bare(self: MixedSteps, arguments: Mapping[str, Any]) -> Any:
        return {group: {"smashed": 1} for group in take(self, arguments)}

    monkeypatch.setattr(MixedSteps, "take", bare)
    strategy = make("CutMixSL", link_to(start_mixer(), reattach_timeout=1.0))
    grid = grid_of(tmp_path)
    with pytest.raises(LinkError, match="the mixer sent a mixture without numbers or labels"):
        start(strategy, grid, 1)
    grid.wait()
    assert not issubclass(LinkError, RoundLostError)


def test_a_secret_that_others_can_read_or_guess_is_no_secret(
    start_mixer: Start, tmp_path: Path
) -> None:
    open_to_all = secret(tmp_path / "open", TOKEN)
    open_to_all.chmod(0o644)
    for options, said in [
        ({"token_file": open_to_all}, r"--token-file: others on this machine may read"),
        ({"token_file": secret(tmp_path / "short", "abc")}, "holds 3 characters; a token has"),
        ({"token_file": secret(tmp_path / "two", "a b")}, "must hold one word on one line"),
        ({"token_file": tmp_path / "none"}, "cannot read"),
        ({"seed_file": secret(tmp_path / "small", "7")}, "--seed-file: .* 2\\*\\*48"),
        ({"seed_file": secret(tmp_path / "words", "seventy")}, "--seed-file: .* one whole number"),
        ({"listen": "0.0.0.0:0", "certificate": None, "key": None}, "without TLS: give it --ssl"),
        ({"listen": "127.0.0.1"}, "--listen is '127.0.0.1'; it must be host:port"),
    ]:
        with pytest.raises(LinkError, match=said):
            start_mixer(**options)
