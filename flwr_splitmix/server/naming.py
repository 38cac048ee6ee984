"""Clients, options, and the reasons why clients or the run failed, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flwr_splitmix.links import Clients
from flwr_splitmix.links.errors import public_sentence, sentence
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.errors import RunError
from flwr_splitmix.server.aggregation import AggregatorError
from flwr_splitmix.words import listed, without_folders


def name_clients(clients: Sequence[int]) -> str:
    """Return clients' names for a sentence, at most ten: "client 2", "clients 0, 1 and 2"."""
    return f"client{'' if len(clients) == 1 else 's'} {listed(clients)}"


def name_of_option(run: Run | None, option: str, key: str) -> str:
    """Return what the user calls an option: by a key of the run's configuration, if it has that.

    Parameters
    ----------
    option, key
        The argument's name, such as "min_nodes", and that of the apps' key.
    """
    return key if run is not None and key in run.config else option


def reasons(clients: Clients) -> str:
    """Return a sentence on why clients are missing; see `name_reasons`."""
    return name_reasons(clients.failures)


def evaluated_without(clients: Clients, *, any_left: bool) -> str:
    """Return a sentence on why clients are missing in an evaluation, or why there is none."""
    outcome = "the evaluation continued without" if any_left else "nothing was evaluated:"
    return f"{outcome} {reasons(clients)}"


def name_reasons(failures: Mapping[int, str]) -> str:
    """Return a sentence with at most five reasons why clients failed, each with its clients."""
    by_reason: dict[str, list[int]] = {}
    for client, reason in sorted(failures.items()):
        by_reason.setdefault(reason, []).append(client)
    clauses = [f"{name_clients(clients)}: {reason}" for reason, clients in [*by_reason.items()][:5]]
    more = sum(len(clients) for clients in [*by_reason.values()][5:])
    return "; ".join(clauses) + (f"; and {more} more" if more else "")


def public_failure(error: BaseException, *, recorded: bool) -> str:
    """Describe why a run failed in one line for other machines, without text that may hold data.

    Texts of this package's own errors are kept, without names of folders, unless they quote another
    error, other than of the system. An interruption has no text.

    Parameters
    ----------
    recorded
        Whether there is a run, with a log of its own.
    """
    if not isinstance(error, Exception):
        return type(error).__name__
    is_own = isinstance(error, (RunError, AggregatorError))
    if is_own and isinstance(error.__cause__, (OSError, type(None))):
        return without_folders(sentence(error))
    return public_sentence(error, "the run's log" if recorded else "the log")
