"""The wait policy of this process's OpenMP threads.

By default a thread that has finished its part of an operation spins until the others have finished.
If another program needs a core, spinning takes it from the thread being waited for, and a step
takes several times as long (docs/performance.md). Spinning briefly and then sleeping costs next to
nothing on an idle machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

POLICY: Mapping[str, str] = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}
"""Variables that OpenMP libraries read from the environment, once, when torch loads them.

Spins are iterations of a loop in libgomp, some microseconds in total: without any, a step on an
idle machine takes a tenth longer.
"""


def wait_passively() -> bool:
    """Have the threads of this process and its child processes sleep while they wait.

    Changes nothing if the environment already has one of these variables, or if torch has been
    imported, when it is too late.

    Returns
    -------
    Whether the environment was changed.
    """
    if "torch" in sys.modules or any(name in os.environ for name in POLICY):
        return False
    os.environ.update(POLICY)
    return True
