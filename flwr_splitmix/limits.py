"""Limits of numbers that clients and servers send each other."""

from __future__ import annotations

LARGEST = 1e6
"""Largest weight, output or gradient that either side may send.

No model has values far beyond it, and finite numbers that are would overflow in the other's part.
"""

LARGEST_SIGMA = LARGEST / 10
"""Largest standard deviation of noise: with a larger one, many a number is beyond `LARGEST`."""
