"""Columns of the matrix of texts: attacks by a server with base weights and public texts."""

from __future__ import annotations

from flwr_splitmix.experiments.privacy.kinds import AnyColumn

ATTACKS = (
    "vocabulary",
    "sip",
    "tag",
    "lamp",
    "bisr",
    "adaptive",
    "adaptive-online",
    "gradient-ratio",
    "blind-source",
    "key-search",
    "solve-batch",
)
"""Names in the catalogue of attacks on texts."""

TEXT_COLUMNS: tuple[AnyColumn, ...] = tuple(AnyColumn(attack, "server") for attack in ATTACKS)
"""All columns, in the order in which they are shown."""
