"""Findings of an app's check: problems, remarks, facts, and advice on cuts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from flwr_splitmix.segments.advice import CutCosts, Setting


@dataclass(frozen=True)
class MethodBytes:
    """Average traffic of one client per step, for strategies whose traffic is equal.

    Parameters
    ----------
    strategies
        Names of the strategies.
    uplink_bytes, downlink_bytes
        Bytes with the configuration's options and cut.
    uplink_share, downlink_share
        These bytes divided by PSL's.
    step_s
        Predicted duration of a step in seconds.
    """

    strategies: Sequence[str]
    uplink_bytes: int
    downlink_bytes: int
    uplink_share: float
    downlink_share: float
    step_s: float


@dataclass(frozen=True)
class Advice:
    """Costs of every cut of a model, and traffic of every method.

    Parameters
    ----------
    setting
        Network and speeds for which steps are predicted.
    cuts, methods
        The costs of the cuts, and the traffic of the methods.
    measured
        Names of the setting's values that were measured on this machine.
    notes
        Sentences that explain the numbers.
    """

    setting: Setting
    cuts: Sequence[CutCosts] = ()
    methods: Sequence[MethodBytes] = ()
    measured: Sequence[str] = ()
    notes: Sequence[str] = ()


@dataclass
class Report:
    """Findings of a check.

    Parameters
    ----------
    app, nodes
        Name of the app, and number of SuperNodes for which it was checked.
    nodes_known
        Whether findings that depend on this number are reported.
    simulated
        Whether the run is known to be a simulation.
    problems
        Sentences about problems, any of which would make a run fail.
    remarks
        Sentences about behaviour that the user may not expect.
    facts
        Properties of the run, by name.
    advice
        Advice on cuts and methods, if requested.
    """

    app: str
    nodes: int
    nodes_known: bool = True
    simulated: bool = False
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    advice: Advice | None = None

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the findings as plain values."""
        advice = self.advice
        return {
            "ok": self.ok,
            "app": self.app,
            "nodes": self.nodes,
            "problems": self.problems,
            "remarks": self.remarks,
            "facts": self.facts,
            "setting": None if advice is None else asdict(advice.setting),
            "measured": [] if advice is None else list(advice.measured),
            "notes": [] if advice is None else list(advice.notes),
            "cuts": [] if advice is None else [cut.to_json() for cut in advice.cuts],
            "methods": [] if advice is None else [asdict(method) for method in advice.methods],
        }
