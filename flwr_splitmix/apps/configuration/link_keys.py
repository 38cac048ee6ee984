"""Check of the link's keys by themselves: no file is read, as the ServerApp may run elsewhere."""

from __future__ import annotations

from flwr_splitmix.links import LinkError
from flwr_splitmix.links.stream.endpoint import split_address


def check_link_keys(address: str, advertised: str, *, certificate: str, key: str) -> None:
    """Raise ValueError for addresses of a wrong form, and for half of a certificate's pair.

    Parameters
    ----------
    address, advertised
        Values of link-address and link-advertise; the latter may be "".
    certificate, key
        Values of ssl-certfile and ssl-keyfile: "" if not set.
    """
    try:
        _, port = split_address(address, "link-address")
        if advertised:
            split_address(advertised, "link-advertise")
    except LinkError as error:
        raise ValueError(str(error)) from None
    if port is None:
        raise ValueError(f"link-address is {address!r}; it must be host:port, e.g. 0.0.0.0:9443")
    pair = {"ssl-certfile": certificate, "ssl-keyfile": key}
    missing = [name for name, path in pair.items() if not path]
    if len(missing) == 1:
        (present,) = pair.keys() - missing
        raise ValueError(
            f"{present} is {pair[present]!r}, but {missing[0]} is ''; a certificate and its key go "
            "together: set both, or neither"
        )
