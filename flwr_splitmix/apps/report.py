"""What a check of an app finds: problems, remarks, facts, and advice on cuts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from flwr_splitmix.segments.advice import CutCosts, Setting


@dataclass(frozen=True)
class MethodBytes:
    """What methods that send equally much exchange with one client in a step, on average.

    Parameters
    ----------
    strategies
        Their names.
    uplink_bytes, downlink_bytes
        With the options and the cut of the configuration.
    uplink_share, downlink_share
        Of what PSL exchanges.
    step_s
        Predicted seconds of a step.
    """

    strategies: Sequence[str]
    uplink_bytes: int
    downlink_bytes: int
    uplink_share: float
    downlink_share: float
    step_s: float


@dataclass(frozen=True)
class Advice:
    """What every cut of a model would cost, and what every method would send.

    Parameters
    ----------
    setting
        The network and the speeds for which steps are predicted.
    measured
        The names of those numbers of it that were measured here.
    notes
        What must be known to read it.
    """

    setting: Setting
    cuts: Sequence[CutCosts] = ()
    methods: Sequence[MethodBytes] = ()
    measured: Sequence[str] = ()
    notes: Sequence[str] = ()


@dataclass
class Report:
    """What a check has found.

    Parameters
    ----------
    app, nodes
        The app's name, and the number of SuperNodes it was checked for.
    nodes_known
        Whether that number is the user's; else it is Flower's default, and nothing is said of it.
    problems
        Sentences: with any of them a run would fail.
    remarks
        Sentences about what a run would do that its user may not expect.
    facts
        What the run is made of, by name.
    """

    app: str
    nodes: int
    nodes_known: bool = True
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    advice: Advice | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing was found that would end a run."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
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
