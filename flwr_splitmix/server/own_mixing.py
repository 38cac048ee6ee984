"""A strategy's mixing: mixer and noise as given, the mixer as used, and the noise's ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from flwr_splitmix.clients import Client, SplitClient
from flwr_splitmix.links import Link, MixerLink
from flwr_splitmix.mixers import Mixer, Noisy, NoMixing
from flwr_splitmix.mixers.checked_mixer import check_mixer
from flwr_splitmix.mixers.elsewhere import MixedElsewhere
from flwr_splitmix.mixers.noisy import NO_LABEL_NOISE
from flwr_splitmix.mixers.wrapper import all_inside
from flwr_splitmix.observers import LedgerElsewhere, PrivacyLedger
from flwr_splitmix.privacy import GaussianNoise, Relation
from flwr_splitmix.privacy.accountant import check_delta
from flwr_splitmix.privacy.events import check_relation
from flwr_splitmix.server.options import RoundOptions
from flwr_splitmix.values import check_kind, check_truth


@dataclass(frozen=True, kw_only=True)
class MixingSetup:
    """A strategy's mixer with its noise, and the ledger of the noise, if there is any.

    Parameters
    ----------
    mixer
        The mixer, inside a `Noisy` if there is noise.
    ledger
        Kept at the server.
    ledger_elsewhere
        The view of the ledger that a third-party mixer keeps.
    """

    mixer: Mixer
    ledger: PrivacyLedger | None = None
    ledger_elsewhere: LedgerElsewhere | None = None

    @classmethod
    def of(
        cls,
        mixer: Mixer | None,
        noise: GaussianNoise | None,
        link: Link | None,
        *,
        delta: float,
        relation: Relation,
        trusted_mixer: bool,
    ) -> MixingSetup:
        """Make the setup of a strategy's options, which `SplitStrategy` describes.

        Raises
        ------
        TypeError
            If mixer or noise is an object of another kind.
        ValueError
            If noise is given twice, or the mixer takes none, or an option of the ledger is outside
            its range, even without noise.
        """
        mixer, noise = _apart(mixer, noise)
        check_delta(delta)
        check_relation(relation)
        check_truth("trusted_mixer", trusted_mixer)
        mixer = NoMixing() if mixer is None else mixer
        check_mixer(mixer)
        if noise is None:
            return cls(mixer=mixer)
        noisy = Noisy(mixer, noise)
        if isinstance(link, MixerLink):
            elsewhere = LedgerElsewhere(delta, relation=relation)
            return cls(mixer=noisy, ledger_elsewhere=elsewhere)
        ledger = PrivacyLedger(
            delta, trusted_mixer=trusted_mixer, relation=relation, shares=noisy.shares
        )
        return cls(mixer=noisy, ledger=ledger)

    def check_noise(self, strategy: type, *, needed: bool, multi_label: bool) -> None:
        """Raise ValueError if `needed` noise is missing, or if there is noise on several labels."""
        noise = self.mixer.noise if isinstance(self.mixer, Noisy) else None
        if needed and noise is None:
            raise ValueError(
                f"{strategy.__name__} needs noise=GaussianNoise(sigma_s=..., sigma_y=...)"
            )
        if multi_label and noise is not None and noise.sigma_y:
            raise ValueError(NO_LABEL_NOISE)

    def observed(self, options: RoundOptions) -> RoundOptions:
        """Return the options of the loop of rounds, with the ledger as the first observer."""
        ledgers = [each for each in (self.ledger, self.ledger_elsewhere) if each is not None]
        return {**options, "observers": [*ledgers, *options.get("observers", ())]}

    @property
    def counts_mixtures(self) -> bool:
        """Whether the ledger counts mixtures, not each upload."""
        return self.ledger_elsewhere is not None or (
            self.ledger is not None and self.ledger.trusted_mixer
        )


def _apart(
    mixer: Mixer | None, noise: GaussianNoise | None
) -> tuple[Mixer | None, GaussianNoise | None]:
    """Return mixer and noise separately: `Noisy` around all others is the same as `noise`.

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
    if mixer is not None and any(isinstance(layer, Noisy) for layer in all_inside(mixer)):
        raise ValueError(
            "noise comes last and once: give noise=GaussianNoise(...), or mixer=Noisy(...) around "
            "all other mixers"
        )
    return mixer, noise


def introduce(strategy: str, mixer: Mixer, clients: Sequence[Client] | None) -> None:
    """Make clients of this process known to each other if the mixer mixes raw inputs across them.

    Parameters
    ----------
    strategy
        Its name, for messages.
    clients
        None if they are behind a link.

    Raises
    ------
    ValueError
        If the mixer mixes raw inputs but the clients are behind a link, or if the clients are in
        this process but the mixer is a third party.
    """
    if clients is not None and isinstance(mixer, MixedElsewhere):
        raise ValueError("a MixerLink reaches deployed nodes; fit mixes here: give it no link")
    if not mixer.raw_inputs_cross:
        return
    if clients is None:
        raise ValueError(
            f"{strategy} mixes raw inputs across clients, which would have to send "
            "them: it exists for comparison within one process (fit); across='batch' mixes "
            "within each client's own batch, everywhere"
        )
    peers = cast(Sequence[SplitClient], clients)
    for client in peers:
        client.peers = peers
