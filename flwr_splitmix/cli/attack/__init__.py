"""`splitmix attack`: attacks on what a server receives."""

from __future__ import annotations

import typer

from flwr_splitmix.cli.attack.listing import list_attacks
from flwr_splitmix.cli.attack.matrix import matrix
from flwr_splitmix.cli.attack.run import run_attack
from flwr_splitmix.cli.attack.show import forget, show

attack = typer.Typer(name="attack", help="Attacks on what a server receives.", no_args_is_help=True)
attack.command("list")(list_attacks)
attack.command("run")(run_attack)
attack.command()(show)
attack.command()(forget)
attack.add_typer(matrix)


@attack.callback()
def _group() -> None:
    """Attack what a server receives."""
