"""Attacks of a curious server on MixGuard's messages and gradients, with real texts and weights.

A pretrained encoder of six layers is cut after its embedding, its first or its second layer; the
server gets what a client would send. Figures are medians over draws of texts and secrets; most are
the |cos| with the target's hidden states, with means removed: 1 is the target itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.attack_tables import beside_earlier, print_tables
from benchmarks.encoder import NAME, PRIVATE, PUBLIC, TOKENS, Encoder, Texts, begin
from benchmarks.measure import spread, write
from flwr_splitmix.attacks import (
    blind_source,
    gradient_ratio,
    read_labels,
    read_tokens,
    repeated_text,
    score,
    separate_gradients,
)
from flwr_splitmix.hiding.mixguard import SCALE, Secret, balance_gradients, draw_secret, perturb
from flwr_splitmix.seeding import seeded_secrets

SEED = 0
CUTS = ("embedding", "layer 1", "layer 2")
SIZES = ((3, 3), (3, 10))
STRENGTHS = (0.0, 0.1, 1.0, 10.0)
NOISES = (1.0, 3.0, 10.0, 30.0, 100.0)
LOUDNESS = (0.0, 0.1, 1.0, 10.0)
draw_rotated = partial(draw_secret, sampler="rotated")
LIGHT: dict[str, dict[str, Any]] = {
    "any": {},
    "up to 0.4": {"max_distortion": 0.4},
    "up to 0.1": {"max_distortion": 0.1},
    "supports x 0.3, any": {"scale": (0.3 * SCALE[0], 0.3 * SCALE[1])},
    "supports x 0.3, up to 0.05": {
        "scale": (0.3 * SCALE[0], 0.3 * SCALE[1]), "max_distortion": 0.05
    },
}  # fmt: skip
"""Options of secrets: first the paper's, then ones that distort less."""

BATCH = 8
CLASSIFIED = 16
"""Number of texts whose labels are attacked."""

Samples = defaultdict[str, list[float]]


@dataclass(frozen=True)
class Step:
    """The messages of one client in one step, and what they hide."""

    secret: Secret
    ids: Tensor
    messages: Tensor
    truth: Tensor
    other: Tensor

    def cosine(self, components: Tensor) -> float:
        """Return the best component's |cos| with the target's hidden states."""
        return score(components, self.truth, self.other).best

    def cosine_by_sample(self, components: Sequence[Tensor]) -> float:
        """Return the mean over samples of the best component's |cos|, each with its own scale."""
        parts = zip(components, self.truth, self.other, strict=True)
        return float(np.mean([score(*part).best for part in parts]))

    def spread(self, gradients: Tensor) -> Tensor:
        """Return messages' gradients, from those of the decoded target or all decoded sources."""
        outputs = torch.zeros_like(self.messages).requires_grad_()
        whole = gradients.ndim == outputs.ndim
        decoded = (self.secret.decode_sources if whole else self.secret.decode)(outputs)
        (message_gradients,) = torch.autograd.grad(decoded, outputs, gradients)
        return message_gradients


def take(encoder: Encoder, drawn: tuple[Tensor, ...], cut: int, secret: Secret) -> Step:
    """Encode drawn texts (`Texts.draw`) under a secret."""
    target, supports, other = drawn
    ids = secret.arrange(target, supports)
    sources = encoder.head(ids.flatten(0, 1), cut).reshape(*ids.shape, -1)
    truth = secret.target_of(sources)
    return Step(secret, ids, secret.encode(sources), truth, encoder.head(other, cut))


def messages_alone(encoder: Encoder, texts: Texts, draws: int) -> dict[str, Any]:
    """Attack messages alone, at each cut and size; read words after the embedding."""
    return {
        f"{name}, m={m}, k={k}": alone(encoder, texts, draws, cut, (m, k))
        for (cut, name), (m, k) in product(enumerate(CUTS), SIZES)
    }


def with_little_distortion(encoder: Encoder, texts: Texts, draws: int) -> dict[str, Any]:
    """Attack messages of secrets that distort little, cut after layer 1, m = k = 3."""
    return {
        name: alone(encoder, texts, draws, 1, (3, 3), **options) for name, options in LIGHT.items()
    }


