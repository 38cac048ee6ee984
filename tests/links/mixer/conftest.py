"""Fixtures: mixers in this process, with real gRPC, TLS and tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.links import MixerLink
from flwr_splitmix.links.mixer.channel import MixerAddress, MixerChannel
from flwr_splitmix.mixer_process.process import MixerServer
from flwr_splitmix.sandbox.certificates import Certificates, make_certificates
from tests.links.mixer.third_party import SEED, SERVER_APP, TOKEN, secret
from tests.links.stream.peers import no_threads_left


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("mixer-certificates")
    return make_certificates(folder, nodes=4, others=[SERVER_APP])


@pytest.fixture
def start_mixer(files: Certificates, tmp_path: Path) -> Iterator[Callable[..., MixerServer]]:
    """Start mixers with TLS, the token and the seed; check that they leave no threads behind."""
    started: list[MixerServer] = []

    def start(**options: Any) -> MixerServer:
        usual = {
            "listen": "127.0.0.1:0",
            "token_file": secret(tmp_path / "token", TOKEN),
            "seed_file": secret(tmp_path / "seed", str(SEED)),
            "certificate": files.certificate,
            "key": files.key,
        }
        started.append(MixerServer(**{**usual, **options}))
        return started[-1]

    yield start
    for server in started:
        server.stop()
    no_threads_left()


@pytest.fixture
def link_to(files: Certificates, tmp_path: Path) -> Callable[..., MixerLink]:
    """Make links to mixers, with the right token and certificate authority."""

    def link(mixer: MixerServer, **options: Any) -> MixerLink:
        token = secret(tmp_path / "token", TOKEN)
        return MixerLink(mixer.address, token, **{"ca": files.ca, **options})

    return link


@pytest.fixture
def plain(start_mixer: Callable[..., MixerServer]) -> MixerServer:
    """Return a mixer in plaintext on the loopback, for tests of messages and not of encryption."""
    return start_mixer(certificate=None, key=None)


@pytest.fixture
def channel(plain: MixerServer) -> Iterator[MixerChannel]:
    """Return a ServerApp's stream to the plaintext mixer, with the right token."""
    channel = MixerChannel(MixerAddress(plain.address, tls=False, token=TOKEN), 5.0)
    yield channel
    channel.close()
