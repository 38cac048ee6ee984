"""The sections of a report on one run: summary, rounds, clients, bytes, privacy, configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from flwr_splitmix.runs.epsilon import epsilon_of
from flwr_splitmix.runs.metrics_file import Row
from flwr_splitmix.runs.reports.differences import as_text
from flwr_splitmix.runs.reports.facts import epsilon_in_words, facts_of, rounds_of
from flwr_splitmix.runs.reports.markup import bullets, folded, grid, paragraph, tag, tiles
from flwr_splitmix.runs.reports.words import NOTHING, count, duration, number, percent, size
from flwr_splitmix.runs.run import Run
from flwr_splitmix.words import counted, epsilon_text

_SLOWEST = 10
_MAX_FAILING = 50

_DIRECTIONS = {"up": "from a client", "down": "to a client"}
_PHASES = {"train": "training", "evaluate": "evaluation", "calibrate": "calibration"}


def summary(run: Run) -> str:
    """Return the run's state and totals."""
    facts = facts_of(run)
    state = tag("strong", escape(run.status), class_=run.status)
    state_line = tag("p", "State: ", state, escape(f". Run {run.id}."))
    failed = run.status == "failed"
    error = paragraph(f"It ended with an error: {run.failure}", "failed") if failed else ""
    stopped = paragraph(f"It was stopped: {why}") if (why := facts.get("stopped")) else ""
    kind = facts.get("evaluation")
    accuracy = percent(facts.get("top1"))
    return f"{state_line}{error}{stopped}" + tiles(
        [
            ("method", as_text(facts.get("strategy") or "")),
            ("model", as_text(facts.get("model") or "")),
            ("data", as_text(run.config.get("dataset") or "")),
            ("clients", number(facts.get("clients"), 0)),
            ("rounds", rounds_of(run).replace("/", " of ")),
            ("steps", count(facts.get("steps"))),
            (f"top-1 ({kind})" if kind else "top-1", accuracy),
            *(
                (name.removeprefix("eval_").replace("_", " "), number(value))
                for name, value in sorted(facts.items())
                if name.startswith("eval_") and value is not None
            ),
            ("training loss", number(facts.get("loss"))),
            ("uplink", size(facts.get("uplink_bytes"))),
            ("downlink", size(facts.get("downlink_bytes"))),
            ("time", duration(facts.get("wall_s"))),
            ("seed", number(facts.get("seed"), 0)),
        ]
    )


def rounds(rows: Sequence[Row]) -> str:
    """Return the table of rounds."""
    if not rows:
        return paragraph("No round is finished yet.")
    headings = [
        ">round", ">loss", ">eval loss", ">top-1", "accuracy", ">seconds", ">steps", ">steps/s",
        ">uplink", ">downlink", ">clients", ">failed", "slowest",
        *([">epsilon"] if any(epsilon_of(row) is not None for row in rows) else []),
    ]  # fmt: skip
    lines = [
        [
            str(row["round"]),
            number(row["loss"]),
            number(row["eval_loss"]),
            percent(row["accuracy"]),
            row["accuracy_kind"] or "",
            number(row["seconds"], 2),
            count(row["steps"]),
            number(row["steps_per_second"], 1),
            size(row["uplink_bytes"]),
            size(row["downlink_bytes"]),
            count(row["clients_alive"]),
            count(row["clients_failed"]),
            "" if row["slowest_node"] is None else str(row["slowest_node"]),
            *([_epsilon(row)] if ">epsilon" in headings else []),
        ]
        for row in rows
    ]
    table = grid(headings, lines, tall=len(lines) > 15)
    return folded(f"Rounds ({len(rows)})", table) if len(lines) > 60 else f"<h3>Rounds</h3>{table}"


def _epsilon(row: Mapping[str, Any]) -> str:
    epsilon = epsilon_of(row)
    return NOTHING if epsilon is None else epsilon_text(epsilon)


