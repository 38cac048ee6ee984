"""Samplers of secrets, and masks: errors of decoding, and what messages leak of a text.

All on the pretrained encoder, without training. Secrets: cut after layer 1, windows of 64 tokens,
m = k = 3. Masks: texts of several lengths, nothing mixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.encoder import NAME, PRIVATE, PUBLIC, TOKENS, Encoder, Texts, begin
from benchmarks.measure import show, spread, write
from flwr_splitmix.hiding.mixguard import (
    SCALE,
    ResidualKernel,
    Secret,
    draw_secret,
    measured_leak,
    pad_together,
)
from flwr_splitmix.seeding import seeded_secrets

SEED, CUT, M, K = 0, 1, 3, 3
KERNEL_BATCHES = 12
"""Number of public batches that the residual kernel learns from."""

BATCH = 4
LIGHT = (0.3 * SCALE[0], 0.3 * SCALE[1])
ROTATED: dict[str, Any] = {"sampler": "rotated"}

SECRETS: dict[str, dict[str, Any]] = {
    "rotated": ROTATED,
    "rotated, max_distortion 0.4": {**ROTATED, "max_distortion": 0.4},
    "rotated, support_scale 0.3, max_distortion 0.05": {
        **ROTATED,
        "scale": LIGHT,
        "max_distortion": 0.05,
    },
    "rotated, max_amplification 1.5": {**ROTATED, "max_amplification": 1.5},
    "convex 1": {"sampler": "convex"},
    "convex 2": {"sampler": "convex", "support_norm": 2.0},
    "skewed 1": {"sampler": "skewed"},
    "skewed 1.5": {"sampler": "skewed", "support_norm": 1.5},
    "skewed 2": {"sampler": "skewed", "support_norm": 2.0},
}
LENGTHS = (4, 24)
"""Range of a text's length in tokens, without special tokens; the end is exclusive."""

Sample = tuple[Secret, Tensor, Tensor, Tensor, Tensor]


def take(
    encoder: Encoder, texts: Texts, rng: np.random.Generator, options: dict[str, Any]
) -> Sample:
    """Return a secret, the target's hidden states, messages, and the trunk's outputs of both."""
    target, supports, _ = texts.draw(rng, K, BATCH)
    secret = draw_secret(M, K, **options)
    ids = secret.arrange(target, supports)
    sources = encoder.head(ids.flatten(0, 1), CUT)
    sources = sources.reshape(K, -1, *sources.shape[1:])
    hidden, messages = secret.target_of(sources), secret.encode(sources)
    with torch.no_grad():
        return secret, hidden, messages, encoder.trunk(hidden, CUT), encoder.trunk(messages, CUT)


def off(decoded: Tensor, truth: Tensor) -> float:
    """Return the relative error."""
    return float((decoded - truth).norm() / truth.norm())


def of_secrets(
    encoder: Encoder, texts: Texts, draws: int, options: dict[str, Any]
) -> dict[str, Any]:
    """Measure secrets of one kind; the kernel learns from other draws, only of public texts."""
    rng, kernel, mask = np.random.default_rng(SEED), ResidualKernel(), torch.ones(BATCH, TOKENS)
    public = Texts(texts.public[:1000], texts.public[1000:], texts.known)
    for _ in range(min(KERNEL_BATCHES, draws)):
        _, hidden, messages, plain, outputs = take(encoder, public, rng, options)
        kernel.learn(messages.unbind(), outputs.unbind(), hidden, plain, mask)
    samples: dict[str, list[float]] = {
        name: [] for name in ("decode error", "residual decoding", "leak", "leak by the weights",
                              "amplification")
    }  # fmt: skip
    for _ in range(draws):
        secret, hidden, messages, plain, outputs = take(encoder, texts, rng, options)
        local, added = kernel.decode(outputs, messages, hidden, mask, secret)
        samples["decode error"].append(off(secret.decode(outputs), plain))
        samples["residual decoding"].append(off(local + added, plain))
        samples["leak"].append(float(measured_leak(messages, hidden).mean()))
        samples["leak by the weights"].append(float(secret.leak))
        samples["amplification"].append(float(secret.amplification))
    return {name: spread(values) for name, values in samples.items()}


