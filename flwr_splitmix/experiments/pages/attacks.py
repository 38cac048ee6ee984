"""Results of experiments on privacy: scores of attacks in cells of the matrix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr_splitmix.experiments.experiment import Place
from flwr_splitmix.experiments.pages.privacy_block import privacy_block
from flwr_splitmix.experiments.pages.results import Results
from flwr_splitmix.experiments.privacy import cells as matrix
from flwr_splitmix.experiments.privacy.kinds import AnySize
from flwr_splitmix.experiments.privacy.tables_of_papers import (
    PlaceScore,
    PrivacyExperiment,
    PrivacyTable,
    all_reached,
    table_of,
)
from flwr_splitmix.experiments.verdicts import Verdict


@dataclass(frozen=True)
class PrivacyResults(Results[PlaceScore]):
    """Scores of an experiment's attacks."""

    experiment: PrivacyExperiment
    scale: AnySize

    @property
    def table(self) -> PrivacyTable:
        """The results beside the paper's numbers, with verdicts on its claims."""
        place = matrix.Place(None, self.scale, self.dataset)
        return table_of(self.experiment, place, self.measured_at)

    @property
    def verdicts(self) -> list[Verdict]:
        """Verdicts on the paper's orderings, in order."""
        return [verdict for _, verdict, _ in self.table.claims]

    def block(self, link: str) -> str:
        """Return the table in Markdown, with the orderings; `link` leads to the result file."""
        return privacy_block(self.table, self.seeds, link)

    def plain(self, one: PlaceScore) -> dict[str, Any]:
        """Return the stored values of a seed, as plain JSON values."""
        values: dict[str, Any] = {"seed": one.seed, "cell": one.cell}
        if one.reason:
            return {**values, "reason": one.reason}
        return {**values, "value": one.value, "floor": one.floor}

    @classmethod
    def of_plain(
        cls,
        experiment: PrivacyExperiment,
        size: AnySize,
        dataset: str,
        seeds_at: Mapping[Place, Sequence[Mapping[str, Any]]],
    ) -> PrivacyResults:
        """Make results from stored values, without seeds of cells that places no longer have.

        Raises
        ------
        KeyError, TypeError
            If a value is missing, or a name is unknown.
        """
        measured_at = {
            at: tuple(PlaceScore(**{"reason": "", **one}) for one in seeds)
            for at, seeds in seeds_at.items()
        }
        results = cls(experiment, size, dataset, measured_at)
        place = matrix.Place(None, size, dataset)
        cells = experiment.cells(results.seeds)
        return results.limited_to({(entry.place, cell.file(place).stem) for entry, cell in cells})


def privacy_results(
    experiments: Iterable[PrivacyExperiment], sizes: Iterable[AnySize], home: Path
) -> Iterator[PrivacyResults]:
    """Yield the scores of attacks, for each size, data set and experiment that has any.

    Parameters
    ----------
    home
        Directory that holds attacks/.
    """
    every = list(experiments)
    for size in sizes:
        # A folder is named after its size and data set.
        folders = sorted((home / "attacks" / size.matrix).glob(f"{size.name}-*"))
        for dataset in (folder.name.removeprefix(f"{size.name}-") for folder in folders):
            place = matrix.Place(home, size, dataset)
            for experiment in every:
                if measured_at := all_reached(experiment, place):
                    yield PrivacyResults(experiment, size, dataset, measured_at)
