"""Attacks on texts with stories15M: what messages of the U shape and MixGuard reveal to a server.

The victims' head has the base weights, as at the start of fine-tuning. Private texts are questions
of GSM8K and paragraphs of a book; public texts are of other books. For a sham, noise replaces the
messages.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import show, spread, write
from flwr_splitmix.attacks.catalogue import text_attacks
from flwr_splitmix.attacks.fitted import Budget, NotApplicable
from flwr_splitmix.attacks.scoring.cosine_scores import score
from flwr_splitmix.attacks.scoring.text_scores import TextFloors, score_texts
from flwr_splitmix.attacks.texts.key_search import KeySearch, search
from flwr_splitmix.attacks.texts.releasing import Released, release_texts
from flwr_splitmix.attacks.texts.view import TextKnowledge, TextRelease, TextView
from flwr_splitmix.data.texts.public import load_public_texts
from flwr_splitmix.data.texts.text_set import TextSet
from flwr_splitmix.data.texts.tokenizers import open_tokenizer
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.hiding.mixguard import MixGuard, MixGuardOptions
from flwr_splitmix.hiding.naive_mix import NaiveMix
from flwr_splitmix.seeding import seeded_secrets
from flwr_splitmix.segments.language import LanguageCut, LanguageParts, build_language_parts

MODEL, TOKENS, SEED = "stories15m", 48, 0
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
BOOK = "pg36_war_of_the_worlds.txt.gz"
PUBLIC = ("pg84_frankenstein.txt.gz", "pg1661_sherlock_holmes.txt.gz")
CUTS = (0, 1, 2)
UNTRAINED: dict[str, Any] = {
    "calibration_epochs": 0,
    "refine_every": 0,
    "perturbation": None,
    "secret_tokens": 0,
}
"""Options that switch off MixGuard's training, noise on gradients and, unless a row sets them,
secret tokens."""

ROWS: dict[str, dict[str, Any]] = {
    "rotated, k=3": {"k": 3, "sampler": "rotated"},
    "rotated, k=10": {"k": 10, "sampler": "rotated"},
    "rotated, k=10, 40 secret tokens": {"k": 10, "sampler": "rotated", "secret_tokens": 40},
    "convex, k=3": {"k": 3, "sampler": "convex"},
    "skewed 1.5, k=3": {"k": 3, "sampler": "skewed", "support_scale": 1.5},
}
"""MixGuard's variants; each text has a secret of its own."""

MATRIX = ("vocabulary", "sip", "key-search")


class Bench:
    """The model at one cut, with victims' and public texts."""

    def __init__(self, cut: int, texts: dict[str, list[Tensor]], tokenizer: Any) -> None:
        self.cut, self.texts, self.tokenizer = cut, texts, tokenizer
        self.parts: LanguageParts = build_language_parts(MODEL, LanguageCut(cut, 1))
        for part in self.parts.all_here():
            part.eval().requires_grad_(False)
        self.begin: int = tokenizer.bos_token_id
        self.floors = TextFloors(self.parts, texts["public"], self.begin)

    def hiding(self, row: str) -> Hiding:
        """Return a row's client half."""
        if row == "Naive Mix":
            return NaiveMix()
        if row not in ROWS:
            return Hiding()
        supports = self.texts["supports"]
        return MixGuard(
            TextSet(supports, supports),
            vocab_size=len(self.tokenizer),
            special_ids=self.tokenizer.all_special_ids,
            options=MixGuardOptions(**{**UNTRAINED, **ROWS[row]}),
        )

    def release(self, row: str, texts: Sequence[Tensor]) -> Released:
        """Release texts one per step; for Naive Mix two, each of which is the other's partner."""
        batch = 2 if row == "Naive Mix" else 1
        released = release_texts(self.parts, self.hiding(row), texts, batch_size=batch)
        if row != "noise (sham)":
            return released
        torch.manual_seed(SEED)
        sham = [TextRelease(torch.randn_like(r.messages)) for r in released.releases]
        return Released(sham, released.origins)

    def view(self, row: str, released: Released) -> TextView:
        """Return the server's view of what was released."""
        knowledge = TextKnowledge(row, ROWS.get(row, {}), self.parts, begin=self.begin)
        return TextView("server", released.releases, knowledge)


def keys(bench: Bench, draws: int) -> dict[str, Any]:
    """Search the keys of single texts; return directions' |cos| with the target, and seconds."""
    figures = {}
    states = None
    for row in ROWS:
        released = bench.release(row, bench.texts["private"][:draws])
        view = bench.view(row, released)
        if states is None:
            attack = KeySearch()
            attack.fit(view, bench.texts["public"], Budget("cpu"), seed=SEED)
            states = attack.states
        generator = torch.Generator().manual_seed(SEED)
        other = bench.parts.all_here()[0](bench.texts["supports"][0][None])[0]
        first, best, seconds = [], [], []
        for release, origin in zip(released.releases, released.origins, strict=True):
            began = perf_counter()
            ways = search(release.messages, states, generator=generator, skip=1)
            seconds.append(perf_counter() - began)
            estimates = [way.estimate[origin.places] for way in ways]
            floor = other[: len(origin.ids)]
            cut = [
                score(f[: len(floor)], origin.states[: len(floor)], floor).best for f in estimates
            ]
            first.append(cut[0])
            best.append(max(cut))
        figures[row] = {
            "best direction": spread(best),
            "surest direction": spread(first),
            "seconds": spread(seconds),
        }
    return figures


