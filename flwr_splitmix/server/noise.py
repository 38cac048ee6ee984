"""The noise of a strategy: how it is given, its ledger, and the end of a run by its budgets."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from flwr_splitmix.links import Clients
from flwr_splitmix.mixers import Mixer, Noisy
from flwr_splitmix.mixers.noisy import NO_LABEL_NOISE
from flwr_splitmix.mixers.wrapper import nested
from flwr_splitmix.observers import LedgerElsewhere, Observer, PrivacyLedger
from flwr_splitmix.privacy import GaussianNoise, Relation
from flwr_splitmix.privacy.accountant import check_delta
from flwr_splitmix.privacy.events import check_relation
from flwr_splitmix.server.naming import name_clients
from flwr_splitmix.values import check_kind, check_truth
from flwr_splitmix.words import counted


def noise_of(
    mixer: Mixer | None, noise: GaussianNoise | None
) -> tuple[Mixer | None, GaussianNoise | None]:
    """Return mixer and noise apart: `Noisy` around all others is the same as `noise`.

    Raises
    ------
    TypeError
        If the noise is something else.
    ValueError
        If noise is given twice, or another mixer wraps it: only the outermost is accounted for.
    """
    if noise is not None:
        check_kind("noise", noise, GaussianNoise, "a GaussianNoise(sigma_s=..., sigma_y=...)")
    if noise is None and isinstance(mixer, Noisy):
        noise, mixer = mixer.noise, mixer.mixer
    if mixer is not None and any(isinstance(layer, Noisy) for layer in nested(mixer)):
        raise ValueError(
            "noise comes last and once: give noise=GaussianNoise(...), or mixer=Noisy(...) around "
            "all other mixers"
        )
    return mixer, noise


def check_noise(
    strategy: type, noise: GaussianNoise | None, *, needed: bool, multi_label: bool
) -> None:
    """Raise ValueError if a strategy has no noise that is `needed`, or noise on several labels."""
    if needed and noise is None:
        raise ValueError(f"{strategy.__name__} needs noise=GaussianNoise(sigma_s=..., sigma_y=...)")
    if multi_label and noise is not None and noise.sigma_y:
        raise ValueError(NO_LABEL_NOISE)


def check_ledger_options(delta: float, relation: str, *, trusted: bool) -> None:
    """Raise ValueError for options of a ledger that none would take, also if there is no noise."""
    check_delta(delta)
    check_relation(relation)
    check_truth("trusted_mixer", trusted)


class Noised(NamedTuple):
    """A strategy's mixer with its noise, and the ledger that is kept of it: here, or elsewhere."""

    mixer: Mixer
    ledger: PrivacyLedger | None = None
    elsewhere: LedgerElsewhere | None = None

    @classmethod
    def of(
        cls,
        mixer: Mixer,
        noise: GaussianNoise | None,
        delta: float,
        relation: Relation,
        *,
        trusted: bool,
        elsewhere: bool,
    ) -> Noised:
        """Wrap a mixer, unless there is no noise, and make the ledger.

        Parameters
        ----------
        trusted, elsewhere
            Whether the mixer is trusted, and whether it is a third party, which then keeps the
            ledger.
        """
        if noise is None:
            return cls(mixer)
        mixer = Noisy(mixer, noise)
        if elsewhere:
            return cls(mixer, elsewhere=LedgerElsewhere(delta, relation=relation))
        ledger = PrivacyLedger(delta, trusted_mixer=trusted, relation=relation, shares=mixer.shares)
        return cls(mixer, ledger)

    @property
    def observers(self) -> list[Observer]:
        """The ledger, if there is one."""
        return [each for each in (self.ledger, self.elsewhere) if each is not None]

    @property
    def counts_mixtures(self) -> bool:
        """Whether the ledger counts mixtures, not each upload."""
        return self.elsewhere is not None or (self.ledger is not None and self.ledger.trusted_mixer)


def why_spent(
    clients: Clients, members: Collection[int], spent: Collection[int], min_nodes: int
) -> str:
    """Return why a round cannot go on for want of privacy budget; "" if it can.

    Parameters
    ----------
    members, spent
        The clients that remain, and those whose budget is spent. Which nodes behind mixing groups
        have spent theirs is not known, only how many.
    """
    if spent and len(members) < min_nodes:
        return f"the privacy budget of {name_clients(sorted(spent))} is spent"
    if clients.spent and len(clients.nodes) - clients.spent < max(min_nodes, 2):
        return f"the privacy budget of {counted(clients.spent, 'client')} is spent"
    return ""