def of_masks(encoder: Encoder, texts: Texts, draws: int) -> dict[str, Any]:
    """Measure the errors of masks for texts padded together with supports; nothing is mixed."""
    rng = np.random.default_rng(SEED)
    special = torch.tensor([101, 102])
    samples: dict[str, list[float]] = {"union": [], "target": [], "all, also at head and tail": []}
    for _ in range(draws):
        cut = []
        for row in texts.private[rng.choice(len(texts.private), K * BATCH, replace=False)]:
            length = int(rng.integers(*LENGTHS))
            cut.append(torch.cat([special[:1], row[:length], special[1:]]))
        ids = [torch.nn.utils.rnn.pad_sequence(cut[i::K], batch_first=True) for i in range(K)]
        padded = pad_together(
            ids,
            [(one != 0).long() for one in ids],
            filler=lambda shape: torch.from_numpy(rng.integers(1000, 30000, tuple(shape))),
        )
        own_ids, own_mask = padded.ids[0], padded.masks[0]
        hidden = masked(encoder, encoder.model.embeddings(input_ids=own_ids), own_mask, 0, CUT)
        truth = masked(encoder, hidden, own_mask, CUT, 5)
        real = own_mask.bool()
        for name, mask in (("union", padded.union), ("target", own_mask)):
            samples[name].append(off(masked(encoder, hidden, mask, CUT, 5)[real], truth[real]))
        every = torch.ones_like(own_mask)
        filled = masked(encoder, encoder.model.embeddings(input_ids=own_ids), every, 0, 5)
        samples["all, also at head and tail"].append(off(filled[real], truth[real]))
    return {name: spread(values) for name, values in samples.items()}


@torch.no_grad()
def masked(encoder: Encoder, hidden: Tensor, mask: Tensor, first: int, last: int) -> Tensor:
    """Apply layers under a mask (b, T)."""
    bias = (1 - mask[:, None, None].to(hidden.dtype)) * torch.finfo(hidden.dtype).min
    for layer in encoder.model.encoder.layer[first:last]:
        result = layer(hidden, bias)
        hidden = result[0] if isinstance(result, tuple) else result
    return hidden


def main(arguments: Sequence[str] | None = None) -> None:
    begun = begin(__doc__, arguments, {"draws": 24}, {"draws": 1})
    if begun is None:
        return
    options, encoder, texts = begun
    draws, started = options.draws, perf_counter()
    with seeded_secrets():
        torch.manual_seed(SEED)
        secrets = {
            name: of_secrets(encoder, texts, draws, secret_options)
            for name, secret_options in SECRETS.items()
        }
        masks = of_masks(encoder, texts, draws)
    columns = ("decode error", "residual decoding", "leak", "leak by the weights", "amplification")
    rows = [[name, *(f"{row[c]['median']:.2f}" for c in columns)] for name, row in secrets.items()]
    show("secrets: medians", ("", *columns), rows)
    show("masks", ("", "error"), [[n, f"{row['median']:.3f}"] for n, row in masks.items()])
    settings = {
        "encoder": NAME,
        "texts": [PRIVATE, PUBLIC],
        "cut": f"after layer {CUT}, trunk up to layer 5",
        "m": M, "k": K, "tokens": TOKENS, "batch": BATCH, "draws": draws, "seed": SEED,
        "kernel_batches": min(KERNEL_BATCHES, draws), "words_of_masked_texts": LENGTHS,
        "seconds": round(perf_counter() - started, 1),
    }  # fmt: skip
    write(options.out, {"secrets": secrets, "masks": masks, "settings": settings})


if __name__ == "__main__":
    main()
