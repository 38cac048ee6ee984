"""What `splitmix attack run` is asked for, apart from its effort."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flwr_splitmix.attacks.attacked import Assumption
    from flwr_splitmix.attacks.release import Adversary


@dataclass(frozen=True)
class AttackRequest:
    """An attack by name, its adversary and its victims.

    Parameters
    ----------
    attack
        Name of the attack.
    adversary
        The adversary whose view is attacked.
    public
        Source of the attacker's own data; None for the default of the run's kind.
    assumed
        Segments given to the adversary in addition: "lower", "upper".
    victims
        Number of training images or texts, and of held-out ones; None for the default.
    client
        Index of the client whose texts are attacked; None for the first.
    repeats
        Releases per held-out image.
    seed
        Seed of the attack's draws.
    """

    attack: str
    adversary: Adversary
    public: str | None
    assumed: tuple[Assumption, ...]
    victims: int | None
    client: int | None
    repeats: int
    seed: int
