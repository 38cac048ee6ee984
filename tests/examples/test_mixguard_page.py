"""docs/mixguard.md: its program trains, and its figures are those of the kept measurements."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flwr_splitmix.attacks import Recorder
from flwr_splitmix.clients import MixGuardClient, TextSet
from tests.examples.programs import program

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "mixguard.md").read_text(encoding="utf-8")


def texts(seed: int, count: int = 8) -> TextSet:
    source = torch.Generator().manual_seed(seed)
    ids = [torch.randint(5, 60, (6,), generator=source) for _ in range(count)]
    return TextSet(ids, [row.clone() for row in ids])


def test_the_programs_of_the_page_train_and_read_what_was_recorded(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra `language`")
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    names: dict[str, Any] = {"FOLDER": str(tmp_path), "recorder": Recorder()}
    training = program("docs/mixguard.md", "def make_client")
    watched = training.replace(".trunk)\n", ".trunk, observers=[recorder])\n")
    assert watched != training
    exec(watched, names)
    tokenizer = SimpleNamespace(all_special_ids=[0, 1, 2])
    client = names["make_client"](texts(0), texts(1), tokenizer)
    assert isinstance(client, MixGuardClient)
    strategy = names["strategy"]
    strategy.fit([client], 1)
    (row,) = strategy.rows
    assert row["loss"] > 0
    # The columns that the page names.
    assert {"train_decode_error", "train_calibrated_error"} <= row.keys()
    assert "`train_decode_error`" in PAGE
    exec(program("docs/mixguard.md", "recorder.trace"), names)
    assert names["hidden"].shape[-1] == config.hidden_size


def test_figures_are_those_that_were_measured() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "mixguard_attacks.json").read_text())
    number = r" \| ([\d.]+)"
    rows = re.findall(rf"^\| (embedding|layer \d) \| (\d+){4 * number}", PAGE, re.M)
    assert len(rows) == 6
    for place, k, *figures in rows:
        measured = results["messages"][f"{place}, m=3, k={k}"]
        names = ("another text", "best message", "best FastICA", "best FastICA, mean known")
        for name, printed in zip(names, figures, strict=True):
            assert float(printed) == pytest.approx(measured[name]["median"], abs=0.0051), (
                place,
                name,
            )


def test_what_little_distortion_costs_is_what_was_measured() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "mixguard_attacks.json").read_text())
    number = r" \| ([\d.]+)"
    rows = re.findall(rf"^  \| (any|`max_d|`support_s)[^|]*{3 * number} \|$", PAGE, re.M)
    assert len(rows) == len(results["distortion"])
    for (_, *figures), measured in zip(rows, results["distortion"].values(), strict=True):
        names = ("decoding error", "best message", "picked message")
        for name, printed in zip(names, figures, strict=True):
            assert float(printed) == pytest.approx(measured[name]["median"], abs=0.0051)
    # Said in words.
    twice = [row["mixed twice"]["min"] for row in results["messages"].values()]
    assert min(twice) > 0.9995
    assert min(way["min"] for way in results["labels"].values()) == 1.0


def test_the_samplers_table_is_what_was_measured() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "samplers.json").read_text())
    names = ("decode error", "residual decoding", "leak", "amplification")
    rows = dict(re.findall(r"^\| ((?:rotated|convex|skewed)[^|:]*?) \| (.*) \|$", PAGE, re.M))
    assert rows.keys() == results["secrets"].keys()
    for secrets, cells in rows.items():
        for name, printed in zip(names, cells.split(" | "), strict=True):
            measured = results["secrets"][secrets][name]["median"]
            assert float(printed) == pytest.approx(measured, abs=0.0051), (secrets, name)
    union = results["masks"]["union"]["median"]
    assert f"costs {union:.2f}" in PAGE


def test_a_public_head_is_said_to_protect_nothing_and_the_probes_figures_are_those_measured() -> (
    None
):
    results = json.loads((ROOT / "benchmarks" / "results" / "head_probe.json").read_text())
    rows = results["words_read"]
    table = PAGE[PAGE.index("| read from | behind 1 layer") :].split("\n\n")[0].splitlines()[2:]
    assert len(table) == len(rows["1"])
    for line in table:
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        for depth, cell in zip(("1", "2", "4"), cells, strict=True):
            measured = 100 * rows[depth][name]["median"]
            assert float(cell.removesuffix(" %")) == pytest.approx(measured, abs=0.51)
    assert "which it does not have" not in PAGE
