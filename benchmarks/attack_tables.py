"""Tables of `mixguard_attacks`, and its figures beside those of an earlier measurement."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.measure import show

EARLIER = {
    ("embedding", 3): (0.16, 0.87, 0.99),
    ("layer 1", 3): (0.24, 0.93, 0.91),
    ("layer 2", 3): (0.25, 0.84, 0.86),
    ("embedding", 10): (0.16, 0.65, 0.96),
    ("layer 1", 10): (0.24, 0.68, 0.86),
    ("layer 2", 10): (0.25, 0.67, 0.86),
}
"""Median |cos| measured by other code, by cut and k: another text, best message, FastICA."""


def beside_earlier(measured: dict[str, Any]) -> dict[str, Any]:
    """Return each figure of `EARLIER` beside the one measured now."""
    rows = {}
    for (cut, k), expected in EARLIER.items():
        row = measured[f"{cut}, m=3, k={k}"]
        ours = [row[key]["median"] for key in ("another text", "best message", "best FastICA")]
        rows[f"{cut}, m=3, k={k}"] = {
            "earlier": expected,
            "measured": ours,
            "within_0.1": bool(np.abs(np.subtract(ours, expected)).max() <= 0.1),
        }
    return rows


def print_tables(figures: dict[str, Any]) -> None:
    """Print the figures of `mixguard_attacks`, with a table for each part."""
    settings = figures["settings"]
    for part, title in (
        ("messages", "Messages alone, one text of 64 tokens, by cut / k (m = 3)"),
        ("batches", f"Batches of {settings['batch']} texts, by cut / k (m = 3)"),
        ("distortion", "Messages alone, cut L1, m = k = 3, by the secrets' distortion"),
    ):
        rows = figures[part]
        keys = list(dict.fromkeys(key for row in rows.values() for key in row))
        show(title, ("median |cos|", *(_short(name) for name in rows)), [
            [key, *(f"{row[key]['median']:.2f}" if key in row else "" for row in rows.values())]
            for key in keys
        ])  # fmt: skip
    show("And gradients, cut L1, m = k = 3", ("median |cos|", ""), [
        [key, f"{row['median']:.3f}"] for key, row in figures["gradients"].items()
    ])  # fmt: skip
    show(f"Labels of {settings['classified']} texts, two classes", ("part that is right", ""), [
        [key, f"{row['median']:.3f}"] for key, row in figures["labels"].items()
    ])  # fmt: skip
    for name, row in figures["beside_earlier"].items():
        pairs = zip(row["earlier"], row["measured"], strict=True)
        text = ", ".join(f"{ours:.2f} ({earlier:.2f})" for earlier, ours in pairs)
        verdict = "within" if row["within_0.1"] else "NOT within"
        print(f"{name}: {text}; {verdict} 0.1 of the earlier measurement")


def _short(name: str) -> str:
    return name.replace("embedding", "emb").replace("layer ", "L").replace(", m=3, k=", "/")
