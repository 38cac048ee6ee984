"""The data plane: how a strategy calls its clients within a round."""

from flwr_splitmix.links.link import Clients, Link, LinkError
from flwr_splitmix.links.local import LocalLink
from flwr_splitmix.links.ray import RayLink

__all__ = ["Clients", "Link", "LinkError", "LocalLink", "RayLink"]
