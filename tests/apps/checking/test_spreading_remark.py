"""`splitmix check` says before which cuts a patch spreads, so that no mask hides it."""

from __future__ import annotations

from pathlib import Path

import pytest

from flwr_splitmix.apps.checking.app import check_app
from tests.apps.app_config import APPS


@pytest.mark.parametrize(
    ("keys", "remark"),
    [
        ("strategy='CutMixSL' cut-at='blocks.0'", "at least 17 of 17 tokens tell of parts"),
        ("strategy='DPCutMixSL' cut-at='blocks.0' sigma-s=1.0 sigma-y=1.0", "17 of 17 tokens"),
        ("strategy='CutoutSL' model='lenet5'", "of 25 tokens tell of parts"),
        ("strategy='CutMixSL'", ""),
        ("strategy='PSL' cut-at='blocks.0'", ""),
        ("strategy='MixupSL' cut-at='blocks.0'", ""),
    ],
)
def test_a_cut_before_which_a_patch_spreads_is_remarked_with_masks(keys: str, remark: str) -> None:
    config = f"depth=2 patch-size=8 {keys}" if "lenet" not in keys else keys
    report = check_app(APPS / "vision", [config], here=Path.cwd(), nodes=4)
    assert not report.problems
    remarks = [each for each in report.remarks if "let a patch spread" in each]
    assert len(remarks) == bool(remark)
    assert remark in "".join(remarks)
