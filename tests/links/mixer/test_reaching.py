"""Who reaches a mixer: tokens, certificates and TLS; and which mixers do not start."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from flwr_splitmix.links import LinkError, MixerLink
from flwr_splitmix.links.mixer.channel import MixerAddress, MixerChannel
from flwr_splitmix.links.mixer.handshake import asks_for_certificate
from flwr_splitmix.links.mixer.protocol import METHOD, PROTOCOL_KEY, TOKEN_KEY
from flwr_splitmix.mixer_process.process import MixerServer
from flwr_splitmix.sandbox.certificates import Certificates, make_certificates
from flwr_splitmix.sandbox.superlink import free_port
from tests.links.mixer.nodes import OPENING
from tests.links.mixer.third_party import TOKEN, secret

Start = Callable[..., MixerServer]


@pytest.mark.parametrize("token", ["", TOKEN[:-1], TOKEN + "0", "f" * 48])
def test_who_has_not_the_token_is_turned_away(plain: MixerServer, token: str) -> None:
    channel = MixerChannel(MixerAddress(plain.address, tls=False, token=token), 5.0)
    with pytest.raises(LinkError, match=r"turns this run away: this is not the mixer's token"):
        channel.open(OPENING)


def test_strangers_do_not_flood_the_log(
    plain: MixerServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "flwr.splitmix"):
        for _ in range(9):
            with pytest.raises(LinkError, match="turns this run away"):
                MixerChannel(MixerAddress(plain.address, tls=False, token="f"), 5.0).open(OPENING)
    warnings = [
        message for message in caplog.messages if "it does not have the mixer's token" in message
    ]
    assert [message.rsplit(maxsplit=1)[-1] for message in warnings] == ["1)", "2)", "4)", "8)"]


def test_a_mixer_without_the_right_certificate_is_not_dialled(
    start_mixer: Start, files: Certificates
) -> None:
    mixer = start_mixer()
    for ca, signer in (
        (b"", "an authority that gRPC comes with"),
        (
            files.of_node(0)[0].read_bytes(),
            "the authority in ca= of MixerLink (in the apps ssl-ca-certfile)",
        ),
    ):
        channel = MixerChannel(MixerAddress(mixer.address, tls=True, ca=ca, token=TOKEN), 1.0)
        with pytest.raises(LinkError, match="could not be reached within 1 s") as raised:
            channel.open(OPENING)
        assert f"a certificate of that name, signed by {signer}?" in str(raised.value)


def test_a_mixer_that_asks_for_a_certificate_says_so_at_once(
    start_mixer: Start, files: Certificates
) -> None:
    """It just hangs up, so that a run without one might wait as for a mixer that is not there."""
    mixer, ca = start_mixer(client_ca=files.ca), files.ca.read_bytes()
    channel = MixerChannel(MixerAddress(mixer.address, True, ca, None, TOKEN), 60.0)
    began = time.monotonic()
    with pytest.raises(
        LinkError,
        match=r"asks for a certificate \(--link-client-ca\), and this run shows none; give "
        r"certificate= and key= to MixerLink \(in the apps ssl-certfile and ssl-keyfile\)",
    ):
        channel.open(OPENING)
    assert time.monotonic() - began < 30


def test_a_certificate_of_another_authority_may_be_why(
    start_mixer: Start, files: Certificates, tmp_path: Path
) -> None:
    mixer, ca = start_mixer(client_ca=files.ca), files.ca.read_bytes()
    certificate, key = make_certificates(tmp_path / "other", nodes=1).of_node(0)
    pair = certificate.read_bytes(), key.read_bytes()
    with pytest.raises(LinkError, match=r"authority in --link-client-ca must have signed the"):
        MixerChannel(MixerAddress(mixer.address, True, ca, pair, TOKEN), 1.0).open(OPENING)


def test_other_servers_ask_for_no_certificate(start_mixer: Start, plain: MixerServer) -> None:
    assert not asks_for_certificate(start_mixer().address)
    assert not asks_for_certificate(plain.address)
    assert not asks_for_certificate(f"127.0.0.1:{free_port()}")


def test_a_mixer_with_tls_is_not_dialled_without(
    start_mixer: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """The log states the reason for a wait at once, and only once."""
    channel = MixerChannel(MixerAddress(start_mixer().address, tls=False, token=TOKEN), 1.2)
    with (
        caplog.at_level(logging.WARNING, "flwr.splitmix"),
        pytest.raises(LinkError, match=r"without TLS \(MixerLink has no ca=, the app no ssl-"),
    ):
        channel.open(OPENING)
    (warning,) = [
        message for message in caplog.messages if "(link-via) cannot be reached: " in message
    ]
    assert "; trying again for " in warning


def test_another_version_is_named(plain: MixerServer) -> None:
    shown = ((TOKEN_KEY, TOKEN), (PROTOCOL_KEY, "99"))
    with grpc.insecure_channel(plain.address) as channel:
        stream = channel.stream_stream(METHOD)(iter([b""]), metadata=shown, timeout=60)
        with pytest.raises(grpc.RpcError) as refused:
            next(stream)
    assert "install the same flwr-splitmix on both" in str(refused.value)


@pytest.mark.parametrize(
    ("option", "text", "mode", "message"),
    [
        ("token_file", TOKEN, 0o644, "--token-file: others on this machine may read"),
        ("token_file", "abc", 0o600, "holds 3 characters; a token has at least 32"),
        ("token_file", "a b", 0o600, "must hold one word on one line"),
        ("seed_file", "7", 0o600, r"--seed-file: .* one whole number of 2\*\*48"),
        ("seed_file", str(2**48 - 1), 0o600, r"--seed-file: .* one whole number"),
        ("seed_file", str(2**63), 0o600, r"--seed-file: .* one whole number"),
        ("seed_file", "seventy", 0o600, r"--seed-file: .* one whole number"),
        ("seed_file", str(2**62), 0o640, "--seed-file: others on this machine may read"),
    ],
)
def test_a_secret_that_others_can_read_or_guess_is_none(
    option: str, text: str, mode: int, message: str, start_mixer: Start, tmp_path: Path
) -> None:
    file = secret(tmp_path / "secret", text)
    file.chmod(mode)
    with pytest.raises(LinkError, match=message):
        start_mixer(**{option: file})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"listen": "0.0.0.0:0", "certificate": None, "key": None}, "without TLS: give it --ssl-"),
        ({"listen": "127.0.0.1"}, "--listen is '127.0.0.1'; it must be host:port"),
    ],
)
def test_a_mixer_that_cannot_be_does_not_start(
    options: dict[str, Any], message: str, start_mixer: Start
) -> None:
    with pytest.raises(LinkError, match=message):
        start_mixer(**options)


@pytest.mark.parametrize(
    ("via", "options", "transport"),
    [
        ("127.0.0.1:9444", {}, "in plaintext"),
        ("mixer.example:9444", {}, "with TLS"),
        ("mixer.example:9444", {"insecure": True}, "in plaintext"),
    ],
)
def test_a_mixer_elsewhere_is_dialled_in_plaintext_only_if_it_is_told_so(
    via: str,
    options: dict[str, Any],
    transport: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    link = MixerLink(via, secret(tmp_path / "token", TOKEN), **options)
    link.request(OPENING["mixing"], None)
    with caplog.at_level(logging.INFO, "flwr.splitmix"):
        link.open(None)
    assert f"nodes dial {via}, {transport}, " in caplog.messages[-1]


def test_a_mixer_may_do_without_tls_anywhere_if_it_is_told_so(start_mixer: Start) -> None:
    mixer = start_mixer(listen="0.0.0.0:0", certificate=None, key=None, insecure=True)
    assert not mixer.address.endswith(":0")
