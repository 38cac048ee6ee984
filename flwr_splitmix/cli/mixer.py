"""`splitmix mixer`: the mixer as a process that a third party runs, not the server."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from flwr_splitmix.runs import RunError


def mixer(
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Address to listen on. Runs name it in link-via, with the host name of the "
            "certificate. Port 0 picks a free port.",
        ),
    ],
    token_file: Annotated[
        Path,
        typer.Option(
            envvar="SPLITMIX_MIXER_TOKEN_FILE",
            help="The token that a ServerApp must show (link-via-token there): a file of 32 or "
            "more characters that only you may read. (umask 077; openssl rand -hex 32 > FILE)",
        ),
    ],
    seed_file: Annotated[
        Path | None,
        typer.Option(
            envvar="SPLITMIX_MIXER_SEED_FILE",
            help="The secret seed of groups, ratios and masks: a file with a whole number of "
            "2^48 to 2^63 - 1. Only for runs that are to repeat: a server can then rehearse a "
            "round with nodes of its own. Without it each round has a seed that is unknown to all.",
        ),
    ] = None,
    ssl_certfile: Annotated[
        Path | None, typer.Option(help="PEM file of the mixer's certificate (its chain).")
    ] = None,
    ssl_keyfile: Annotated[Path | None, typer.Option(help="PEM file of its private key.")] = None,
    link_client_ca: Annotated[
        Path | None,
        typer.Option(
            help="PEM file of an authority: nodes must then show a certificate that names them, "
            "node-0, node-1, ..., and ServerApps one of their own. Then a server cannot pretend "
            "to be a node."
        ),
    ] = None,
    least_members: Annotated[
        int, typer.Option(min=2, help="Make no mixture of fewer clients than these.")
    ] = 2,
    least_patches: Annotated[
        int,
        typer.Option(
            min=1,
            help="Refuse runs of CutMixSL whose min-patches is lower than this. With 1 and a small "
            "alpha, one client of a group may contribute all patches but one.",
        ),
    ] = 1,
    most_ratio: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Make no mixture of which one client's mixing ratio is larger: with a small alpha "
            "it would be that client's upload, or nearly. At least 1/k of the runs to be mixed.",
        ),
    ] = 0.95,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Accept connections from other machines without TLS.")
    ] = False,
) -> None:
    """Mix as a third party: nodes upload here, and the server gets mixtures alone.

    For a party that is to be trusted with single uploads, in place of the server. It stays up
    between runs, keeps nothing on disk, and ends with Ctrl-C or SIGTERM; a round in progress is
    lost then, and the run continues with the next. A run uses it by its keys link-via and
    link-via-token: docs/deployment.md, "The mixer as a third party".
    """
    import torch

    from flwr_splitmix.links.link import LinkError
    from flwr_splitmix.mixer_process.process import MixerServer

    # Uploads are put side by side: more threads would only wait for each other.
    torch.set_num_threads(1)
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    try:
        server = MixerServer(
            listen,
            token_file,
            seed_file,
            certificate=ssl_certfile,
            key=ssl_keyfile,
            client_ca=link_client_ca,
            insecure=insecure,
            least_members=least_members,
            least_patches=least_patches,
            most_ratio=most_ratio,
        )
    except LinkError as error:
        raise RunError(str(error)) from error
    typer.echo(f"mixer: nodes and ServerApps dial {server.address}")
    if sys.stdout is not None:  # it is closed from the beginning, as by >&-
        sys.stdout.flush()
    over.wait()
    server.stop()
