"""The epsilon of a run: where its metrics have it, and what it covers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr_splitmix.methods import BY_NAME

_NOT_UPLOADED = (
    "gradients sent to clients, lower segments that are averaged or exported, or what a record did "
    "to the lower segment (docs/privacy.md of flwr-splitmix)"
)

_UPLOADS = f"a client's uploads about one record; not {_NOT_UPLOADED}"

_MIXTURES = (
    "mixtures of clients' uploads, about one record of a client, if another party than the server "
    f"mixes; not single uploads, {_NOT_UPLOADED}"
)

_OWN = "what the clients' own method counts"


def epsilon_of(row: Mapping[str, Any]) -> float | None:
    """Return the epsilon after a round, of the client that spent most; None without accounting.

    A ledger of uploads writes the column "epsilon". In the U shape clients report their own, of
    which the largest is in "train_epsilon".
    """
    ledger: float | None = row.get("epsilon")
    reported: float | None = row.get("train_epsilon")
    return reported if ledger is None else ledger


def counts_mixtures(config: Mapping[str, Any]) -> bool:
    """Return whether a run of this configuration has a ledger of mixtures, if it has one."""
    return bool(config.get("trusted-mixer") or config.get("link-via"))


def epsilon_facts(row: Mapping[str, Any], strategy: Any, *, mixtures: bool) -> dict[str, Any]:
    """Return the epsilon after a round as entries of a summary.

    Parameters
    ----------
    strategy
        Name of the run's strategy, as in its configuration; None if that has none.
    mixtures
        Whether the run's ledger counts mixtures, not each upload.

    Returns
    -------
    "epsilon", see `epsilon_of`, and "epsilon_covers": in words, what it covers and what not. Both
    are None if no epsilon is accounted for.
    """
    epsilon = epsilon_of(row)
    if epsilon is None:
        return {"epsilon": None, "epsilon_covers": None}
    if row.get("epsilon") is not None:
        return {"epsilon": epsilon, "epsilon_covers": _MIXTURES if mixtures else _UPLOADS}
    method = BY_NAME.get(str(strategy))
    return {"epsilon": epsilon, "epsilon_covers": (method and method.epsilon) or _OWN}
