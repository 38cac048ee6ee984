"""Nodes at a mixer that dial twice, are others, leave, or are left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import grpc
import pytest

from flwr_splitmix.links import LinkError
from flwr_splitmix.links.frames.codec import Frame, encode
from flwr_splitmix.links.mixer.channel import MixerAddress, MixerChannel
from flwr_splitmix.links.stream.session import ClientIdentity, Session
from flwr_splitmix.links.ticket import Ticket
from flwr_splitmix.mixer_process.process import MixerServer
from flwr_splitmix.mixers import PatchCutMix
from flwr_splitmix.mixers.described import describe
from flwr_splitmix.sandbox.certificates import Certificates
from tests.links.mixer.nodes import DESCRIPTION, FIRST, OPENING, Nodes, wait_until_attached
from tests.links.mixer.third_party import SERVER_APP, TOKEN
from tests.links.stream import peers
from tests.waiting import wait_for


def test_a_node_that_dials_twice_has_one_place(plain: MixerServer, channel: MixerChannel) -> None:
    nodes = Nodes(plain, channel)
    for index in (0, 1):
        nodes.start(index)
    wait_until_attached(channel)
    again, other = peers.Raw(nodes.tickets[0], 100), peers.Raw(nodes.tickets[0], 101)
    error = again.refusal()
    assert error.code() == grpc.StatusCode.ALREADY_EXISTS
    assert "another connection with this token stands" in str(error.details())
    assert other.refusal().code() == grpc.StatusCode.PERMISSION_DENIED
    assert channel.ask("begin")["failures"] == {}
    assert channel.ask("step", FIRST)["mixtures"].keys() == {"0"}
    assert len(nodes.sent) == 2
    again.close()
    other.close()


def test_a_group_that_lost_a_member_sends_nothing(
    plain: MixerServer, channel: MixerChannel
) -> None:
    """The mixture would be the upload of the only member left."""
    nodes = Nodes(plain, channel)
    nodes.start(0)
    leaving = peers.Raw(nodes.tickets[1], 101)
    leaving.say(encode(Frame("hello", 0, payload=DESCRIPTION)))
    wait_until_attached(channel)
    assert channel.ask("begin")["groups"] == 1
    leaving.close()
    reply = channel.ask("step", FIRST)
    assert reply["mixtures"] == {}
    assert reply["failures"] == {"1": "was cut off and not back within 1 s"}
    assert len(nodes.sent) == 1


def test_a_node_that_describes_itself_oddly_is_left_out(
    plain: MixerServer, channel: MixerChannel
) -> None:
    nodes = Nodes(plain, channel)
    nodes.start(0)
    odd = peers.Raw(nodes.tickets[1], 101)
    odd.say(encode(Frame("hello", 0, payload={**DESCRIPTION, "state-round": -1})))
    failures: dict[str, str] = {}

    def nobody_is_awaited() -> bool:
        reply = channel.ask("attach", {"gone": {}})
        failures.update(reply["failures"])
        return not reply["waiting"]

    wait_for("both nodes", nobody_is_awaited)
    assert failures == {"1": "says that its state-round is -1; it must be an integer of at least 0"}
    odd.close()


@pytest.mark.parametrize("gone", [None, "0", ["0"]])
def test_who_is_gone_is_named_in_a_dictionary(
    gone: object, plain: MixerServer, channel: MixerChannel
) -> None:
    channel.open(OPENING)
    assert channel.ask("attach", {"gone": gone}) == {"waiting": [0, 1], "failures": {}}


def test_an_option_that_the_nodes_sizes_do_not_allow_is_refused(
    plain: MixerServer, channel: MixerChannel
) -> None:
    nodes = Nodes(plain, channel, mixing=describe(PatchCutMix(min_patches=4)))
    for index in (0, 1):
        nodes.start(index)
    wait_until_attached(channel)
    with pytest.raises(LinkError, match=r"is 4, but a group.s 2 members share 6 patches"):
        channel.ask("begin")


def test_a_servers_token_admits_no_node_and_a_nodes_token_no_server(
    plain: MixerServer, channel: MixerChannel
) -> None:
    token = channel.open(OPENING)["tokens"]["0"]
    with pytest.raises(LinkError, match="turns this run away"):
        MixerChannel(MixerAddress(plain.address, tls=False, token=token), 2.0).open(OPENING)
    raw = peers.Raw(Ticket(0, 7, 1, 9, address=plain.address, tls=False, token=TOKEN), 100)
    assert raw.refusal().code() == grpc.StatusCode.UNAUTHENTICATED
    raw.close()


def test_a_token_admits_to_its_own_round_only(plain: MixerServer, channel: MixerChannel) -> None:
    """Not even to one of the same number: a server cannot open a round twice and join both."""
    nodes = Nodes(plain, channel)
    again = MixerChannel(MixerAddress(plain.address, tls=False, token=TOKEN), 5.0)
    assert again.open(OPENING)["tokens"]["0"] != nodes.tickets[0].token
    again.close()
    raw = peers.Raw(nodes.tickets[0], 100)
    raw.hello()
    channel.close()
    frame = raw.hear()
    assert (frame.kind, frame.text) == ("leave", "the ServerApp has ended the round")
    raw.close()
    late = peers.Raw(nodes.tickets[0], 100)
    assert late.refusal().code() == grpc.StatusCode.NOT_FOUND
    late.close()


def test_with_certificates_a_server_cannot_pretend_to_be_a_node(
    start_mixer: Callable[..., MixerServer], files: Certificates
) -> None:
    mixer = start_mixer(client_ca=files.ca)
    ca = files.ca.read_bytes()
    certificate, key = files.of_node(0)
    server_certificate, server_key = files.of_client(SERVER_APP)
    pair = server_certificate.read_bytes(), server_key.read_bytes()
    channel = MixerChannel(MixerAddress(mixer.address, True, ca, pair, TOKEN), 5.0)
    token = channel.open(OPENING)["tokens"]["1"]
    ticket = Ticket(1, 7, 1, 9, address=mixer.address, ca=ca.decode(), timeout=60.0)
    pretending = Session(
        replace(ticket, token=token),
        101,
        DESCRIPTION,
        peers.echo,
        ClientIdentity(certificate, key),
    )
    with pytest.raises(LinkError, match="shows a certificate of node-0, but it is client 1"):
        pretending.run()
    channel.close()


def test_a_server_app_with_the_certificate_of_a_node_is_turned_away(
    start_mixer: Callable[..., MixerServer], files: Certificates
) -> None:
    """Who has a node's key can pretend to be that node."""
    mixer = start_mixer(client_ca=files.ca)
    certificate, key = files.of_node(2)
    pair = certificate.read_bytes(), key.read_bytes()
    dialled = MixerAddress(mixer.address, True, files.ca.read_bytes(), pair, TOKEN)
    with pytest.raises(LinkError, match=r"the certificate of node-2 \(ssl-certfile\), with which"):
        MixerChannel(dialled, 5.0).open(OPENING)
