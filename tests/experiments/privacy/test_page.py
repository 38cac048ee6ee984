"""Pages: tables and findings are generated from cells, and from nothing else."""

from __future__ import annotations

from pathlib import Path

from flwr_splitmix.attacks.catalogue import image_attacks
from flwr_splitmix.experiments.privacy.columns import COLUMNS
from flwr_splitmix.experiments.privacy.holding import holding
from flwr_splitmix.experiments.privacy.matrices import TEXTS
from flwr_splitmix.experiments.privacy.page import KINDS, findings, matrix_block
from flwr_splitmix.experiments.privacy.results import Result
from tests.experiments.privacy.test_matrix import DECODER, keep, place_in


def test_blocks_are_written_of_the_cells_that_there_are(tmp_path: Path) -> None:
    assert matrix_block("matrix", "smoke PSL", tmp_path) is None
    keep(place_in(tmp_path), "PSL", DECODER, 0, value=0.0123)
    blocks = {kind: matrix_block(kind, "smoke PSL", tmp_path) or "" for kind in KINDS[:2]}
    assert " | 0.0123 [0.04, 0.06] / 0.07 |\n" in blocks["matrix"]
    assert blocks["findings"].startswith("- `PSL`: images are rebuilt with MSE 0.0123")
    assert matrix_block("matrix", "smoke CutMixSL", tmp_path) is None


def test_the_strongest_attack_that_counts_is_told() -> None:
    def result(
        attack: str, value: float, passed: bool = True, metric: str = "MSE", around: float = 0.0
    ) -> Result:
        floor = 0.5 if metric == "AUC" else 0.07
        ends = (value - around, value + around)
        return Result("PSL", attack, "server", metric, value, *ends, floor, passed, 1)

    text = findings(
        [
            result("linear", 0.001, passed=False),
            result("decoder", 0.02),
            result("match", 0.05),
            result("membership", 0.6, metric="AUC"),
        ]
    )
    assert "`PSL:decoder`" in text
    assert "linear" not in text
    assert "membership is told with AUC 0.6" in text
    assert "no better" not in text
    assert "no better than without the releases" in findings([result("decoder", 0.08)])
    near = result("decoder", 0.068, around=0.005)  # the interval contains the floor
    assert "no better than without the releases" in findings([near])
    assert "nothing that counts was run" in findings([result("decoder", 0.01, passed=False)])


def test_of_methods_that_hold_the_most_useful_is_first() -> None:
    def result(method: str, attack: str, value: float | None, passed: bool = True) -> Result:
        metric = "token accuracy" if value is not None else "not applicable"
        return Result(method, attack, "server", metric, value, value, value, 0.01, passed, 1)

    def of(method: str, utility: float, sip: float, keys: float | None) -> list[Result]:
        fact = Result(method, "none", "none", "Matthews correlation", utility, seeds=1)
        return [fact, result(method, "sip", sip), result(method, "key-search", keys)]

    leaks = [*of("USplitSL", 0.5, 0.7, None), *of("MixGuard-k3", 0.4, 0.1, 0.9)]
    assert holding(leaks, TEXTS) == (
        "Of each of the 2 methods that were attacked in every way, an attack reads 0.2 of the "
        "words or more."
    )
    unfinished = Result("SnDSL", "sip", "server", "token accuracy", 0.0, 0.0, 0.0, 0.01, True, 1)
    text = holding(
        [*leaks, *of("Dull", 0.1, 0.0, None), *of("Good", 0.3, 0.15, 0.19), unfinished], TEXTS
    )
    assert text == (
        "Of the 4 methods that were attacked in every way, these let no attack read 0.2 of the "
        "words, the most useful first: `Good` (Matthews correlation 0.3; `key-search` reads 0.19), "
        "`Dull` (Matthews correlation 0.1; `sip` reads 0)."
    )
    # An attack that also fails on the plain U shape does not count as evidence that a method holds.
    weak = [
        Result("Dull", "none", "none", "Matthews correlation", 0.1, seeds=1),
        result("Dull", "sip", 0.0, passed=False),
    ]
    assert holding(weak, TEXTS).startswith("No method was attacked in every way")


def test_every_column_has_an_attack_of_that_name() -> None:
    assert {column.attack for column in COLUMNS} <= image_attacks().keys()
