"""Columns of the matrix: attacks, each with its adversary and its assumptions."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from flwr_splitmix.experiments.privacy.kinds import AnyColumn

if TYPE_CHECKING:
    from flwr_splitmix.attacks.base import Attack


@dataclass(frozen=True)
class Column(AnyColumn):
    """An attack by one adversary.

    Parameters
    ----------
    attack, adversary
        Names of attack and adversary.
    module, kind
        Module of the attack's class, below `flwr_splitmix.attacks.images`, and the class's name.
    setting
        Settings of the attack that are not tuned.
    variant
        Name of the setting, or of what the adversary has, if an attack has several columns.
    assume
        Segments that the adversary is given in addition: the lower segment, as in the papers.
    trained, held_out
        Whether training images, and held-out images, are attacked.
    collects
        Whether the attacker has many releases of every image.
    public
        Fraction of the public images that the attacker has.
    averaged_gradients
        Whether the gradients of all clients are averaged before they are sent to the adversary,
        who is one of the clients: the worst case of DP-CutMixSL, section 6.
    """

    module: str
    kind: str
    setting: tuple[tuple[str, str], ...] = ()
    variant: str = ""
    assume: tuple[Literal["lower", "upper"], ...] = ("lower",)
    trained: bool = True
    held_out: bool = True
    collects: bool = False
    public: float = 1.0
    averaged_gradients: bool = False

    def attack_class(self) -> type[Attack]:
        """Import and return the attack's class."""
        kind = getattr(import_module(f"flwr_splitmix.attacks.images.{self.module}"), self.kind)
        assert isinstance(kind, type)
        return kind


# The most expensive attacks have half of the public images, the same half for every row.
COLUMNS: tuple[Column, ...] = (
    Column("decoder", "server", "decoder", "Decoder"),
    Column("decoder", "upper only", "decoder", "Decoder"),
    Column(
        "decoder-transformer", "server", "decoder_transformer", "DecoderTransformer", public=0.5
    ),
    Column(
        "decoder-transformer", "upper only", "decoder_transformer", "DecoderTransformer", public=0.5
    ),
    Column("linear", "server", "linear", "Linear"),
    Column("linear-decoder", "server", "linear_decoder", "LinearDecoder"),
    Column("match", "server", "match", "Match"),
    Column("reorder", "upper only", "reorder", "Reorder"),
    Column("jigsaw", "upper only", "jigsaw", "Jigsaw"),
    Column("unshuffle", "server", "unshuffle", "Unshuffle"),
    Column("collect", "server", "collect", "Collect", trained=False, collects=True, public=0.5),
    Column("separate", "upper only", "separate", "Separate", public=0.5),
    Column(
        "separate",
        "upper only",
        "separate",
        "Separate",
        variant="first weights",
        assume=(),
        public=0.5,
    ),
    Column("attribute", "upper only", "attribute", "Attribute"),
    Column("attribute", "upper only", "attribute", "Attribute", variant="first weights", assume=()),
    Column("simulate", "server", "simulate", "Simulate", assume=(), public=0.5),
    Column(
        "labels-gradient",
        "member of the group",
        "labels_gradient",
        "LabelsGradient",
        (("leak", "norm"),),
        "norm",
        assume=(),
    ),
    Column(
        "labels-gradient",
        "member of the group",
        "labels_gradient",
        "LabelsGradient",
        (("leak", "cosine"),),
        "cosine",
        assume=(),
    ),
    Column(
        "labels-cluster",
        "member of the group",
        "labels_cluster",
        "LabelsCluster",
        (("way", "spectral"),),
        assume=(),
    ),
    Column("labels-peer", "member of the group", "labels_peer", "LabelsPeer", assume=()),
    Column("membership", "upper only", "membership", "Membership"),
)
"""All columns, in the order in which they are shown."""
