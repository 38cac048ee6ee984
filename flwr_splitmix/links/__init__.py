"""The data plane: how a strategy calls its clients within a round."""

from flwr_splitmix.links.auto import AutoLink
from flwr_splitmix.links.link import Clients, Link, LinkError, RoundLostError
from flwr_splitmix.links.local import LocalLink
from flwr_splitmix.links.mixer.link import MixerLink
from flwr_splitmix.links.ray.link import RayLink
from flwr_splitmix.links.stream.link import StreamLink

__all__ = [
    "AutoLink",
    "Clients",
    "Link",
    "LinkError",
    "LocalLink",
    "MixerLink",
    "RayLink",
    "RoundLostError",
    "StreamLink",
]
