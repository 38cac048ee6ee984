"""Check of the link's keys by themselves: no file is read, as the ServerApp may run elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flwr_splitmix.links import LinkError
from flwr_splitmix.links.stream.endpoint import split_address

if TYPE_CHECKING:
    from flwr_splitmix.apps.run_config import AppConfig


def check_link_keys(config: AppConfig) -> None:
    """Raise ValueError for addresses of a wrong form, and for half of a certificate's pair."""
    try:
        _, port = split_address(config.link_address, "link-address")
        if config.link_advertise:
            split_address(config.link_advertise, "link-advertise")
    except LinkError as error:
        raise ValueError(str(error)) from None
    if port is None:
        raise ValueError(
            f"link-address is {config.link_address!r}; it must be host:port, e.g. 0.0.0.0:9443"
        )
    pair = {"ssl-certfile": config.ssl_certfile, "ssl-keyfile": config.ssl_keyfile}
    missing = [key for key, path in pair.items() if not path]
    if len(missing) == 1:
        (given,) = pair.keys() - missing
        raise ValueError(
            f"{given} is {pair[given]!r}, but {missing[0]} is ''; a certificate and its key go "
            "together: set both, or neither"
        )