def alone(
    encoder: Encoder, texts: Texts, draws: int, cut: int, size: tuple[int, int], **options: Any
) -> dict[str, Any]:
    """Attack single texts under secrets with the given options."""
    table, rng, samples = encoder.table(), np.random.default_rng(SEED), Samples(list)
    common = encoder.head(texts.known, cut).mean(0, keepdim=True)
    for _ in range(draws):
        drawn = texts.draw(rng, size[1])
        step = take(encoder, drawn, cut, draw_rotated(*size, **options))
        with torch.no_grad():
            decoded = step.secret.decode(encoder.trunk(step.messages, cut))
            plain = encoder.trunk(step.truth, cut)
        samples["decoding error"].append(float((decoded - plain).norm() / plain.norm()))
        ways = {
            "message": step.messages,
            "FastICA": blind_source(step.messages),
            "FastICA, mean known": blind_source(step.messages, common=common),
        }
        for way, parts in ways.items():
            result = score(parts, step.truth, step.other)
            samples[f"best {way}"].append(result.best)
            samples[f"picked {way}"].append(result.picked)
            if cut == 0:
                reading = read_tokens(parts[result.best_index], table)
                samples[f"words read, best {way}"].append(reading.accuracy(drawn[0]))
        samples["sum of messages"].append(step.cosine(step.messages.sum(0)))
        again = take(encoder, (drawn[0], *texts.draw(rng, size[1])[1:]), cut, draw_rotated(*size))
        twice = repeated_text(step.messages, again.messages)
        samples["mixed twice"].append(step.cosine(twice.estimate))
        samples["another text"].append(result.floor)
    return {key: spread(values) for key, values in samples.items()}


def with_gradients(encoder: Encoder, texts: Texts, draws: int) -> dict[str, Any]:
    """Attack messages with their gradients, cut after layer 1, m = k = 3, one text a step."""
    rng, samples, cut = np.random.default_rng(SEED), Samples(list), 1
    for _ in range(draws):
        step = take(encoder, texts.draw(rng, 3), cut, draw_rotated(3, 3))
        secret, messages = step.secret, step.messages
        with torch.no_grad():
            outputs = encoder.trunk(messages, cut)
            plain = encoder.trunk(step.truth, cut)
        decoded = secret.decode_sources(outputs).requires_grad_()
        # The public loss on supports is of the private one's kind: prediction of the next word.
        losses = [encoder.loss(text, ids) for text, ids in zip(decoded, step.ids, strict=True)]
        (gradients,) = torch.autograd.grad(torch.stack(losses).sum(), decoded)
        g, h = secret.target_of(gradients), secret.target_of(decoded.detach())

        guess = torch.einsum("m,m...->...", torch.randn(3), messages)
        samples["a random direction"].append(step.cosine(guess))
        for strength in STRENGTHS:
            # A perfect calibration's residual: what `C(h^) - h^` would be if C made no error.
            noisy = perturb(g, plain - h, h, strength=strength)
            estimate = gradient_ratio(messages, step.spread(noisy)).estimate
            samples[f"ratio, perturbation {strength:g}"].append(step.cosine(estimate))
        whole = step.spread(g)
        for noise in NOISES:
            drowned = whole + noise * whole.std() * torch.randn_like(whole)
            estimate = gradient_ratio(messages, drowned).estimate
            samples[f"ratio, noise on each message {noise:g}"].append(step.cosine(estimate))
        for loudness in LOUDNESS:
            mixed = step.spread(balance_gradients(secret, gradients, strength=loudness))
            estimate = gradient_ratio(messages, mixed).estimate
            samples[f"all sources {loudness:g}: ratio"].append(step.cosine(estimate))
            apart = separate_gradients(messages, mixed)
            samples[f"all sources {loudness:g}: gradients' FastICA"].append(step.cosine(apart))
    return {key: spread(values) for key, values in samples.items()}


