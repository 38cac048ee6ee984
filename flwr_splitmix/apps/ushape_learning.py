"""Which strategies of the U shape may be run with which parts learning."""

from __future__ import annotations

from flwr_splitmix.clients.ushape.step_exchanges import Learns
from flwr_splitmix.strategies import USHAPE_STRATEGIES


def check_learns(strategy: str, learns: Learns) -> None:
    """Raise ValueError if the strategy works only by training heads, and they do not learn."""
    if learns == "tail" and USHAPE_STRATEGIES[strategy].hiding.teaches_head:
        raise ValueError(
            f"learns is 'tail', but strategy is {strategy!r}, which works only by training heads; "
            "allowed with it is 'all'"
        )
