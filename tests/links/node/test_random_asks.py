"""A thousand random requests of the worst server: all uploads are priced and logged."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from flwr_splitmix.mixers import FullShare, PatchShare, WeightedShare
from flwr_splitmix.privacy import GaussianNoise
from tests.links.node.worst_server import TOY, Node

N, L = TOY.patches, TOY.classes
NOISE = GaussianNoise(sigma_s=400.0, sigma_y=200.0)


def random_number(rng: np.random.Generator) -> float:
    signs = [1.0, 1.0, 1.0, -1.0, math.nan, math.inf]
    edges = [0.0, 1e-320, 1e-170, 1e-38, 1e-7, 0.01, 1.0, 40.0, 1e3, 1e30, 1e200, 1.7e308]
    return float(rng.choice(edges)) * float(rng.choice(signs))


def random_share(rng: np.random.Generator) -> Any:
    count = int(rng.integers(0, N + 1))
    inner = [
        FullShare().to_wire(),
        PatchShare(lam=count / N, patches=N, seed=1, start=0, stop=count).to_wire(),
        WeightedShare(lam=float(rng.random())).to_wire(),
        {"share": "ids", "lam": 1.0, "learns": False},
        {"share": "patches", "lam": 0.5, "patches": 10**12, "seed": 1, "start": 0, "stop": 9},
        None,
        7,
    ][rng.choice(7, p=[0.3, 0.3, 0.3, 0.025, 0.025, 0.025, 0.025])]
    if rng.random() < 0.1:
        return inner
    noise = dict(NOISE.to_plain())
    for key in ("sigma_s", "sigma_y", "clip_norm"):
        if rng.random() < 0.1:
            noise[key] = random_number(rng)
    noise["clip"] = str(rng.choice(["patch", "range", "sample", "none"], p=[0.5, 0.2, 0.2, 0.1]))
    classes = L if rng.random() < 0.9 else [1, 0, 10**6, 2.5][rng.integers(4)]
    return {"share": "noisy", "inner": inner, "noise": noise, "classes": classes}


def random_ask(rng: np.random.Generator, number: int) -> tuple[str, dict[str, Any]]:
    kind = rng.random()
    if kind < 0.1:
        return "encode_test", {
            "kind": str(rng.choice(["federated", "benchmark", "train"])),
            "start": int(rng.integers(-2, 5)),
            "stop": int(rng.choice([3, 6, 10**13])),
        }
    if kind < 0.15:
        return str(rng.choice(["weights", "state", "release", "_labels", "batch"])), {}
    plan: Any = [random_share(rng) for _ in range(int(rng.integers(0, 4)))]
    if kind < 0.4:
        return "encode_part", {
            "number": number,
            "progress": random_number(rng),
            "plan": plan,
            "part": int(rng.choice([0, 1, 2], p=[0.8, 0.1, 0.1])),
            "parts": int(rng.choice([1, 2, 3, TOY.batch])),
        }
    return "step", {
        "number": number if rng.random() < 0.8 else int(rng.integers(-3, 3)),
        "progress": random_number(rng),
        "gradient": None,
        "plan": plan if rng.random() < 0.95 else None,
    }


def test_a_thousand_asks_of_the_worst_server_are_all_priced_and_written_down(
    tmp_path: Path,
) -> None:
    """No data leave without a price in the audit log, and the sum of prices is bounded."""
    rng = np.random.default_rng(0)
    uploads, refusals = 0, 0
    for number in range(20):
        node = Node(tmp_path / str(number), {"max-epsilon": 1.0})
        for process in range(5):
            node.begin(run=f"run-{process % 2}", state_round=int(rng.integers(0, 2)))
            for step in range(10):
                lines = len(node.audit())
                before, charged = node.client.epsilon or 0.0, node.releases
                method, arguments = random_ask(rng, step)
                outcome = node.ask(method, **arguments)
                entry = node.audit()[-1]
                assert len(node.audit()) == lines + 1
                assert entry["exchange"] == method
                if outcome.reply is None:
                    refusals += 1
                    assert entry["refused"] == outcome.error
                tensors = _tensors(outcome.reply)
                nbytes = sum(t.numel() * t.element_size() for t in tensors)
                assert nbytes == entry.get("bytes", 0)
                after = node.client.epsilon or 0.0
                assert before <= after <= 1.0
                if tensors:
                    uploads += 1
                    assert all(t.isfinite().all() for t in tensors)
                    # Epsilon is that of the record that spent most; every upload is charged.
                    assert entry["epsilon"] == after
                    assert node.releases == charged + len([s for s in entry["share"] if s])
            node.end(finish=False)
        assert json.dumps(node.audit())
    assert uploads > 50
    assert refusals > 200


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for part in value.values() for t in _tensors(part)]
    return [t for part in value for t in _tensors(part)] if isinstance(value, list) else []
