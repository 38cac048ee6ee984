"""Settings of MixGuard's ablations: corpus, models, and the options that rows vary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain

from flwr_splitmix.experiments.cells import Value, variant
from flwr_splitmix.experiments.experiment import Entry, Ordering, TableScore, below
from flwr_splitmix.experiments.papers.mixguard_cola import MIXGUARD_COLA, SKEWED
from flwr_splitmix.experiments.scales import ENCODER, STORIES
from flwr_splitmix.experiments.texts.recipes import Track

Changes = Mapping[str, Value]
"""Options in which a row differs from its setting."""


@dataclass(frozen=True)
class MixGuardSetting:
    """Common values of a table's rows.

    Parameters
    ----------
    track
        Track, which determines the texts.
    models
        Models, one per column; `--cells NAME` runs one of them.
    base
        MixGuard's options, some of which rows change.
    printed
        Name of the paper's numbers, which are Qwen3-1.7B's.
    scores
        Scores that tables show.
    note
        Remark that readers need to compare the numbers.
    """

    track: Track
    models: tuple[str, ...]
    base: Changes
    printed: str
    scores: tuple[TableScore, ...]
    note: str

    def entries(
        self,
        row: str,
        changes: Changes,
        paper: float | None = None,
        *,
        public_corpora: tuple[str, str] | None = None,
    ) -> tuple[Entry, ...]:
        """Make a row of MixGuard, with one entry for each model.

        Parameters
        ----------
        paper
            The paper's number in percent, if any.
        public_corpora
            As in `Variant`.
        """
        base_variant = replace(
            variant("MixGuard", {**self.base, **changes}, clients=1), public_corpora=public_corpora
        )
        numbers = {} if paper is None else {self.printed: paper}
        return tuple(
            Entry(row, model, replace(base_variant, model=model), numbers) for model in self.models
        )

    def by_sources(self, printed: Mapping[int, float]) -> tuple[Entry, ...]:
        """Make a row for each number k of texts in a mixture, with the paper's number."""
        rows = (self.entries(sources_row(k), {"k": k}, paper) for k, paper in printed.items())
        return tuple(chain.from_iterable(rows))

    def by_messages(self, printed: Mapping[int, float]) -> tuple[Entry, ...]:
        """Make a row for each number m of messages, with the paper's number."""
        rows = (self.entries(messages_row(m), {"m": m}, paper) for m, paper in printed.items())
        return tuple(chain.from_iterable(rows))

    def within(self, row: str, other: str, slack: float) -> tuple[Ordering, ...]:
        """Claim for every model that row `other` is at most `slack` points below `row`."""
        return tuple(Ordering((row, model), (other, model), slack=slack) for model in self.models)

    def below(self, low: str, high: str) -> tuple[Ordering, ...]:
        """Claim for every model that row `low` is below row `high`."""
        return below((low,), high, self.models)


NOT_THE_PAPERS = (
    "secrets of the skewed sampler with supports of weight 1.5 and each text's own mask; "
    "refinement at every eighth step, in the paper at each."
)


def sources_row(k: int) -> str:
    """Return the name of the row with k texts in a mixture and three messages."""
    return f"m = 3, k = {k}"


def messages_row(m: int) -> str:
    """Return the name of the row with m messages and three texts in a mixture."""
    return f"m = {m}, k = 3"


COLA = MixGuardSetting(
    "cola",
    (ENCODER, STORIES),
    SKEWED,
    "CoLA accuracy",
    MIXGUARD_COLA.scores,
    f"One client, in-domain dev as the test set, {NOT_THE_PAPERS} The paper's numbers are "
    "accuracies of Qwen3-1.7B; the claims are judged on the Matthews correlation.",
)
"""The setting for CoLA, with the sampler that leaks least among those that decode well. Unchanged
rows share the runs of row "skewed 1.5" of `mixguard-curve`."""
