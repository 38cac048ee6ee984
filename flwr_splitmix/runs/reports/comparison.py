"""Comparison of runs; runs that differ only in their seed form one group."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr_splitmix.runs.errors import RunError
from flwr_splitmix.runs.reports.differences import BOOKKEEPING, PLACE, as_text, differing, in_words
from flwr_splitmix.runs.reports.facts import facts_of
from flwr_splitmix.runs.run import Run
from flwr_splitmix.words import printable

MIXED_KINDS = "several kinds"


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed (and in `BOOKKEEPING` and `PLACE` keys).

    Parameters
    ----------
    name
        Its difference from the other groups, in words.
    values
        By key, the values that distinguish it.
    facts
        The facts of each run; see `facts_of`.
    """

    name: str
    values: dict[str, str]
    runs: tuple[Run, ...]
    facts: tuple[dict[str, Any], ...]

    @property
    def kinds(self) -> list[str]:
        """The kinds of accuracy of its runs, each once."""
        kinds = (f["evaluation"] for f in self.facts if f.get("evaluation"))
        return list(dict.fromkeys(map(printable, kinds)))

    def numbers(self, name: str) -> list[float]:
        """Return a fact of each run that has it; "inf", as in a summary, becomes infinity."""
        values = [facts.get(name) for facts in self.facts]
        return [float(value) for value in values if value is not None]


@dataclass(frozen=True)
class Comparison:
    """Groups of runs, in the order of their first runs.

    Parameters
    ----------
    keys
        The keys that differ between groups.
    kind
        The kind of all accuracies; "" without any.
    notes
        Warnings for the reader, one sentence each.
    """

    groups: tuple[Group, ...]
    keys: tuple[str, ...]
    kind: str
    notes: tuple[str, ...]

    @property
    def runs(self) -> list[Run]:
        """All runs."""
        return [run for group in self.groups for run in group.runs]


def compare(runs: Sequence[Run], *, mix_kinds: bool = False) -> Comparison:
    """Compare runs.

    Parameters
    ----------
    mix_kinds
        Whether accuracies of several kinds may be shown side by side.

    Raises
    ------
    RunError
        If accuracies are of several kinds without `mix_kinds`, or a run cannot be read.
    """
    facts = {run.id: facts_of(run) for run in runs}
    configs = {run.id: _whole_config(run, facts[run.id]) for run in runs}
    keys = differing(configs.values(), {*BOOKKEEPING, *PLACE, "seed"})
    members: dict[tuple[str | None, ...], list[Run]] = {}
    for run in runs:
        config = configs[run.id]
        settings = tuple(as_text(config[key]) if key in config else None for key in keys)
        members.setdefault(settings, []).append(run)
    groups = tuple(
        Group(
            _name(several, configs[several[0].id], keys),
            {
                key: value or ""
                for key, value in zip(keys, settings, strict=True)
                if value is not None
            },
            tuple(several),
            tuple(facts[run.id] for run in several),
        )
        for settings, several in members.items()
    )
    kinds = _kinds(groups)
    if len(kinds) > 1 and not mix_kinds:
        named = " and ".join(f"{run} has {kind!r}" for kind, run in kinds.items())
        raise RunError(
            f"accuracies of several kinds cannot be compared: {named}; compare those of one kind "
            "(evaluation='benchmark' has one for all methods), or give --mix-kinds to see them "
            "side by side"
        )
    kind = MIXED_KINDS if len(kinds) > 1 else next(iter(kinds), "")
    return Comparison(groups, tuple(keys), kind, tuple(_notes(groups, kinds)))


def _whole_config(run: Run, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's configuration, with further values that make a difference.

    They are the number of clients, unless each round has a sample of them, and for runs from Python
    the strategy.
    """
    config = dict(run.config)
    if facts.get("strategy"):
        config.setdefault("strategy", facts["strategy"])
    if facts.get("clients") and config.get("fraction-train", 1) == 1:
        config.setdefault("clients", facts["clients"])
    return config


def _name(runs: Sequence[Run], config: Mapping[str, Any], keys: Sequence[str]) -> str:
    labels = {run.label for run in runs}
    (label,) = labels if len(labels) == 1 else ("",)
    words = in_words(config, keys)
    if not keys and not label:
        return in_words(config, ["strategy"]) or runs[0].id
    return f"{label}: {words}" if label and words else label or words


def _kinds(groups: Sequence[Group]) -> dict[str, str]:
    """Return the kinds of accuracy, each with the first run that has it."""
    kinds: dict[str, str] = {}
    for group in groups:
        for run, facts in zip(group.runs, group.facts, strict=True):
            if facts.get("evaluation"):
                kinds.setdefault(printable(facts["evaluation"]), run.id)
    return kinds


def _notes(groups: Sequence[Group], kinds: dict[str, str]) -> list[str]:
    notes = []
    if len(kinds) > 1:
        notes.append(f"Accuracies are of several kinds, which do not compare: {', '.join(kinds)}.")
    for group in groups:
        for run in group.runs:
            if run.status != "finished":
                notes.append(
                    f"{run.id} has not finished ({run.status}); its figures are provisional."
                )
        seeds = Counter(str(facts.get("seed")) for facts in group.facts)
        if repeated := [seed for seed, count in seeds.items() if count > 1]:
            notes.append(
                f"{group.name}: more than one run of seed {', '.join(repeated)}. Runs of one seed "
                "are equal except for secrets, so they show nothing of the spread."
            )
        rounds = {facts.get("evaluated_round") for facts in group.facts}
        if len(rounds) > 1:
            notes.append(f"{group.name}: its runs were last evaluated in different rounds.")
    notes += _covered(groups)
    all_runs = [run for group in groups for run in group.runs]
    if where := [key for key in differing([run.config for run in all_runs]) if key in PLACE]:
        notes.append(f"They also ran in different places or ways: {', '.join(where)} differ.")
    notes += _versions(groups)
    return notes


def _versions(groups: Sequence[Group]) -> list[str]:
    """Return a note if runs were made with several versions of this package or torch."""
    run_versions = [
        facts["versions"] for group in groups for facts in group.facts if facts.get("versions")
    ]
    several = []
    for name in ("flwr-splitmix", "torch"):
        distinct = list(
            dict.fromkeys(printable(str(each[name])) for each in run_versions if name in each)
        )
        if len(distinct) > 1:
            several.append(f"{name} {' and '.join(distinct)}")
    return [f"They were made by several versions: {', '.join(several)}."] if several else []


def _covered(groups: Sequence[Group]) -> list[str]:
    """Return what the groups' epsilons cover, which differs between methods."""
    names: dict[str, list[str]] = {}
    for group in groups:
        covers = [facts["epsilon_covers"] for facts in group.facts if facts.get("epsilon_covers")]
        if covers and any(map(math.isfinite, group.numbers("epsilon"))):
            names.setdefault(covers[0], []).append(group.name)
    if len(names) == 1:
        return [f"Epsilon covers {covers}." for covers in names]
    return [f"{', '.join(of)}: epsilon covers {covers}." for covers, of in names.items()]


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean, and the sample standard deviation (n - 1) of two or more values, else None.

    If a value is not finite, the mean is infinity or NaN, and the deviation None.

    Raises
    ------
    ValueError
        If there are no values.
    """
    if not values:
        raise ValueError("there are no values to average")
    if any(not math.isfinite(value) for value in values):
        return math.inf if math.inf in values else math.nan, None
    mean = statistics.fmean(values)
    return mean, statistics.stdev(values) if len(values) > 1 else None
