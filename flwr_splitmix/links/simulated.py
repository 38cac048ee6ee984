"""Whether this process is one of a simulation."""

from __future__ import annotations

import sys


def ray_runs_here() -> bool:
    """Return whether this process has joined a Ray session, as only a simulation's have."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
