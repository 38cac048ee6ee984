"""Results of attacks on disk, and what a paper has beside them."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from flwr_splitmix.attacks.results import (
    AttackResult,
    keep,
    kept_results,
    paper_note,
    title,
    write_rows,
)
from flwr_splitmix.attacks.scoring.intervals import mean_measure
from flwr_splitmix.files.writing import write_json


def kept(method: str, attack: str, **more: Any) -> AttackResult:
    return AttackResult(
        method=method, attack=attack, adversary="server", scale="cpu", measures=[], **more
    )


@pytest.mark.parametrize(("method", "error"), [("CutMixSFL", "0.0458"), ("SFL", "0.0091")])
def test_the_papers_number_names_its_method_and_its_adversary(method: str, error: str) -> None:
    note = paper_note(kept(method, "decoder"))
    assert error in note
    assert "the adversary 'upper only'" in note
    assert paper_note(kept(method, "linear")) == ""


def test_samples_are_parquet_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "samples.parquet"
    write_rows(path, [{"victim": 1, "mse": 0.5}, {"victim": 2, "mse": 0.25, "lpips": 0.1}])
    assert pq.read_table(path).to_pylist()[1] == {"victim": 2, "mse": 0.25, "lpips": 0.1}
    assert pq.read_table(path).to_pylist()[0]["lpips"] is None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


FIRST = kept("SFL", "linear", seed=0, client=0, victims=128)


@pytest.mark.parametrize(
    ("changed", "phrase"),
    [
        ({"scale": "smoke"}, "scale smoke, seed 0"),
        ({"seed": 5}, "scale cpu, seed 5"),
        ({"client": 1}, "client 1"),
        ({"victims": 2}, "victims 2"),
        ({"repeats": 3}, "repeats 3"),
        ({"public": "../pictures"}, "public ../pictures"),
        ({"assumed": ["lower"]}, "linear by server, given lower, on SFL"),
    ],
)
def test_a_result_does_not_replace_that_of_other_options(
    changed: dict[str, Any], phrase: str, tmp_path: Path
) -> None:
    other = FIRST.model_copy(update=changed)
    for result in (FIRST, other, other):
        keep(tmp_path, result)
    titles = {title(result, "a-run") for result in kept_results(tmp_path)}
    assert len(kept_results(tmp_path)) == 2
    assert titles == {title(FIRST, "a-run"), title(other, "a-run")}
    assert phrase in title(other, "a-run")
    assert phrase not in title(FIRST, "a-run")


def test_a_title_has_the_number_of_samples_that_were_attacked() -> None:
    """Recorded steps are attacked whole, and both kinds of victims count."""
    measures = [
        mean_measure("PSNR", np.ones(9), 0.0),
        mean_measure("MSE", np.ones(8), 0.0, main=True),
    ]
    told = title(FIRST.model_copy(update={"measures": measures}), "a-run")
    assert told.endswith("(a-run, client 0, scale cpu, seed 0, 8 samples, --victims 128)")
    equal = title(FIRST.model_copy(update={"measures": measures, "victims": 8}), "a-run")
    assert equal.endswith("seed 0, 8 samples)")


def test_public_data_of_similar_names_have_results_of_their_own(tmp_path: Path) -> None:
    for public in ("a/b", "a-b", "ä/b", "x" * 400):
        keep(tmp_path, FIRST.model_copy(update={"public": public}))
    assert {result.public for result in kept_results(tmp_path)} == {"a/b", "a-b", "ä/b", "x" * 400}


def test_a_result_of_an_older_version_is_read_and_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "linear-server").mkdir()
    older = {"method": "SFL", "attack": "linear", "adversary": "server", "measures": []}
    write_json(tmp_path / "linear-server" / "scores.json", older)
    keep(tmp_path, FIRST)
    assert [title(result, "a-run") for result in kept_results(tmp_path)] == [
        "linear by server on SFL (a-run)",
        "linear by server on SFL (a-run, client 0, scale cpu, seed 0, victims 128)",
    ]
