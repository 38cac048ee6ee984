"""Results of attacks on disk, and what a paper has beside them."""

from __future__ import annotations

import stat
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from flwr_splitmix.attacks.results import Kept, paper_note, write_rows


@pytest.mark.parametrize(("method", "error"), [("CutMixSFL", "0.0458"), ("SFL", "0.0091")])
def test_the_papers_number_names_its_method_and_its_adversary(method: str, error: str) -> None:
    note = paper_note(Kept(method, "decoder", "server", "cpu", [], None))
    assert error in note
    assert "the adversary 'upper only'" in note
    assert paper_note(Kept(method, "linear", "server", "cpu", [], None)) == ""


def test_samples_are_parquet_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "samples.parquet"
    write_rows(path, [{"victim": 1, "mse": 0.5}, {"victim": 2, "mse": 0.25, "lpips": 0.1}])
    assert pq.read_table(path).to_pylist()[1] == {"victim": 2, "mse": 0.25, "lpips": 0.1}
    assert pq.read_table(path).to_pylist()[0]["lpips"] is None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
