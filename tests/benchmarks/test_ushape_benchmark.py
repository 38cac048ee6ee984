"""The benchmark of the U shape runs through and compares what it says; no figure is judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.apps.ushape.ushape_app.models import SIZES, M, Passes, build, mixguard_client
from benchmarks.apps.ushape.ushape_app.stopwatch import WARM_UP, time_here
from benchmarks.ushape import RATIOS, TARGETS, summarise

ROOT = Path(__file__).resolve().parents[2]
SMALL = SIZES["small"]


def test_the_passes_by_hand_are_those_of_a_step() -> None:
    """Both send as many texts through head, trunk and tail, with and without a graph."""
    recorded: dict[str, list[tuple[str, int, bool]]] = {}

    def watched(kind: str, **parts: torch.nn.Module) -> None:
        calls = recorded.setdefault(kind, [])
        for name, part in parts.items():
            part.register_forward_hook(
                lambda _, inputs, out, name=name: calls.append(
                    (name, len(inputs[0]), out.requires_grad)
                )
            )

    parts = build(SMALL)
    client = mixguard_client(parts, SMALL, refined=False)
    _, trunk, _ = build(SMALL).all_here()
    passes = Passes(parts, SMALL, refined=False)
    watched("step", head=client.head, trunk=trunk, tail=client.tail)
    watched("hand", head=passes.head, trunk=passes.trunk, tail=passes.tail)
    time_here(client, trunk, lambda: None, 1)
    passes()
    steps = WARM_UP + 1
    # One text alone is how a client finds its head's width when it attaches.
    in_steps = [call for call in recorded["step"] if call[1] > 1]
    assert sorted(in_steps) == sorted(recorded["hand"] * steps)
    assert ("trunk", M * SMALL.batch, True) in in_steps


def test_ratios_are_of_pairs_and_judged_by_their_medians() -> None:
    names = {name for pair in RATIOS.values() for name in pair}
    samples = {name: [1.0, 2.0, 4.0] for name in names}
    samples["local_ms"] = [1.04, 2.1, 4.8]  # 1.04, 1.05, 1.2 times the unsplit step
    samples["ray_ms"] = [1.3, 2.0, 4.64]  # 1.3, 1.0, 1.16
    summary = summarise(samples)
    assert summary["local_ratio"] == pytest.approx(1.05)
    assert summary["ray_ratio"] == pytest.approx(1.16)
    assert summary["targets"].keys() == TARGETS.keys()
    assert not summary["targets"]["ray_ratio"]["met"]
    assert summary["targets"]["mixguard_ratio"] == {"at_most": 1.15, "met": True}


@pytest.mark.slow
def test_the_benchmark_writes_every_figure(tmp_path: Path) -> None:
    out = tmp_path / "ushape.json"
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.ushape", "--quick", "--out", str(out)],
        cwd=ROOT,
        # The tensors are tiny here: threads would wait for each other.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    written = json.loads(out.read_text())
    for ratio, pair in RATIOS.items():
        for name in (ratio, *pair):
            row = written["spread"][name]
            assert 0 < row["min"] <= written[name] <= row["max"]
            assert row["n"] == written["settings"]["repeats"]
    assert written["machine"]["versions"].keys() >= {"flwr", "ray", "torch", "python"}
