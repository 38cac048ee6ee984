"""`splitmix show`: prints one run in full, as tables or as JSON."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from flwr_splitmix.cli.terminal import (
    RunDirectory,
    console,
    table,
    text,
)
from flwr_splitmix.files.json_values import strict_json
from flwr_splitmix.methods import BY_NAME, MIXING
from flwr_splitmix.runs import Row, Run
from flwr_splitmix.runs.attack_recording import recording_of
from flwr_splitmix.runs.reports.differences import in_words
from flwr_splitmix.runs.reports.facts import epsilon_in_words, facts_of, rounds_of
from flwr_splitmix.runs.reports.words import duration, number, percent, size
from flwr_splitmix.runs.selection import select_one
from flwr_splitmix.words import are, counted

_SHOWN_ROUNDS = 12

_OPTIONS = (*MIXING, "dataset", "partition", "batch-size", "lr")
"""Configuration keys shown in the table, besides those on noise; the JSON has all keys."""

_UPLOADS = ("sigma-s", "sigma-y", "clip", "clip-norm", "smashed-noise", "label-noise")
"""Keys on the noise of uploads at the cut, shown if there is any."""


class RunFormat(StrEnum):
    """Output format of `splitmix show`."""

    table = "table"
    json = "json"


def show(
    run: Annotated[
        str, typer.Argument(metavar="[RUN|latest]", help="A run's id, or its label.")
    ] = "latest",
    format: Annotated[  # noqa: A002 - the option's name
        RunFormat, typer.Option("--format", help="Tables, or one JSON object.")
    ] = RunFormat.table,
    run_dir: RunDirectory = None,
) -> None:
    """Show a run's summary and its evaluated rounds; JSON has all rounds and the config."""
    opened = select_one(run, run_dir)
    if format is RunFormat.json:
        everything = {
            "id": opened.id,
            "status": opened.status,
            "error": opened.failure if opened.status == "failed" else None,
            "config": opened.config,
            "summary": opened.summary,
            "metrics": opened.rows,
        }
        if (recording := recording_of(opened)) is not None:
            everything["recording"] = {"steps": recording.steps, "bytes": recording.nbytes}
        typer.echo(strict_json(everything, indent=2))
        return
    out = console()
    _print_summary(opened, out)
    _print_rounds(opened.rows, out)


def _print_summary(run: Run, out: Console) -> None:
    facts = facts_of(run)
    listing = table("run", run.id)
    listing.add_row("status", run.status)
    if run.status == "failed":
        listing.add_row("error", run.failure)
    if facts.get("stopped"):
        listing.add_row("stopped", text(facts["stopped"]))
    if run.label:
        listing.add_row("label", run.label)
    for name in ("strategy", "model", "clients"):
        listing.add_row(name, text(facts.get(name)))
    if options := in_words(run.config, _options(run)):
        listing.add_row("options", options)
    listing.add_row("rounds", rounds_of(run).replace("/", " of "))
    listing.add_row("steps", text(facts.get("steps")))
    kind = facts.get("evaluation")
    listing.add_row("top-1", percent(facts.get("top1")) + (f" ({text(kind)})" if kind else ""))
    for name in sorted(n for n in facts if n.startswith("eval_") and n != "eval_loss"):
        listing.add_row(name.removeprefix("eval_") + " (evaluation)", number(facts[name], 4))
    listing.add_row("loss", number(facts.get("loss"), 4))
    if facts.get("epsilon") is not None:
        listing.add_row("epsilon", _epsilon(facts, run.config.get("delta")))
    if facts.get("privacy"):
        listing.add_row("privacy", str(facts["privacy"]))
    listing.add_row("uplink", _uplink(facts.get("uplink_bytes"), facts.get("uplink_bytes_psl")))
    listing.add_row("downlink", size(facts.get("downlink_bytes")))
    listing.add_row("wall time", duration(facts.get("wall_s")))
    listing.add_row("seed", text(facts.get("seed")))
    if (recording := recording_of(run)) is not None:
        listing.add_row(
            Text("RECORDED", style="bold red"),
            Text(
                f"{counted(recording.steps, 'step')} of what its server sees, "
                f"{size(recording.nbytes)}, {are(recording.steps)} on this disk (splitmix attack "
                f"forget {run.id})",
                style="red",
            ),
        )
    versions = facts.get("versions") or {}
    if versions:
        listing.add_row("versions", ", ".join(f"{name} {versions[name]}" for name in versions))
    out.print(listing)


def _options(run: Run) -> list[str]:
    """Return the keys of `_OPTIONS` and on noise that the run's method has.

    A strategy that is not in the catalogue may have any.
    """
    config = run.config
    method = BY_NAME.get(str(config.get("strategy")))
    method_keys = MIXING if method is None else method.keys
    if method is not None and method.shape == "U":
        noise = method.noise
    else:
        noise = _UPLOADS if config.get("sigma-s") or config.get("sigma-y") else ()
    mixing = [key for key in MIXING if key in method_keys]
    return [*mixing, *noise, *(key for key in _OPTIONS if key not in MIXING)]


def _epsilon(facts: Row, delta: Any) -> str:
    statement = epsilon_in_words(facts, delta)
    return (
        statement
        if math.isfinite(float(facts["epsilon"]))
        else f"{statement} (the run's log gives the reason)"
    )


def _uplink(uplink: float | None, psl: float | None) -> str:
    if uplink is None or not psl:
        return size(uplink)
    return f"{size(uplink)} ({100 * uplink / psl:.1f} % of PSL's {size(psl)})"


def _print_rounds(rows: list[Row], out: Console) -> None:
    evaluated = [row for row in rows if row["accuracy"] is not None]
    if not evaluated:
        out.print("\nno round has been evaluated yet")
        return
    shown = evaluated[-_SHOWN_ROUNDS:]
    left_out = f", the last {len(shown)}" if len(shown) < len(evaluated) else ""
    kinds = list(dict.fromkeys(text(row["accuracy_kind"]) for row in shown))
    rounds = counted(len(evaluated), "evaluated round")
    listing = table(
        ">round", ">loss", ">eval loss", ">top-1", ">seconds", ">steps/s",
        ">uplink", ">alive", ">failed", "slowest", *(["evaluation"] if len(kinds) > 1 else []),
        title=f"\n{rounds}{left_out} (top-1: {', '.join(kinds)})",
    )  # fmt: skip
    for row in shown:
        listing.add_row(
            str(row["round"]),
            number(row["loss"], 4),
            number(row["eval_loss"], 4),
            percent(row["accuracy"]),
            number(row["seconds"], 2),
            number(row["steps_per_second"], 1),
            size(row["uplink_bytes"]),
            text(row["clients_alive"]),
            text(row["clients_failed"]),
            text(row["slowest_node"]),
            *([text(row["accuracy_kind"])] if len(kinds) > 1 else []),
        )
    out.print(listing)
