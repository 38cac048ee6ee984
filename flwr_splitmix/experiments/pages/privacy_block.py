"""Block of a page: the table of an experiment on privacy, with the paper's orderings."""

from __future__ import annotations

from collections.abc import Sequence

from flwr_splitmix.experiments.cells import dataset_name
from flwr_splitmix.experiments.pages.commands import command
from flwr_splitmix.experiments.privacy.tables_of_papers import PrivacyTable, markdown_lines


def privacy_block(table: PrivacyTable, seeds: Sequence[int], link: str) -> str:
    """Return a table with the command that makes it, and the verdicts on orderings.

    Parameters
    ----------
    seeds
        Seeds with which any of it was run.
    link
        Link from the page to the result file.
    """
    experiment, size = table.experiment, table.place.size
    dataset = dataset_name(table.place.source)
    parts = [
        f"{experiment.source}: {experiment.title}. Scale `{size.name}`, data set {dataset} "
        f"([result file]({link})).",
        "",
        *command(experiment, size, dataset, seeds),
        *markdown_lines(table),
    ]
    return "\n".join(parts)
