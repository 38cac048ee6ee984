"""TOML files and values, with keys and types as Flower takes them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

PLAIN = (bool, int, float, str)
"""The types of values that Flower takes in a run configuration."""


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML.

    Raises
    ------
    ValueError
        If it is none, has a number that is too long, or is nested too deeply.
    """
    try:
        described = tomllib.loads(text)
        flatten(described)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return described


def flatten(config: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Flatten nested tables of a configuration to keys with dots, as Flower does."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{before}{key}.")
        else:
            flat[before + key] = value
    return flat
