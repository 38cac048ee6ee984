"""The mixer's process: serves nodes and ServerApps at one address until it is stopped."""

from __future__ import annotations

import logging
from pathlib import Path

from flwr_splitmix.links.link import LinkError
from flwr_splitmix.links.mixer.protocol import read_secret, read_token
from flwr_splitmix.links.mixer.service import MixerService
from flwr_splitmix.links.stream.endpoint import Endpoint, join_address
from flwr_splitmix.links.stream.server import StreamServer, StreamService
from flwr_splitmix.links.stream.tls import OptionNames
from flwr_splitmix.links.stream.token import TokenMint
from flwr_splitmix.mixer_process.ledgers import RunLedgers
from flwr_splitmix.mixer_process.room import MixingRoom
from flwr_splitmix.mixer_process.rules import MixerRules

log = logging.getLogger("flwr.splitmix")

TOKEN_SECONDS = 86_400.0
"""Time for which a node's token is valid for attaching; no round may take longer."""

FLAGS = OptionNames(
    endpoint="the mixer",
    address="--listen",
    example="0.0.0.0:9444",
    certificate="--ssl-certfile",
    key="--ssl-keyfile",
    ca="",  # the runs send it to the nodes
    client_ca="--link-client-ca",
    pair=("--ssl-certfile", "--ssl-keyfile"),
    both="it --ssl-certfile and --ssl-keyfile",
    insecure="--insecure",
)
"""The options of `splitmix mixer`."""

MIN_SEED = 2**48
"""Smaller seeds could be found by trying them all."""


def read_seed(path: Path | None) -> int | None:
    """Return the secret seed for groups, ratios and masks.

    Parameters
    ----------
    path
        A file that holds one whole number; None returns None: each round gets its own seed.

    Raises
    ------
    LinkError
        If the file cannot be read, is readable by others, or holds no number that is hard to guess.
    """
    if path is None:
        return None
    text = read_secret(path, "--seed-file")
    digits = text.isascii() and text.isdigit() and len(text) < 40  # int() refuses 5,000 of them
    if not (digits and MIN_SEED <= int(text) < 2**63):
        raise LinkError(
            f"--seed-file: {path} must hold one whole number of 2**48 to 2**63 - 1, drawn at "
            "random: anyone who guesses it knows every mask"
        )
    return int(text)


class MixerServer:
    """A mixer that serves requests in threads of this process.

    Parameters
    ----------
    listen
        "host:port" to listen on; port 0 picks a free one.
    token_file
        File with the token that ServerApps must present.
    seed_file
        See `read_seed`.
    certificate, key, client_ca, insecure
        See `Endpoint`; with `client_ca`, ServerApps must present a certificate too.
    least_members, least_patches, most_ratio
        See `MixerRules`.

    Raises
    ------
    LinkError
        If an address, a file or a certificate is invalid, or the port is in use.
    """

    def __init__(
        self,
        listen: str,
        token_file: Path,
        seed_file: Path | None = None,
        *,
        certificate: Path | None = None,
        key: Path | None = None,
        client_ca: Path | None = None,
        insecure: bool = False,
        least_members: int = 2,
        least_patches: int = 1,
        most_ratio: float = 0.95,
    ) -> None:
        endpoint = Endpoint(
            listen,
            certificate=certificate,
            key=key,
            client_ca=None if client_ca is None else Path(client_ca),  # "" must not mean none
            insecure=insecure,
            names=FLAGS,
        )
        rules = MixerRules(read_seed(seed_file), least_members, least_patches, most_ratio)
        mint = TokenMint(TOKEN_SECONDS)
        nodes = StreamService(mint, endpoint.names_nodes)
        ledgers = RunLedgers()
        servers = MixerService(
            read_token(token_file, "--token-file"),
            lambda: MixingRoom(rules, ledgers, nodes, mint),
            names_nodes=endpoint.names_nodes,
        )
        self._server: StreamServer | None = None
        try:
            server = StreamServer(nodes, endpoint.address, endpoint.credentials(), servers)
        except OSError as error:
            raise LinkError(f"--listen: the mixer {error}") from None
        self._server = server
        self.address = join_address(endpoint.host, server.port)
        tls = "with TLS" if endpoint.tls else "in plaintext"
        log.info("the mixer listens on %s, %s", self.address, tls)

    def stop(self) -> None:
        """Close all connections and end all threads."""
        if self._server is not None:
            self._server.stop(grace=1.0)
            self._server = None