def matrix(bench: Bench, count: int, scale: Any, names: Sequence[str]) -> dict[str, Any]:
    """Run attacks on every row; a cell has its measures, or the reason why it has none."""
    rows = ("noise (sham)", "none (U shape)", "Naive Mix", *ROWS)
    fitted: dict[str, Any] = {}
    cells: dict[str, Any] = {}
    for row in rows:
        released = bench.release(row, bench.texts["private"][:count])
        view = bench.view(row, released)
        for name in names:
            try:
                if name not in fitted:
                    attack = text_attacks()[name]()
                    attack.fit(view, bench.texts["public"], Budget(scale), seed=SEED)
                    fitted[name] = attack
                began = perf_counter()
                guesses = fitted[name].run(view)
            except NotApplicable as error:
                cells[f"{row} | {name}"] = {"not applicable": str(error)}
                continue
            scored = score_texts(guesses, released.origins, bench.floors, bench.tokenizer.decode)
            cells[f"{row} | {name}"] = {
                "seconds": round(perf_counter() - began, 1),
                **{m.metric: asdict(m) for m in scored.measures},
            }
    return cells


def load_texts(data: Path, tokenizer: Any, public: int) -> dict[str, list[Tensor]]:
    """Return private, support and public texts as token ids, with the begin token first."""
    texts = data / "public_text"
    with gzip.open(data / "gsm8k" / "test.jsonl.gz", "rt", encoding="utf-8") as file:
        questions = [json.loads(line)["question"] for line in file][:40]
    book = load_public_texts(str(texts / BOOK), unit="paragraph", min_words=40, limit=40, seed=SEED)
    mixed = [text for pair in zip(questions, book, strict=False) for text in pair]
    others = [
        text
        for name in PUBLIC
        for text in load_public_texts(
            str(texts / name), unit="paragraph", min_words=30, limit=public, seed=SEED
        )
    ]

    def tokens(some: Sequence[str]) -> list[Tensor]:
        rows = [torch.tensor(tokenizer(text)["input_ids"][:TOKENS]) for text in some]
        return [row for row in rows if len(row) == TOKENS]

    encoded = tokens(others)
    return {"private": tokens(mixed), "supports": encoded[::4], "public": [
        text for place, text in enumerate(encoded) if place % 4
    ]}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--draws", type=int, default=12, help="texts whose key is searched")
    parser.add_argument("--texts", type=int, default=12, help="texts of each cell of the matrix")
    parser.add_argument("--public", type=int, default=700, help="public texts of each book")
    parser.add_argument("--quick", action="store_true", help="few texts: is it alive?")
    options = parser.parse_args(arguments)
    if options.quick:
        vars(options).update(draws=2, texts=2, public=40)
    try:
        tokenizer = open_tokenizer(MODEL)
        texts = load_texts(options.data, tokenizer, options.public)
    except (OSError, ValueError) as error:
        print(f"skipped: {error}")
        return
    began = perf_counter()
    with seeded_secrets():
        torch.manual_seed(SEED)
        benches = {cut: Bench(cut, texts, tokenizer) for cut in CUTS}
        scale = "smoke" if options.quick else "cpu"
        searched: dict[str, Any] = {}
        cells: dict[str, Any] = {}
        for cut, bench in benches.items():
            searched[f"cut {cut}"] = keys(bench, options.draws)
            print_tables({"key_search": searched, "matrix": {}})  # all that follows takes minutes
        for cut in (0, 1):
            cells[f"cut {cut}"] = matrix(benches[cut], options.texts, scale, MATRIX)
            print_tables({"key_search": {}, "matrix": {f"cut {cut}": cells[f"cut {cut}"]}})
    figures = {
        "key_search": searched,
        "matrix": cells,
        "settings": {
            "model": MODEL,
            "weights": "base: before any fine-tuning",
            "tokens": TOKENS,
            "m": 3,
            "private": ["GSM8K test questions", BOOK],
            "public": list(PUBLIC),
            "public_texts": len(texts["public"]),
            "draws": options.draws,
            "texts": options.texts,
            "scale": scale,
            "seed": SEED,
            "seconds": round(perf_counter() - began, 1),
        },
    }
    write(options.out, figures)


def print_tables(figures: dict[str, Any]) -> None:
    """Print |cos| of the keys, and the matrix of each cut."""
    heads = ("|cos| with the target, median", *figures["key_search"])
    for kind in ("best direction", "surest direction", "seconds") if figures["key_search"] else ():
        show(
            f"key-search, {kind}",
            heads,
            [
                [
                    row,
                    *(f"{one[row][kind]['median']:.3f}" for one in figures["key_search"].values()),
                ]
                for row in ROWS
            ],
        )
    for cut, cells in figures["matrix"].items():
        names = sorted({name.split(" | ")[1] for name in cells})
        rows = []
        for row in dict.fromkeys(name.split(" | ")[0] for name in cells):
            rows.append([row, *(_cell_text(cells[f"{row} | {name}"]) for name in names)])
        show(f"{cut}: token accuracy / ROUGE-L (floor)", ("", *names), rows)


def _cell_text(cell: dict[str, Any]) -> str:
    if "not applicable" in cell:
        return "n. a."
    accuracy, rouge = cell["token accuracy"], cell["ROUGE-L"]
    return f"{accuracy['value']:.2f} / {rouge['value']:.2f} ({rouge['floor']:.2f})"


if __name__ == "__main__":
    main()
