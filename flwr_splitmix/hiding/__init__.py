"""Hiding methods of the U shape, one file or folder each, with client and server half."""

from flwr_splitmix.hiding.dp_forward import DPForward
from flwr_splitmix.hiding.dp_sgd import DPSGD
from flwr_splitmix.hiding.exchanged import ClientSide, SentBatch
from flwr_splitmix.hiding.hiding import Hiding
from flwr_splitmix.hiding.mixguard import MixGuard, MixGuardOptions
from flwr_splitmix.hiding.naive_mix import NaiveMix
from flwr_splitmix.hiding.no_peek import NoPeek
from flwr_splitmix.hiding.snd import SnD

HIDINGS: tuple[type[Hiding], ...] = (DPForward, DPSGD, MixGuard, NaiveMix, NoPeek, SnD)
"""The methods that hide, or keep an epsilon of, a U-shaped client's data."""

__all__ = [
    "DPSGD",
    "HIDINGS",
    "ClientSide",
    "DPForward",
    "Hiding",
    "MixGuard",
    "MixGuardOptions",
    "NaiveMix",
    "NoPeek",
    "SentBatch",
    "SnD",
]
