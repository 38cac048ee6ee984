"""Stored results of an experiment: measurements at each place of its table.

They name every seed's cell, but neither the machine nor the time of a run.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar

from flwr_splitmix.experiments.experiment import Experiment, Place
from flwr_splitmix.experiments.privacy.kinds import AnySize
from flwr_splitmix.experiments.privacy.tables_of_papers import PrivacyExperiment
from flwr_splitmix.experiments.scales import Scale
from flwr_splitmix.experiments.verdicts import Verdict

AnyExperiment = Experiment | PrivacyExperiment


class _OfASeed(Protocol):
    @property
    def seed(self) -> int: ...

    @property
    def cell(self) -> str: ...


One = TypeVar("One", bound=_OfASeed)
"""Measurement at a place with one seed."""


@dataclass(frozen=True)
class Results(ABC, Generic[One]):
    """Measurements of an experiment at a scale on a data set.

    Parameters
    ----------
    dataset
        The data set's name, see `dataset_name`.
    measured_at
        Measurements by place, in the table's order; at each place in the order of the seeds.
    """

    experiment: AnyExperiment
    scale: Scale | AnySize
    dataset: str
    measured_at: Mapping[Place, tuple[One, ...]]

    @property
    def name(self) -> str:
        """Name of the result file: `cutmixsl-table2-cpu-fashion_mnist.json`."""
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", self.dataset)
        return f"{self.experiment.name}-{self.scale.name}-{plain}.json"

    @property
    def count(self) -> int:
        """Number of seeds, of all places together."""
        return sum(map(len, self.measured_at.values()))

    @property
    def seeds(self) -> list[int]:
        """The seeds with which any of it was run."""
        return sorted({one.seed for measured in self.measured_at.values() for one in measured})

    @property
    @abstractmethod
    def verdicts(self) -> list[Verdict]:
        """Verdicts on the paper's orderings, in order."""

    @abstractmethod
    def block(self, link: str) -> str:
        """Return the table in Markdown, with the orderings; `link` leads to the result file."""

    @abstractmethod
    def plain(self, one: One) -> dict[str, Any]:
        """Return the stored values of a seed, as plain JSON values."""

    def limited_to(self, current: Container[tuple[Place, str]]) -> Self:
        """Return the results in the table's order, without seeds of other cells.

        Parameters
        ----------
        current
            Pairs of a place of the table and the id of a cell that it has today.
        """
        remaining = {
            entry.place: tuple(
                one
                for one in self.measured_at.get(entry.place, ())
                if (entry.place, one.cell) in current
            )
            for entry in self.experiment.entries
        }
        return replace(self, measured_at={at: some for at, some in remaining.items() if some})

    def merged(self, newer: Self) -> Self:
        """Return both combined; where both have a seed at a place, `newer` takes precedence."""
        both = {
            entry.place: {
                one.seed: one
                for each in (self, newer)
                for one in each.measured_at.get(entry.place, ())
            }
            for entry in self.experiment.entries
        }
        return replace(
            self, measured_at={at: _sorted(seeds) for at, seeds in both.items() if seeds}
        )

    def to_json(self) -> str:
        """Return the text of the result file."""
        whole = {
            "experiment": self.experiment.name,
            "scale": self.scale.name,
            "dataset": self.dataset,
            "places": [
                {"row": row, "column": column, "seeds": [self.plain(one) for one in measured]}
                for (row, column), measured in self.measured_at.items()
            ],
        }
        return json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _sorted(by_seed: Mapping[int, One]) -> tuple[One, ...]:
    return tuple(by_seed[seed] for seed in sorted(by_seed))
