"""The wait policy of this process's OpenMP threads.

By default a thread that has done its part of an operation spins until the others have done theirs.
As soon as another program wants one of the cores, the spinning takes it from the thread that is
waited for, and a step takes several times as long (docs/performance.md). Threads that spin a little
and then sleep cost an idle machine next to nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

POLICY: Mapping[str, str] = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}
"""What OpenMP libraries read from the environment, once, when torch loads them.

Spins are libgomp's turns of a loop, some microseconds in all: with none a step on an idle machine
takes a tenth longer.
"""


def wait_passively() -> bool:
    """Have the threads of this process, and of those that it starts, sleep while they wait.

    Changes nothing if the environment says anything of it already, or if torch has been imported:
    then it is too late.

    Returns
    -------
    Whether the environment was changed.
    """
    if "torch" in sys.modules or any(name in os.environ for name in POLICY):
        return False
    os.environ.update(POLICY)
    return True
