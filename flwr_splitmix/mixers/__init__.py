"""What happens to smashed data between the clients and the upper segment: one file a mixer."""

from flwr_splitmix.mixers.masks import patch_order, sample_counts
from flwr_splitmix.mixers.mixer import (
    EmptyMixtureError,
    Group,
    Member,
    Mixed,
    Mixer,
    Plan,
    SmashedShape,
    Source,
    Upload,
)
from flwr_splitmix.mixers.none import NoMixing
from flwr_splitmix.mixers.patch_cutmix import PatchCutMix
from flwr_splitmix.mixers.share import (
    SHARES,
    FullShare,
    MaskShare,
    PatchShare,
    Share,
    share_from_wire,
)

__all__ = [
    "SHARES",
    "EmptyMixtureError",
    "FullShare",
    "Group",
    "MaskShare",
    "Member",
    "Mixed",
    "Mixer",
    "NoMixing",
    "PatchCutMix",
    "PatchShare",
    "Plan",
    "Share",
    "SmashedShape",
    "Source",
    "Upload",
    "patch_order",
    "sample_counts",
    "share_from_wire",
]
