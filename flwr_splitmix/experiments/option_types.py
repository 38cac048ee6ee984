"""The numeric options of methods whose values lie on a scale, by name.

They are listed, because to ask the constructors would load torch, which is not needed to list and
show experiments. A test compares the list with the constructors' type hints.
"""

from __future__ import annotations

REAL_VALUED = frozenset(
    {
        "alpha", "beta", "calibration_lr", "clip_norm", "delta", "eta", "kappa", "lam",
        "max_amplification", "max_distortion", "max_leak", "ratio", "sigma_s", "sigma_y",
        "strength", "support_scale",
    }
)  # fmt: skip
"""Options for which 6 and 6.0 are the same value. The ids of cells depend on it: a name that is
added or taken away changes the ids of those whose options have a whole number there."""
