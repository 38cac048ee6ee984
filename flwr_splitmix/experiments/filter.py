"""Selection of an experiment's cells by words."""

from __future__ import annotations

from fnmatch import fnmatchcase

from flwr_splitmix.experiments.cells import Cell, ExperimentError
from flwr_splitmix.experiments.experiment import Entry


def choose(pairs: list[tuple[Entry, Cell]], filter_text: str) -> list[tuple[Entry, Cell]]:
    """Return the cells that match a filter, in their order.

    Parameters
    ----------
    filter_text
        Alternatives separated by commas. Each consists of words separated by spaces, which must
        all be among a cell's words (method, k=2, alpha=6, model, n=10, iid, seed=0; see
        `Cell.words`), its id or the paper's name of its model; `*` matches any characters, and
        case is ignored. "" selects all cells.

    Raises
    ------
    ExperimentError
        If an alternative matches no cell; the message lists the known words.
    """
    if not filter_text.strip():
        return pairs
    alternatives = [part.lower().split() for part in filter_text.split(",") if part.strip()]
    for words in alternatives:
        if not any(_fits(entry, cell, words) for entry, cell in pairs):
            vocabulary = dict.fromkeys(word for _, cell in pairs for word in cell.words)
            raise ExperimentError(
                f"no cell has all of the words {' '.join(words)!r}; the words are "
                f"{', '.join(vocabulary)}"
            )
    return [pair for pair in pairs if any(_fits(*pair, words) for words in alternatives)]


def _fits(entry: Entry, cell: Cell, words: list[str]) -> bool:
    model = entry.variant.model if entry.variant else ""
    cell_words = [word.lower() for word in (*cell.words, cell.id, model)]
    return all(any(fnmatchcase(word, pattern) for word in cell_words) for pattern in words)
