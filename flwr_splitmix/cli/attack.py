"""`splitmix attack`: what can be read from what a server receives."""

from __future__ import annotations

import typer

from flwr_splitmix.cli.attack_matrix import matrix

attack = typer.Typer(name="attack", help="Attacks on what a server receives.")
attack.add_typer(matrix)


@attack.callback()
def _group() -> None:
    """Attack what a server receives."""
