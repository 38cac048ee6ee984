"""`splitmix audit-log`: a node's own record of the data that has left it."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from flwr_splitmix.cli.terminal import console, fail, print_sentence, table, text
from flwr_splitmix.files.json_values import strict_json
from flwr_splitmix.runs.reports.words import size
from flwr_splitmix.words import counted, epsilon_text

_SEGMENT = "lower-segment."
"""Beginning of the names of a lower segment's arrays, which leave to be averaged."""

_EVALUATIONS = ("federated", "benchmark")
"""Kinds of evaluations that send test data: the node's own, and those of the benchmark."""

_REQUIRED_KEYS: dict[str, Any] = {"time": int | float, "run": str, "round": int, "exchange": str}
_OPTIONAL_KEYS: dict[str, Any] = {
    "sent": list, "bytes": int, "epsilon": int | float | str | None, "refused": str, "to": str,
    "kind": str, "start": int, "stop": int,
}  # fmt: skip
"""Types of the keys that every line has, and of those that some lines have."""

_MAX_VALUES = {
    "time": 2**37, "bytes": 2**53, "epsilon": sys.float_info.max, "start": 2**53, "stop": 2**53,
}  # fmt: skip
"""Largest numbers; the time is in seconds, of the year 6325. The round comes from a message."""


def audit_log(
    path: Annotated[Path, typer.Argument(help="A node's audit-N.jsonl, in its state-dir.")],
    output: Annotated[
        Literal["table", "json"],
        typer.Option("--format", help="table: a summary; json: every line."),
    ] = "table",
) -> None:
    """Verify and print a node's audit log; a changed line is an error."""
    entries = _checked_lines(path)
    if output == "table":
        _print_summary(entries)
        return
    try:
        typer.echo(strict_json(entries, indent=2))
    except RecursionError:
        fail(f"{path} cannot be printed: it is nested too deeply")


def _checked_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a node's audit log; end the command if they are not."""
    from flwr_splitmix.privacy.journal import JournalError, is_cut, read_journal, reason_of

    try:
        entries, cut = read_journal(path), is_cut(path)
    except OSError as error:
        print_sentence(f"{path} cannot be read: {reason_of(error)}", err=True)
        raise typer.Exit(1) from error
    except JournalError as error:
        print_sentence(str(error), err=True)
        raise typer.Exit(1) from error
    if any("exchange" not in entry for entry in entries) or (cut and not entries):
        print_sentence(
            f"{path} is not an audit log: a node's is audit-N.jsonl in its state-dir", err=True
        )
        raise typer.Exit(1)
    for number, entry in enumerate(entries, 1):
        if wrong := _wrong_key(entry):
            fail(f"line {number} of {path} is not a line of an audit log: its {wrong} cannot be")
    if cut:
        print_sentence(
            f"the last line of {path} is unfinished and not shown: its node was stopped while it "
            "wrote it, or somebody cut the file",
            err=True,
        )
    return entries


def _print_summary(entries: list[dict[str, Any]]) -> None:
    rounds: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for entry in entries:
        rounds.setdefault((entry["run"], entry["round"]), []).append(entry)
    listing = table("run", ">round", "until", "what left", ">sent", ">epsilon", ">rejected")
    for (run, server_round), lines in rounds.items():
        listing.add_row(run, str(server_round), *_line(lines))
    console().print(listing)
    reasons = Counter(entry["refused"] for entry in entries if "refused" in entry)
    for reason, count in reasons.most_common():
        print_sentence(f"rejected {counted(count, 'time')}: {reason}")
    _print_addresses([entry for entry in entries if entry.get("to")])
    sent_bytes = sum(entry.get("bytes", 0) for entry in entries)
    typer.echo(
        f"{counted(len(entries), 'line')}, {size(sent_bytes)} sent, "
        f"{counted(reasons.total(), 'request')} rejected, epsilon {_epsilon(entries)}"
    )


def _print_addresses(addressed: list[dict[str, Any]]) -> None:
    """Print how much was sent to each address."""
    to: Counter[str] = Counter()
    for entry in addressed:
        if "bytes" in entry:
            to[entry["to"]] += entry["bytes"]
    for address, nbytes in to.items():
        print_sentence(f"{size(nbytes)} sent to {address}")
    for address in dict.fromkeys(entry["to"] for entry in addressed if entry["to"] not in to):
        print_sentence(f"nothing sent to {address} (rejected)")


def _wrong_key(entry: dict[str, Any]) -> str:
    """Return the first key with a value that no node writes; "" if there is none."""
    for key, kind in {**_REQUIRED_KEYS, **_OPTIONAL_KEYS}.items():
        if key not in entry and key in _OPTIONAL_KEYS:
            continue
        value = entry.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            return key
        if (
            key in _MAX_VALUES
            and isinstance(value, int | float)
            and not 0 <= value <= _MAX_VALUES[key]
        ):
            return key
    items = entry.get("sent", [])
    if all(isinstance(item, dict) and isinstance(item.get("name"), str) for item in items):
        return ""
    return "sent"


def _line(entries: list[dict[str, Any]]) -> list[str]:
    counts: Counter[str] = Counter()
    kind = ""
    for entry in entries:
        if "refused" in entry:
            continue
        if entry["exchange"] != "decode_test":  # of generated texts, it sends more of the same
            kind = entry.get("kind", "")
        of = f" ({kind} test)" if kind in _EVALUATIONS else ""
        counts.update(f"{item['name']}{of}" for item in entry.get("sent", ()) if "shape" in item)
    arrays = [name for name in counts if name.startswith(_SEGMENT)]  # one for each of its weights
    number = sum(counts.pop(name) for name in arrays)
    contents = [f"{count} x {name}" for name, count in counts.items()]
    if arrays:
        contents.append(f"{_SEGMENT[:-1]} ({counted(number, 'array')})")
    return [
        datetime.fromtimestamp(entries[-1]["time"]).strftime("%Y-%m-%d %H:%M:%S"),
        ", ".join(contents) or "nothing",
        size(sum(entry.get("bytes", 0) for entry in entries)),
        _epsilon(entries),
        str(sum("refused" in entry for entry in entries)),
    ]


def _epsilon(entries: list[dict[str, Any]]) -> str:
    epsilons = [entry["epsilon"] for entry in entries if entry.get("epsilon") is not None]
    if not epsilons:
        return "-"
    newest = epsilons[-1]
    return text(newest if isinstance(newest, str) else epsilon_text(newest))
