"""What the noise of a language run is going to cost: its planned epsilon."""

from __future__ import annotations

from flwr_splitmix.apps.checking.report import Report
from flwr_splitmix.apps.language.config import LanguageConfig
from flwr_splitmix.apps.language.texts import training_size
from flwr_splitmix.apps.ushape.noise import Charges, remark_spending
from flwr_splitmix.hiding.making import hiding_options
from flwr_splitmix.strategies import USHAPE_STRATEGIES


def remark_noise(config: LanguageConfig, report: Report) -> None:
    """Remark what the text that spends most will have spent, if the clients keep ledgers."""
    method = USHAPE_STRATEGIES[config.strategy].hiding
    if config.strategy == "SnDSL":
        report.remarks.append(
            "this run has no epsilon: SnDSL's noise bounds what single releases of tokens tell, by "
            "their distance, and no ledger adds that up"
        )
    if not method.accounts:
        return
    if not report.nodes_known and (not config.samples_per_client or config.long_texts == "drop"):
        report.remarks.append(
            "this run's epsilon depends on how many texts each client has, and so on the number "
            "of SuperNodes: `splitmix check --nodes` says it"
        )
        return
    sizes = [config.samples_per_client]
    if report.nodes_known:
        sizes = [training_size(config, client, report.nodes) for client in range(report.nodes)]
    learns = config.learns == "all"
    # With answers, all texts of a batch are sent again for each token of the longest.
    each = config.max_new_tokens if config.generation_scores else 1
    charges = Charges.of(
        method(**{name: getattr(config, name) for name in hiding_options(method)}),
        head_learns=learns,  # its weights, or adapters in it
        returns=learns,
        averaged=config.averages,
        padded=True,
        tested=each if config.evaluation_kind == "federated" else 0,
    )
    remark_spending(config, charges, sizes, report, record="text")
