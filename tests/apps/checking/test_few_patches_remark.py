"""`splitmix check` says where images have too few patches for a method that divides them."""

from __future__ import annotations

from pathlib import Path

import pytest

from flwr_splitmix.apps.checking.app import check_app
from tests.apps.app_config import APPS


@pytest.mark.parametrize(
    ("keys", "remark"),
    [
        ("model='vit_tiny_r_s16_p8_224'", "has 1 patch at the cut, and CutMixSFL divides patches"),
        ("patch-size=32", "CutMixSFL divides patches among 2 images, so that of some a mixture"),
        ("patch-size=32 strategy='VanillaCutMixSL'", "VanillaCutMixSL divides patches among 2 i"),
        ("patch-size=32 strategy='CutoutSL'", "CutoutSL leaves patches out, but never an image"),
        ("patch-size=32 strategy='InputCutMixSL'", "InputCutMixSL divides patches among 2 images"),
        ("patch-size=32 strategy='ShuffledCutMixSL'", "1 patch at the cut, and ShuffledCutMixSL"),
        ("patch-size=16 k=4", ""),
        ("patch-size=32 strategy='PSL'", ""),
        ("patch-size=32 strategy='MixupSL'", ""),
        ("model='vit_tiny_r_s16_p8_224' patch-size=1", ""),
    ],
)
def test_fewer_patches_than_images_of_a_mixture_are_remarked(keys: str, remark: str) -> None:
    """With the app's patch-size a hybrid has one patch, with which nothing mixes."""
    report = check_app(APPS / "vision", [f"depth=1 {keys}"], here=Path.cwd(), nodes=4)
    assert not report.problems
    remarks = [each for each in report.remarks if "gives more patches" in each]
    assert len(remarks) == bool(remark)
    assert remark in "".join(remarks)
