"""The planned cost of a language run's noise: its epsilon."""

from __future__ import annotations

from flwr_splitmix.apps.checking.report import Report
from flwr_splitmix.apps.language.config import LanguageConfig
from flwr_splitmix.apps.language.hiding import hiding_of
from flwr_splitmix.apps.language.texts import training_size
from flwr_splitmix.apps.ushape.noise import remark_not_accounted, remark_spending
from flwr_splitmix.hiding.charges import PlannedClient


def remark_noise(config: LanguageConfig, report: Report) -> None:
    """Remark what the text that spends most will have spent, if the clients keep ledgers."""
    remark_not_accounted(config.strategy, report)
    if not config.hides_by.accounts:
        return
    if not report.nodes_known and (not config.samples_per_client or config.long_texts == "drop"):
        report.remarks.append(
            "this run's epsilon depends on how many texts each client has, and so on the number "
            "of SuperNodes: `splitmix check --nodes` reports it"
        )
        return
    sizes = [config.samples_per_client]
    if report.nodes_known:
        sizes = [training_size(config, client, report.nodes) for client in range(report.nodes)]
    learns = config.learns == "all"
    # With answers, all texts of a batch are sent again for each token of the longest.
    each = config.max_new_tokens if config.generation_scores else 1
    planned = PlannedClient(
        batch_size=config.batch_size,
        head_learns=learns,  # its weights, or adapters in it
        returns=learns,
        averaged=config.averages,
        padded=True,
        scored=config.evaluation_kind != "none",
        tested=each if config.evaluation_kind == "federated" else 0,
    )
    remark_spending(config, hiding_of(config), planned, sizes, report, record="text")
