"""Linear probe on a pretrained head: words that hidden states reveal to anyone with its weights.

The probe is one ridge regression from hidden states of public texts to their words' embeddings, and
then takes the nearest embedding: seconds of work, and no gradient step. It reads the true hidden
states of private texts, and MixGuard's messages about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.encoder import NAME, PRIVATE, PUBLIC, TOKENS, Encoder, Texts, begin
from benchmarks.measure import show, spread, write
from flwr_splitmix.hiding.mixguard import draw_secret
from flwr_splitmix.seeding import seeded_secrets

SEED, M, K = 0, 3, 3
DEPTHS = (1, 2, 4)
RIDGE = 1e-3
"""Ridge penalty, relative to the mean square of a hidden state's numbers."""

SECRETS: dict[str, dict[str, Any]] = {
    "rotated": {"sampler": "rotated"},
    "convex 1": {"sampler": "convex"},
    "skewed 1.5": {"sampler": "skewed", "support_norm": 1.5},
    "skewed 2": {"sampler": "skewed", "support_norm": 2.0},
}


@dataclass(frozen=True)
class Probe:
    """A linear map from centred hidden states to the space of the words' embeddings."""

    weights: Tensor
    hidden_mean: Tensor
    words: Tensor

    def _level(self, hidden: Tensor) -> Tensor:
        """Return the public mean, scaled to its share in a mixture."""
        share = (hidden.mean(0) @ self.hidden_mean) / self.hidden_mean.square().sum()
        level: Tensor = share * self.hidden_mean
        return level

    @classmethod
    def fit(cls, hidden: Tensor, ids: Tensor, table: Tensor) -> Probe:
        """Fit to hidden states (n, d) of the words (n,)."""
        words_mean, hidden_mean = table[ids].mean(0), hidden.mean(0)
        x, y = (hidden - hidden_mean).double(), (table[ids] - words_mean).double()
        penalty = RIDGE * x.square().mean() * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
        weights = torch.linalg.solve(x.T @ x + penalty, x.T @ y).float()
        words = torch.nn.functional.normalize(table - words_mean, dim=-1)
        return cls(weights, hidden_mean, words)

    def reads(self, hidden: Tensor, ids: Tensor) -> float:
        """Return the fraction of the words (T,) that are read from hidden states (T, d).

        Mixing can change the sign and the scale of hidden states: the better of both signs counts,
        and a scale has no effect.
        """
        guessed = ((hidden - self._level(hidden)) @ self.weights) @ self.words.T
        right = [(sign * guessed).argmax(-1) == ids for sign in (1, -1)]
        return max(float(each.double().mean()) for each in right)


def of_depth(
    encoder: Encoder, texts: Texts, depth: int, windows: int, draws: int
) -> dict[str, Any]:
    """Fit a probe after `depth` layers to public windows and read private ones."""
    public = texts.public[:windows]
    hidden = torch.cat([encoder.head(part, depth) for part in torch.split(public, 50)])
    probe = Probe.fit(hidden.flatten(0, 1), public.flatten(), encoder.table())
    rng = np.random.default_rng(SEED)
    samples: dict[str, list[float]] = {
        "true hidden states": [],
        **{f"{name}: {way}": [] for name in SECRETS for way in ("best", "first")},
    }
    for _ in range(draws):
        target, supports, _ = texts.draw(rng, K)
        truth, others = encoder.head(target, depth), encoder.head(supports.flatten(0, 1), depth)
        others = others.reshape(K - 1, -1, *others.shape[1:])
        samples["true hidden states"].append(probe.reads(truth[0], target[0]))
        for name, options in SECRETS.items():
            secret = draw_secret(M, K, **options)
            messages = secret.encode(secret.arrange(truth, others))[:, 0]
            candidates = [*messages, messages.sum(0)]
            read = [probe.reads(message, target[0]) for message in candidates]
            samples[f"{name}: best"].append(max(read))
            samples[f"{name}: first"].append(read[0])
    return {name: spread(values) for name, values in samples.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    begun = begin(__doc__, arguments, {"windows": 400, "draws": 30}, {"windows": 60, "draws": 2})
    if begun is None:
        return
    options, encoder, texts = begun
    windows, draws = options.windows, options.draws
    started = perf_counter()
    with seeded_secrets():
        torch.manual_seed(SEED)
        depths = {str(d): of_depth(encoder, texts, d, windows, draws) for d in DEPTHS}
    names = list(next(iter(depths.values())))
    rows = [[n, *(f"{100 * row[n]['median']:.0f} %" for row in depths.values())] for n in names]
    show("words read, medians", ("", *(f"behind {d} layers" for d in DEPTHS)), rows)
    settings = {
        "encoder": NAME,
        "probe": f"ridge regression to the word embeddings, {windows} windows of {TOKENS} tokens",
        "private": PRIVATE, "public": PUBLIC, "m": M, "k": K, "draws": draws, "seed": SEED,
        "seconds": round(perf_counter() - started, 1),
    }  # fmt: skip
    write(options.out, {"words_read": depths, "settings": settings})


if __name__ == "__main__":
    main()
