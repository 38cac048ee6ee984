"""The note on an attack with fewer victims than were requested."""

from __future__ import annotations

import typer

from flwr_splitmix.words import counted


def note_fewer_victims(requested: int, trained: int, held_out: int, noun: str) -> None:
    """Print how many victims (`noun`) there are of each kind, if fewer than `requested`."""
    counts = {"training": trained, "held-out": held_out}
    if few := [f"{count} {kind}" for kind, count in counts.items() if count < requested]:
        typer.echo(
            f"note: --victims asks for {counted(requested, noun)} of each kind; available: "
            f"{' and '.join(few)} ones",
            err=True,
        )
