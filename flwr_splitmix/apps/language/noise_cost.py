"""What the noise of a language run is going to cost: its planned epsilon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flwr_splitmix.apps.language.config import LanguageConfig
from flwr_splitmix.apps.language.texts import client_rows, training_set
from flwr_splitmix.apps.planned_run import PlannedRun, Work
from flwr_splitmix.apps.report import Report
from flwr_splitmix.clients import ClientError
from flwr_splitmix.data.batches import batch_indices
from flwr_splitmix.hiding import Hiding, dp_forward, dp_sgd
from flwr_splitmix.privacy.analytic import gaussian_epsilon
from flwr_splitmix.privacy.events import OUTSIDE_OF_TEXTS
from flwr_splitmix.privacy.statement import in_words
from flwr_splitmix.strategies import USHAPE_STRATEGIES
from flwr_splitmix.words import counted

_MOST_DRAWN = 20_000  # batches with replacement that are drawn beforehand, some seconds


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
        sizes = [_texts(config, client, report.nodes) for client in range(report.nodes)]
    if not any(sizes):
        return
    noise = _noise_of(config, method)
    run = PlannedRun.of(config, sizes, config.min_nodes or 1, evaluates=noise.tests)
    most = _spent(config, noise, run, run.at_most)
    drawn = None if run.drawn is None else _spent(config, noise, run, run.drawn)
    spent, bound, whose = drawn or most, None, ""
    if drawn is not None and drawn.epsilon < most.epsilon:
        bound = most.epsilon
        whose = (
            f", as seed {config.seed} draws the clients, and at most {most.said}, of one in every "
            "round, with those that have most"
        )
    elif drawn is None and config.fraction_train < 1:
        whose = ", of a client in every round"
    outside = [OUTSIDE_OF_TEXTS[channel] for channel in noise.outside]
    said = in_words(spent.epsilon, config.delta, "replace", (), outside, most=bound)
    report.remarks.append(f"planned privacy: {said}. Assumed: {spent.said}{whose}")


@dataclass(frozen=True)
class _Noise:
    """What a method's ledger charges.

    Attributes
    ----------
    shift
        How far replacing a text moves what leaves about it, in standard deviations of the noise.
    power
        Of the number of times that a text is in a batch: the releases that it then costs.
    tests
        Whether evaluations send test texts, which are charged.
    outside
        Keys of `OUTSIDE_OF_TEXTS`.
    """

    shift: float
    power: int
    tests: bool
    outside: Sequence[str]


def _noise_of(config: LanguageConfig, method: type[Hiding]) -> _Noise:
    learns, tests = config.learns == "all", config.evaluation_kind == "federated"
    if issubclass(method, dp_sgd.DPSGD):
        shift = dp_sgd.shift_of(config.noise_multiplier)
        # A text that is in a batch n times moves the sum n times as far.
        return _Noise(shift, 2, False, dp_sgd.outside_of(returns=learns))
    hiding = dp_forward.DPForward(
        epsilon=config.epsilon,
        delta=config.delta,
        clip_norm=config.clip_norm,
        sensitivity=config.sensitivity,
        releases=config.releases,
    )
    outside = dp_forward.outside_of(
        head_learns=learns and (not config.adapted or "head" in config.adapted),
        returns=learns,
        averaged=config.averages,
        losses=learns or tests,
    )
    return _Noise(hiding.shift, 1, tests, outside)


@dataclass(frozen=True)
class _Spent:
    """What is spent by the text that spends most."""

    epsilon: float
    said: str


def _spent(config: LanguageConfig, noise: _Noise, run: PlannedRun, work: Work) -> _Spent:
    trained = _trained(config, noise, run, work.steps.tolist())
    # With answers, all texts of a batch are sent again for each token of the longest.
    each = config.max_new_tokens if config.generation_scores else 1
    tested = each * int(work.evaluations.max())
    epsilon = gaussian_epsilon(config.delta, math.sqrt(max(trained, tested)) * noise.shift)
    if trained >= tested:
        return _Spent(epsilon, f"{counted(trained, 'release')} of a training text")
    said = f"{counted(tested, 'release')} of a test text"
    return _Spent(epsilon, f"{said}, up to {each} in each evaluation" if each > 1 else said)


def _trained(config: LanguageConfig, noise: _Noise, run: PlannedRun, steps: Sequence[int]) -> int:
    """Return what training costs at most the text that spends most, in releases."""
    size = config.batch_size
    most, left = 0, _MOST_DRAWN
    for client, (texts, taken) in enumerate(zip(run.sizes, steps, strict=True)):
        if texts >= size:
            most = max(most, -(-taken // (texts // size)))
        elif texts and taken <= left:
            left -= taken
            spent = np.zeros(texts, dtype=np.int64)
            for number in range(taken):
                drawn = batch_indices(texts, size, config.seed, client, number)
                spent += np.bincount(drawn, minlength=texts) ** noise.power
            most = max(most, int(spent.max()))
        elif texts:  # a batch may consist of one text
            most = max(most, taken * size**noise.power)
    return most


def _texts(config: LanguageConfig, client: int, clients: int) -> int:
    """Return how many training texts a client has, without those that are left out as too long."""
    rows, _ = client_rows(config, {"partition-id": client, "num-partitions": clients})
    if config.long_texts != "drop":
        return len(rows)
    try:
        return len(training_set(config, rows, lambda _: None))
    except ClientError:  # all are too long: it has no data
        return 0
