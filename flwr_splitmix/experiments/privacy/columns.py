"""Columns of the matrix: attacks, each with its adversary and its assumptions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from flwr_splitmix.experiments.privacy.kinds import AnyColumn


@dataclass(frozen=True)
class Column(AnyColumn):
    """An attack by one adversary.

    Parameters
    ----------
    attack, adversary
        Names of an attack of the catalogue, and of the adversary.
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
        which is one of the clients: the worst case of DP-CutMixSL, section 6.
    """

    setting: tuple[tuple[str, str], ...] = ()
    variant: str = ""
    assume: tuple[Literal["lower", "upper"], ...] = ("lower",)
    trained: bool = True
    held_out: bool = True
    collects: bool = False
    public: float = 1.0
    averaged_gradients: bool = False

    def identity(self) -> dict[str, Any]:
        """Return all values that define the column's cells.

        The attack is named as its module and class are, too: so are the cells of kept results.
        """
        words = self.attack.split("-")
        attack_class = {"module": "_".join(words), "kind": "".join(map(str.capitalize, words))}
        return {**super().identity(), **attack_class, "again": self.attack == "membership"}


_MEMBER: Final = "member of the group"

# The most expensive attacks have half of the public images, the same half for every row.
COLUMNS: tuple[Column, ...] = (
    Column("decoder", "server"),
    Column("decoder", "upper only"),
    Column("decoder-transformer", "server", public=0.5),
    Column("decoder-transformer", "upper only", public=0.5),
    Column("linear", "server"),
    Column("linear-decoder", "server"),
    Column("match", "server"),
    Column("reorder", "upper only"),
    Column("jigsaw", "upper only"),
    Column("unshuffle", "server"),
    Column("collect", "server", trained=False, collects=True, public=0.5),
    Column("separate", "upper only", public=0.5),
    Column("separate", "upper only", variant="first weights", assume=(), public=0.5),
    Column("attribute", "upper only"),
    Column("attribute", "upper only", variant="first weights", assume=()),
    Column("simulate", "server", assume=(), public=0.5),
    Column("labels-gradient", _MEMBER, (("leak", "norm"),), "norm", assume=()),
    Column("labels-gradient", _MEMBER, (("leak", "cosine"),), "cosine", assume=()),
    Column("labels-cluster", _MEMBER, (("way", "spectral"),), assume=()),
    Column("labels-peer", _MEMBER, assume=()),
    Column("membership", "upper only"),
)
"""All columns, in the order in which they are shown."""
