"""What hides a U-shaped client's texts: one file or folder a method, client and server in one."""

from flwr_splitmix.hiding.hiding import ClientSide, Hiding, Sent
from flwr_splitmix.hiding.mixguard import MixGuard, MixGuardOptions
from flwr_splitmix.hiding.naive_mix import NaiveMix

__all__ = ["ClientSide", "Hiding", "MixGuard", "MixGuardOptions", "NaiveMix", "Sent"]