def clients(run: Run) -> str:
    """Return the slowest clients, and those that failed most, with the newest reasons."""
    title = "<h3>Slow and failed clients</h3>"
    records: Mapping[str, Any] = run.record.get("clients", {})
    if not records:
        return title + paragraph("The run has no record of its clients.", "soft")
    slow = sorted(records.items(), key=lambda item: -_mean_seconds(item[1]))[:_SLOWEST]
    table = grid(
        ["client", ">rounds", ">seconds a round", ">slowest of its round", ">failed"],
        [
            [
                client,
                count(record["rounds"]),
                number(_mean_seconds(record), 2),
                count(record["slowest"]),
                count(record["failed"]),
            ]
            for client, record in slow
        ],
        caption=f"The slowest of {len(records)} clients, by time in exchanges"
        if len(records) > _SLOWEST
        else "Clients, the slowest first, by time in exchanges",
    )
    failed = [(client, record) for client, record in records.items() if record["failed"]]
    if not failed:
        return title + table + paragraph("No client failed.")
    failed.sort(key=lambda item: -item[1]["failed"])
    named = bullets(
        f"client {client}, {_times(record['failed'])}; newest: "
        + "; ".join(f"round {number}: {reason}" for number, reason in record["failures"])
        for client, record in failed[:_MAX_FAILING]
    )
    left_out = len(failed) - _MAX_FAILING
    more = paragraph(f"{counted(left_out, 'more client')} failed.", "soft") if left_out > 0 else ""
    of_all = f"{len(failed)} of {counted(len(records), 'client')} failed:"
    return f"{title}{table}{paragraph(of_all)}{named}{more}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _mean_seconds(record: Mapping[str, Any]) -> float:
    return float(record["seconds"]) / max(1, int(record["rounds"]) + int(record["failed"]))


def messages(run: Run) -> str:
    """Return the bytes, and what the server saw: one line per kind of message."""
    facts = facts_of(run)
    up, psl = facts.get("uplink_bytes"), facts.get("uplink_bytes_psl")
    traffic = f"Training sent {size(up)} up and {size(facts.get('downlink_bytes'))} down"
    if up is not None and psl:
        traffic += (
            f"; up, that is {100 * up / psl:.1f} % of the {size(psl)} that PSL would have sent"
        )
    title = "<h3>Bytes, and what the server saw</h3>" + paragraph(f"{traffic}.")
    kinds = run.record.get("messages", {}).get("kinds", [])
    if not kinds:
        return title + paragraph("The run has no record of its messages.", "soft")
    lines = [
        [
            f"{_DIRECTIONS.get(kind['direction'], kind['direction'])}, "
            f"{_PHASES.get(kind['phase'], kind['phase'])}",
            ", ".join(f"{name}: {contents}" for name, contents in kind["holds"].items())
            or "nothing",
            count(kind["count"]),
            size(kind["bytes"]),
        ]
        for kind in kinds
    ]
    table = grid(["message", "what it holds (shapes of the first one)", ">number", ">bytes"], lines)
    averaged = any(row.get("update_norm_by_client") is not None for row in run.rows)
    besides = (
        "Besides, Flower's messages bring each client's weights to the server and back, once a "
        "round: they are averaged."
        if averaged
        else "Besides, Flower's messages carry the round; clients' weights are not averaged."
    )
    return title + table + paragraph(besides, "soft")


def privacy(run: Run, hides: str) -> str:
    """Return epsilon with the ledger's statement, and what the method hides from the server."""
    facts = facts_of(run)
    title = "<h3>Privacy</h3>"
    claim = paragraph(f"What the method hides from the server: {hides}.") if hides else ""
    if facts.get("epsilon") is None:
        return title + claim + paragraph("No epsilon is accounted for.")
    epsilon = paragraph(f"Epsilon {epsilon_in_words(facts, run.config.get('delta'))}.")
    words = facts.get("privacy")
    ledger = paragraph(f"The ledger of the client that spent most: {words}.") if words else ""
    return title + claim + epsilon + ledger


def configuration(run: Run) -> str:
    """Return all configuration keys, and the versions."""
    keys = grid(["key", "value"], [[key, as_text(run.config[key])] for key in sorted(run.config)])
    versions = (run.summary or {}).get("versions") or {}
    named_versions = ", ".join(f"{name} {version}" for name, version in versions.items())
    return folded(
        "Configuration and versions", paragraph(named_versions or "no versions yet"), keys
    )
