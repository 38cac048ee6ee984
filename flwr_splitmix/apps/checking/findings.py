"""Common parts of the apps' checks: devices, clients' data, and warnings about the links."""

from __future__ import annotations

import os
from collections.abc import Sequence

from flwr_splitmix.apps.checking.report import Report
from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.configuration.links import ray_link, stream_link
from flwr_splitmix.apps.configuration.run_config import AppConfig
from flwr_splitmix.device import pick_device
from flwr_splitmix.links import AutoLink, Link, LinkError, StreamLink
from flwr_splitmix.links.stream.endpoint import is_loopback, split_address
from flwr_splitmix.server.naming import name_clients
from flwr_splitmix.words import are, counted, gib, have, listed


def check_devices(**names: str) -> None:
    """Raise ConfigError for devices that are not on this machine.

    Parameters
    ----------
    names
        Name of the device by key (`_` for `-`).
    """
    keys: dict[str, list[str]] = {}
    for key, name in names.items():
        keys.setdefault(name, []).append(key.replace("_", "-"))
    for name, named in keys.items():
        try:
            pick_device(name)
        except ValueError as error:
            raise ConfigError(
                f"run-config: {listed(named)} {are(len(named))} {name!r}: {error}"
            ) from None


def check_enough(min_nodes: int, nodes: int) -> None:
    """Raise ConfigError if a federation has fewer SuperNodes than a run waits for.

    Parameters
    ----------
    min_nodes
        The key; 0 for as many as the strategy needs, which its own check knows.
    """
    if nodes < min_nodes:
        raise ConfigError(
            f"run-config: min-nodes is {min_nodes}, but the federation has "
            f"{counted(nodes, 'SuperNode')}; "
            f"it must be at most {nodes}, or 0 for as many as the strategy needs"
        )


def describe_clients(
    report: Report,
    sizes: Sequence[int],
    batch_size: int,
    rows: str,
    larger: str = "partition-alpha",
) -> list[int]:
    """Report how much data the clients have, and return the indices of those that have none.

    Parameters
    ----------
    sizes
        Number of training rows of each client.
    batch_size
        Rows per batch; clients with fewer rows get a remark.
    rows
        What the rows are called, such as "training rows".
    larger
        Keys whose larger values give clients without data some.
    """
    fewest, most = min(sizes), max(sizes)
    each = f"{fewest} {rows} each" if fewest == most else f"{fewest} to {most} {rows}"
    report.facts["clients"] = f"{len(sizes)}, with {each}"
    empty = [client for client, size in enumerate(sizes) if not size]
    if empty:
        remark_empty(
            report,
            empty,
            f"; a larger {larger}, or fewer SuperNodes, gives every client some",
        )
    few = [client for client, size in enumerate(sizes) if 0 < size < batch_size]
    if few:
        remark_replacement(report, few, batch_size)
    return empty


def remark_empty(report: Report, empty: Sequence[int], remedy: str = "") -> None:
    """Warn that clients `empty` have no data; `remedy` ends the sentence."""
    report.remarks.append(
        f"{name_clients(empty)} {have(len(empty))} no training data and will take no part{remedy}"
    )


def remark_replacement(
    report: Report, few: Sequence[int], batch_size: int, key: str = "batch-size"
) -> None:
    """Warn that clients `few` have less than a batch; `key` is the batch size's name."""
    report.remarks.append(
        f"{name_clients(few)} {have(len(few))} less than one batch of {key} {batch_size}: "
        "examples are drawn with replacement"
    )


def remark_warmup(config: AppConfig, report: Report) -> None:
    """Warn if the run ends before the learning rate has reached `lr`."""
    epochs = config.num_server_rounds * config.epochs_per_round
    if config.warmup_epochs > epochs:
        report.remarks.append(
            f"warmup-epochs is {config.warmup_epochs:g}, but the run counts "
            f"{counted(epochs, 'epoch')} (num-server-rounds times epochs-per-round), so its "
            f"learning rate never reaches lr {config.lr:g}"
        )


def check_link(config: AppConfig, report: Report) -> None:
    """Make the run's link; if it depends on the federation, warn where it cannot be made.

    A warning is logged if nodes may not trust its certificate.

    Raises
    ------
    LinkError
        If it is the same everywhere, or the run is known to be a simulation, and it cannot be made.
    """
    link: Link = config.make_link(None)
    if not isinstance(link, AutoLink):
        _warn_if_private(link)
        return
    if report.simulated:
        ray_link(config, None)
        return
    makers = {"in a simulation": ray_link, "on SuperNodes": stream_link}
    for where, make in makers.items():
        try:
            _warn_if_private(make(config, None))
        except LinkError as error:
            report.remarks.append(f"{where} the run would end with an error: {error}")


def _warn_if_private(link: Link) -> None:
    if isinstance(link, StreamLink):
        link.endpoint.warn_if_private()


def remark_plaintext(config: AppConfig, report: Report, via: str = "") -> None:
    """Warn that SuperNodes may refuse a link without TLS.

    Parameters
    ----------
    via
        The address of a third-party mixer, if nodes dial one.

    Raises
    ------
    LinkError
        If an address is malformed.
    """
    dialled = via or config.link_advertise or config.link_address
    host, _ = split_address(dialled, "link-via" if via else "link-address")
    plain = config.link_insecure and (bool(via) or not config.ssl_certfile)
    if plain and config.link != "ray" and not is_loopback(host):
        report.remarks.append(
            f"link-insecure is true: between SuperNodes and the {'mixer' if via else 'server'} "
            "uploads and tokens travel without TLS, for anyone on the way to read; nodes with a "
            "certificate of their own, and those with allow-insecure=false, refuse such a link"
        )


def remark_memory(report: Report, numbers: int, remedy: str) -> None:
    """Warn if a step's smashed data are larger than the memory of this machine.

    Parameters
    ----------
    numbers
        How many float32 numbers they have, those of all clients together.
    remedy
        The keys that make them smaller.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 4 * numbers > memory:
        report.remarks.append(
            f"a step's smashed data alone take {gib(4 * numbers)} at the server, and this machine "
            f"has {gib(memory)}; {remedy} needs less"
        )
