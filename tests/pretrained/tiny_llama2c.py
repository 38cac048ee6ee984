"""A tiny model in llama2.c's layout, with llama2.c's own way to compute and to tokenise."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

WIDTH, HIDDEN, LAYERS, HEADS, KV_HEADS, LENGTH = 16, 24, 3, 4, 2, 32
SPECIAL = ["<unk>", "\n<s>\n", "\n</s>\n"]
LETTERS = [" ", "a", "b", "c"]
MERGED = [("ab", -1.0), (" a", -2.0), ("bc", -3.0), (" ab", -4.0), ("abc", -5.0), ("aa", -6.0)]
"""The likeliest first; "abc" can be of "ab" and "c", or of "a" and "bc"."""

PIECES = [
    *((text, 0.0) for text in SPECIAL),
    *((f"<0x{byte:02X}>", 0.0) for byte in range(256)),
    *MERGED,
    *((text, -10.0 - i) for i, text in enumerate(LETTERS)),
]


@dataclass
class Weights:
    """Of one model, by llama2.c's names; each with the layers in front."""

    table: np.ndarray
    norms: np.ndarray
    wq: np.ndarray
    wk: np.ndarray
    wv: np.ndarray
    wo: np.ndarray
    ffn_norms: np.ndarray
    w1: np.ndarray
    w2: np.ndarray
    w3: np.ndarray
    last: np.ndarray


def drawn(seed: int = 0) -> Weights:
    rng = np.random.default_rng(seed)
    kv = WIDTH // HEADS * KV_HEADS

    def some(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.3, shape).astype("<f4")

    return Weights(
        table=some(len(PIECES), WIDTH),
        norms=1 + some(LAYERS, WIDTH),
        wq=some(LAYERS, WIDTH, WIDTH),
        wk=some(LAYERS, kv, WIDTH),
        wv=some(LAYERS, kv, WIDTH),
        wo=some(LAYERS, WIDTH, WIDTH),
        ffn_norms=1 + some(LAYERS, WIDTH),
        w1=some(LAYERS, HIDDEN, WIDTH),
        w2=some(LAYERS, WIDTH, HIDDEN),
        w3=some(LAYERS, HIDDEN, WIDTH),
        last=1 + some(WIDTH),
    )


def model_bytes(weights: Weights) -> bytes:
    header = struct.pack("<7i", WIDTH, HIDDEN, LAYERS, HEADS, KV_HEADS, len(PIECES), LENGTH)
    rotations = np.zeros(LENGTH * WIDTH // HEADS, "<f4")
    body = b"".join(array.astype("<f4").tobytes() for array in vars(weights).values())
    return header + body + rotations.tobytes()


def tokenizer_bytes(*, letters: bool = False) -> bytes:
    """Return a `tokenizer.bin`; in older ones bytes are letters."""
    texts = [chr(i - 3) if letters and 3 <= i < 259 else t for i, (t, _) in enumerate(PIECES)]
    packed = [(score, text.encode()) for text, (_, score) in zip(texts, PIECES, strict=True)]
    return struct.pack("<i", 8) + b"".join(
        struct.pack("<fi", score, len(text)) + text for score, text in packed
    )


def logits(weights: Weights, ids: list[int]) -> np.ndarray:
    """Compute as run.c does: rotary pairs are neighbours."""
    head = WIDTH // HEADS
    x = weights.table[ids].astype(np.float64)
    for layer in range(LAYERS):
        normed = rms(x, weights.norms[layer])
        q, k, v = (normed @ w[layer].T for w in (weights.wq, weights.wk, weights.wv))
        q, k = rotated(q), rotated(k)
        out = np.zeros_like(x)
        for h in range(HEADS):
            columns, shared = slice(h * head, (h + 1) * head), h // (HEADS // KV_HEADS)
            kv = slice(shared * head, (shared + 1) * head)
            scores = q[:, columns] @ k[:, kv].T / np.sqrt(head)
            scores[np.triu_indices(len(ids), 1)] = -np.inf
            weight = np.exp(scores - scores.max(1, keepdims=True))
            out[:, columns] = weight / weight.sum(1, keepdims=True) @ v[:, kv]
        x = x + out @ weights.wo[layer].T
        normed = rms(x, weights.ffn_norms[layer])
        gate = normed @ weights.w1[layer].T
        x = x + (gate / (1 + np.exp(-gate)) * (normed @ weights.w3[layer].T)) @ weights.w2[layer].T
    return np.asarray(rms(x, weights.last) @ weights.table.T)


def rms(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight)


def rotated(x: np.ndarray) -> np.ndarray:
    head = WIDTH // HEADS
    out = x.copy()
    for i in range(0, x.shape[1], 2):
        angle = np.arange(len(x)) / 10000 ** ((i % head) / head)
        first, second = x[:, i], x[:, i + 1]
        out[:, i] = first * np.cos(angle) - second * np.sin(angle)
        out[:, i + 1] = first * np.sin(angle) + second * np.cos(angle)
    return out


def encoded(text: str) -> list[int]:
    """Tokenise as run.c does: the neighbours whose piece scores best are merged, again and again.

    A letter without a piece is its bytes.
    """
    at = {piece: number for number, (piece, _) in enumerate(PIECES)}
    ids: list[int] = []
    for letter in f" {text}":
        ids += [at[letter]] if letter in at else [byte + 3 for byte in letter.encode()]
    while True:
        pairs = [
            (PIECES[at[PIECES[a][0] + PIECES[b][0]]][1], -place)
            for place, (a, b) in enumerate(pairwise(ids))
            if PIECES[a][0] + PIECES[b][0] in at
        ]
        if not pairs:
            return [1, *ids]
        place = -max(pairs)[1]
        merged = PIECES[ids[place]][0] + PIECES[ids[place + 1]][0]
        ids[place : place + 2] = [at[merged]]
