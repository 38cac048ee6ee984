"""The benchmark of attacks on images runs through, and goes on where it was stopped."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.image_attacks import main


def test_cells_are_measured_once_beside_what_was_measured_before(tmp_path: Path) -> None:
    out = tmp_path / "image_attacks.json"
    for cells in ("PSL / server / linear", "positions below"):
        main(["--quick", "--out", str(out), "--cells", cells])
    written = json.loads(out.read_text())
    linear, order = written["cells"].values()
    assert linear["mse"] < linear["earlier"] == 1e-13
    assert order["accuracy"] == order["earlier"] == 1
    assert written["floors"]["mean public image"] > 0.03
    assert written["settings"]["public"] == 200
    main(["--quick", "--out", str(out), "--cells", "PSL / server / linear"])
    assert json.loads(out.read_text())["cells"] == written["cells"]