def labels(encoder: Encoder, texts: Texts, draws: int) -> dict[str, Any]:
    """Read labels of two classes from a step's gradients; return the fraction read correctly.

    Cut after layer 1, with a new classifier at the first token and random labels.
    """
    rng, samples, cut = np.random.default_rng(SEED), Samples(list), 1
    for _ in range(draws):
        step = take(encoder, texts.draw(rng, 3, CLASSIFIED), cut, draw_rotated(3, 3))
        classifier = 0.02 * torch.randn(2, step.truth.shape[-1])
        truth = torch.randint(2, (CLASSIFIED,))
        with torch.no_grad():
            plain = encoder.trunk(step.truth, cut)
            decoded = step.secret.decode(encoder.trunk(step.messages, cut))
        for way, hidden in (("U shape", plain), ("MixGuard", decoded)):
            leaf = hidden.detach().requires_grad_()
            loss = F.cross_entropy(encoder.last(leaf)[:, 0] @ classifier.T, truth)
            (gradient,) = torch.autograd.grad(loss, leaf)
            returned = gradient
            if way == "MixGuard":
                returned = step.spread(perturb(gradient, plain - decoded, decoded, strength=0.1))
            right = float((read_labels(returned) == truth.bool()).double().mean())
            samples[way].append(max(right, 1 - right))
    return {key: spread(values) for key, values in samples.items()}


def batches(encoder: Encoder, texts: Texts, draws: int) -> dict[str, Any]:
    """Attack batches under one secret, and under one per sample; return means over a batch."""
    cells = {}
    for (cut, name), (m, k) in product(enumerate(CUTS), SIZES):
        rng, samples = np.random.default_rng(SEED), Samples(list)
        for _ in range(draws):
            drawn = texts.draw(rng, k, BATCH)
            for way, count in (("one secret", None), ("a secret each", BATCH)):
                step = take(encoder, drawn, cut, draw_rotated(m, k, samples=count))
                together = blind_source(step.messages).transpose(0, 1)
                samples[f"{way}: FastICA of the batch"].append(
                    step.cosine_by_sample(together.unbind())
                )
                alone = [blind_source(step.messages[:, j]) for j in range(BATCH)]
                samples[f"{way}: FastICA of each sample"].append(step.cosine_by_sample(alone))
                gradients = step.spread(torch.randn_like(step.truth))
                for unit, each in (("the batch", False), ("each sample", True)):
                    ratio = gradient_ratio(step.messages, gradients, per_sample=each)
                    samples[f"{way}: ratio of {unit}"].append(
                        step.cosine_by_sample(ratio.estimate.unbind())
                    )
        cells[f"{name}, m={m}, k={k}"] = {key: spread(v) for key, v in samples.items()}
    return cells


def main(arguments: Sequence[str] | None = None) -> None:
    begun = begin(__doc__, arguments, {"draws": 60}, {"draws": 2})
    if begun is None:
        return
    options, encoder, texts = begun
    draws = options.draws
    started = perf_counter()
    with seeded_secrets():
        torch.manual_seed(SEED)
        messages = messages_alone(encoder, texts, draws)
        gradients = with_gradients(encoder, texts, draws)
        in_batches = batches(encoder, texts, max(2, draws // 6))
        distortion = with_little_distortion(encoder, texts, draws)
        classes = labels(encoder, texts, draws)
    figures = {
        "messages": messages,
        "gradients": gradients,
        "batches": in_batches,
        "distortion": distortion,
        "labels": classes,
        "beside_earlier": beside_earlier(messages),
        "settings": {
            "encoder": NAME,
            "targets_from": PRIVATE,
            "supports_and_other_text_from": PUBLIC,
            "tokens": TOKENS,
            "windows": {
                "targets": len(texts.private),
                "supports": len(texts.public),
                "known": len(texts.known),
            },
            "draws": draws,
            "batch_draws": max(2, draws // 6),
            "batch": BATCH,
            "classified": CLASSIFIED,
            "seed": SEED,
            "seconds": round(perf_counter() - started, 1),
        },
    }
    print_tables(figures)
    write(options.out, figures)


if __name__ == "__main__":
    main()
