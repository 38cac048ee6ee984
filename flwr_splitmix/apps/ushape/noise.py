"""The planned cost of the noise of a run in the U shape: its epsilon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flwr_splitmix.apps.checking.planned_run import PlannedRun, Workload
from flwr_splitmix.apps.checking.report import Report
from flwr_splitmix.apps.configuration.run_config import AppConfig
from flwr_splitmix.data.batches import batch_indices
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.hiding.charges import Charges, PlannedClient
from flwr_splitmix.hiding.record_ledger import as_releases
from flwr_splitmix.overriding import overridden
from flwr_splitmix.privacy.analytic import gaussian_epsilon
from flwr_splitmix.privacy.events import OUTSIDE_IN_U_SHAPE, UNBOUNDED
from flwr_splitmix.privacy.statement import in_words
from flwr_splitmix.strategies import USHAPE_STRATEGIES
from flwr_splitmix.words import counted

_MAX_DRAWN = 20_000  # batches with replacement that are drawn beforehand, some seconds


def remark_not_accounted(strategy: str, report: Report) -> None:
    """Report why a strategy's noise has no epsilon, if it has noise and its clients no ledger."""
    if why := USHAPE_STRATEGIES[strategy].hiding.not_accounted:
        report.remarks.append(f"this run has no epsilon: {strategy}'s {why}")


def remark_spending(
    config: AppConfig,
    hiding: Hiding,
    planned: PlannedClient,
    sizes: Sequence[int],
    report: Report,
    *,
    record: str,
) -> None:
    """Report the epsilon of the record that spends most.

    Parameters
    ----------
    hiding
        A hiding that accounts for an epsilon.
    planned
        The plan of every client.
    sizes
        Number of training records of each client, or of one that stands for all.
    record
        What a record is called: "text".
    """
    charges = _charges(hiding, planned)
    if charges is None:
        report.remarks.append(
            f"this run's epsilon is not known beforehand: {type(hiding).__name__} does not say "
            "what it is going to charge (`planned_charges` beside its `charge`); each round's "
            "metrics say what is spent"
        )
        return
    if not any(sizes):
        return
    noise = charges.noise
    if math.isinf(noise.shift):
        report.remarks.append(
            f"this run has no epsilon: {UNBOUNDED['resolution']}; a standard deviation of "
            f"{noise.sigma:.3g} is to hide a norm of up to {noise.bound:.3g}, and it would have "
            "one with more noise"
        )
        return
    run = PlannedRun.of(config, sizes, config.min_nodes or 1, evaluates=charges.tested > 0)
    most = _spent(config, charges, run, run.at_most, record)
    drawn = None if run.drawn is None else _spent(config, charges, run, run.drawn, record)
    spent, bound, whose = drawn or most, None, ""
    if drawn is not None and drawn.epsilon < most.epsilon:
        bound = most.epsilon
        whose = (
            f", as seed {config.seed} draws the clients, and at most {most.description}, of one in "
            "every round, with those that have most"
        )
    elif drawn is None and config.fraction_train < 1:
        whose = ", of a client in every round"
    outside = [OUTSIDE_IN_U_SHAPE[channel] for channel in charges.outside]
    statement = in_words(spent.epsilon, charges.delta, "replace", (), outside, most=bound)
    report.remarks.append(f"planned privacy: {statement}. Assumed: {spent.description}{whose}")


def _charges(hiding: Hiding, planned: PlannedClient) -> Charges | None:
    """Return the charges that a hiding plans; None if they are not about its own `charge`."""
    if overridden(type(hiding), ("charge",), "planned_charges"):
        return None
    return hiding.planned_charges(planned)


@dataclass(frozen=True)
class _Spent:
    """The epsilon of the record that spends most."""

    epsilon: float
    description: str


def _spent(
    config: AppConfig, charges: Charges, run: PlannedRun, work: Workload, record: str
) -> _Spent:
    trained = _trained(config, charges, run, work.steps.tolist())
    tested = charges.tested * int(work.evaluations.max())
    epsilon = gaussian_epsilon(charges.delta, math.sqrt(max(trained, tested)) * charges.noise.shift)
    if trained >= tested:
        return _Spent(epsilon, f"{counted(trained, 'release')} of a training {record}")
    description = f"{counted(tested, 'release')} of a test {record}"
    each = charges.tested
    return _Spent(
        epsilon, f"{description}, up to {each} in each evaluation" if each > 1 else description
    )


def _trained(config: AppConfig, charges: Charges, run: PlannedRun, steps: Sequence[int]) -> int:
    """Return the most that training can cost a record, in releases."""
    size = config.batch_size
    most, remaining = 0, _MAX_DRAWN
    for client, (records, step_count) in enumerate(zip(run.sizes, steps, strict=True)):
        if records >= size:
            most = max(most, -(-step_count // (records // size)))
        elif records and step_count <= remaining:
            remaining -= step_count
            spent = np.zeros(records, dtype=np.int64)
            for number in range(step_count):
                drawn = batch_indices(records, size, config.seed, client, number)
                spent += as_releases(np.bincount(drawn, minlength=records), charges.power)
            most = max(most, int(spent.max()))
        elif records:  # a batch may consist of one record
            most = max(most, step_count * as_releases(size, charges.power))
    return most
