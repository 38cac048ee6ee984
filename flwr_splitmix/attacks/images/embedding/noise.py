"""An adversary's knowledge of the Gaussian noise in what it received."""

from __future__ import annotations

from dataclasses import replace

from flwr_splitmix.attacks.knowledge import Knowledge
from flwr_splitmix.attacks.release import Release
from flwr_splitmix.mixers.mixer import Mixer
from flwr_splitmix.mixers.noisy import Noisy


def has_noise(mixer: Mixer) -> bool:
    """Return whether clients add noise to smashed data: it comes last, around all other mixers."""
    return isinstance(mixer, Noisy) and mixer.noise.sigma_s > 0


def without_noise(mixer: Mixer) -> Mixer:
    """Return a mixer whose clients clip their smashed data as before, and add no noise to them."""
    if not isinstance(mixer, Noisy):
        return mixer
    return Noisy(mixer.mixer, replace(mixer.noise, sigma_s=0.0))


def noise_in(release: Release, knowledge: Knowledge) -> float | None:
    """Return the variance of the noise in each number of a release's tokens; None without any.

    The tokens are divided by the mixing ratio, if it is known, as in `example.queries`.
    """
    mixer = knowledge.mixer
    if not isinstance(mixer, Noisy) or not has_noise(mixer):
        return None
    variance, weighted = mixer.noise.sigma_s**2, mixer.cover == "weighted"
    if release.client is None and (weighted or mixer.noise.smashed_noise == "all"):
        variance *= knowledge.k
    if weighted and release.lam:
        variance /= release.lam**2
    return variance
