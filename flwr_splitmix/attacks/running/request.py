"""The request to run an attack, apart from its effort."""

from __future__ import annotations

from dataclasses import dataclass

from flwr_splitmix.attacks.attacked import Assumption
from flwr_splitmix.attacks.release import Adversary

DEFAULT_VICTIMS = 128
"""Training images, and held-out ones, that are attacked if no number is given."""

TEXT_VICTIMS = 4
"""Texts of each kind that are attacked if no number is given: reading one can take minutes."""


@dataclass(frozen=True, kw_only=True)
class AttackRequest:
    """An attack by name, its adversary and its victims.

    Parameters
    ----------
    attack
        Name of the attack.
    adversary
        The adversary whose view is attacked.
    victims
        Least number of training images or texts, and of held-out ones; recorded steps are used
        whole.
    assumed
        Segments given to the adversary in addition: "lower", "upper".
    repeats
        Releases per held-out image.
    public
        Source of the attacker's own data, as the user named it; None for that of the system.
    seed
        Seed of the attack's draws.
    client
        Index of the client whose texts are attacked; None for the first, and for images.
    """

    attack: str
    adversary: Adversary
    victims: int
    assumed: tuple[Assumption, ...] = ()
    repeats: int = 1
    public: str | None = None
    seed: int = 0
    client: int | None = None
