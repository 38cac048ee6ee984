"""Models that an older timm lacks, or makes otherwise, are left out with it (`make compat`)."""

from __future__ import annotations

import pytest
import timm
from packaging.version import Version

NEWEST = Version("1.0.31")
"""The version of timm for which these tests are written."""

MADE_OTHERWISE = {
    "pit_ti_224", "pit_ti_distilled_224", "swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256",
    "visformer_tiny", "vit_small_patch16_dinov3", "vit_small_patch16_rope_mixed_224",
}  # fmt: skip
"""Models that older versions build with fewer options, larger images or float32 only."""


@pytest.fixture(autouse=True)
def model_of_timm(request: pytest.FixtureRequest) -> None:
    """Skip the test of a model that this version of timm cannot make as the test does."""
    call = getattr(request.node, "callspec", None)
    name = call and call.params.get("name")
    if name is None or name == "lenet5" or Version(timm.__version__) >= NEWEST:
        return
    if name in MADE_OTHERWISE or not timm.is_model(name):
        pytest.skip(f"timm {timm.__version__} cannot make {name} as timm {NEWEST} does")
