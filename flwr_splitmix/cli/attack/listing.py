"""`splitmix attack list`: all attacks, and what their adversaries need."""

from __future__ import annotations

from collections.abc import Iterable

import typer

from flwr_splitmix.cli.terminal import console, table
from flwr_splitmix.runs.reports.words import NOTHING


def list_attacks() -> None:
    """List all attacks: what each guesses, and what its adversary must have.

    Attacks on images work on recorded runs and on all runs of the vision app in the U shape,
    attacks on texts on all runs of the language app. "public releases" are public texts as clients
    that calibrate sent them; there are none of a client whose state is not on this machine.
    """
    from flwr_splitmix.attacks.catalogue import image_attacks, text_attacks
    from flwr_splitmix.extras import MissingExtraError, needed_for

    listing = table("attack", "of", "guesses", "needs", "settings")

    def add(name: str, of: str, goal: str, needs: Iterable[str], settings: int) -> None:
        listing.add_row(name, of, goal, ", ".join(sorted(needs)) or NOTHING, str(settings))

    for name, kind in image_attacks().items():
        add(name, "images", kind.goal, kind.needs, len(kind.settings))
    without = ""
    try:
        with needed_for("a list of the attacks on texts"):
            for name, reader in text_attacks().items():
                add(name, "texts", "words", reader.needs, 1)
    except MissingExtraError as missing:
        without = str(missing)
    console().print(listing)
    if without:
        typer.echo(without, err=True)
