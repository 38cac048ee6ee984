"""What the noise of a run in the U shape is going to cost: its planned epsilon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flwr_splitmix.apps.checking.planned_run import PlannedRun, Work
from flwr_splitmix.apps.checking.report import Report
from flwr_splitmix.apps.configuration.run_config import AppConfig
from flwr_splitmix.data.batches import batch_indices
from flwr_splitmix.hiding import Hiding, dp_forward, dp_sgd
from flwr_splitmix.hiding.record_ledger import as_releases
from flwr_splitmix.privacy.analytic import gaussian_epsilon
from flwr_splitmix.privacy.events import OUTSIDE_IN_U_SHAPE
from flwr_splitmix.privacy.statement import in_words
from flwr_splitmix.words import counted

_MOST_DRAWN = 20_000  # batches with replacement that are drawn beforehand, some seconds


@dataclass(frozen=True)
class Charges:
    """What a method's ledger charges.

    Attributes
    ----------
    delta
        Delta of the epsilon.
    shift
        How far replacing a record moves what leaves about it, in standard deviations of the noise.
    power
        As what copies of a record in a batch count; see `as_releases`.
    tested
        Releases of a client's own test record in each evaluation, at most; 0 if none are charged.
    outside
        Keys of `OUTSIDE_IN_U_SHAPE`.
    """

    delta: float
    shift: float
    power: int
    tested: int
    outside: Sequence[str]

    @classmethod
    def of(
        cls,
        hiding: Hiding,
        *,
        head_learns: bool,
        returns: bool,
        averaged: bool,
        padded: bool,
        tested: int,
    ) -> Charges:
        """Return those of a hiding that accounts.

        Parameters
        ----------
        head_learns, returns, averaged, padded
            As for `dp_forward.outside_of`.
        tested
            How often an evaluation over the link sends a client's own test record, at most.
        """
        if isinstance(hiding, dp_sgd.DPSGD):
            shift = dp_sgd.shift_of(hiding.noise_multiplier)
            outside = dp_sgd.outside_of(returns=returns, padded=padded)
            return cls(hiding.delta, shift, dp_sgd.POWER, 0, outside)
        assert isinstance(hiding, dp_forward.DPForward)
        outside = dp_forward.outside_of(
            head_learns=head_learns,
            returns=returns,
            averaged=averaged,
            losses=returns or tested > 0,
            padded=padded,
        )
        return cls(hiding.delta, hiding.shift, 1, tested, outside)


def remark_spending(
    config: AppConfig, charges: Charges, sizes: Sequence[int], report: Report, *, record: str
) -> None:
    """Remark what the record that spends most will have spent.

    Parameters
    ----------
    sizes
        Number of training records of each client, or of one that stands for all.
    record
        What a record is called: "text".
    """
    if not any(sizes):
        return
    run = PlannedRun.of(config, sizes, config.min_nodes or 1, evaluates=charges.tested > 0)
    most = _spent(config, charges, run, run.at_most, record)
    drawn = None if run.drawn is None else _spent(config, charges, run, run.drawn, record)
    spent, bound, whose = drawn or most, None, ""
    if drawn is not None and drawn.epsilon < most.epsilon:
        bound = most.epsilon
        whose = (
            f", as seed {config.seed} draws the clients, and at most {most.said}, of one in every "
            "round, with those that have most"
        )
    elif drawn is None and config.fraction_train < 1:
        whose = ", of a client in every round"
    outside = [OUTSIDE_IN_U_SHAPE[channel] for channel in charges.outside]
    said = in_words(spent.epsilon, charges.delta, "replace", (), outside, most=bound)
    report.remarks.append(f"planned privacy: {said}. Assumed: {spent.said}{whose}")


@dataclass(frozen=True)
class _Spent:
    """What is spent by the record that spends most."""

    epsilon: float
    said: str


def _spent(config: AppConfig, charges: Charges, run: PlannedRun, work: Work, record: str) -> _Spent:
    trained = _trained(config, charges, run, work.steps.tolist())
    tested = charges.tested * int(work.evaluations.max())
    epsilon = gaussian_epsilon(charges.delta, math.sqrt(max(trained, tested)) * charges.shift)
    if trained >= tested:
        return _Spent(epsilon, f"{counted(trained, 'release')} of a training {record}")
    said = f"{counted(tested, 'release')} of a test {record}"
    each = charges.tested
    return _Spent(epsilon, f"{said}, up to {each} in each evaluation" if each > 1 else said)


def _trained(config: AppConfig, charges: Charges, run: PlannedRun, steps: Sequence[int]) -> int:
    """Return what training costs at most the record that spends most, in releases."""
    size = config.batch_size
    most, left = 0, _MOST_DRAWN
    for client, (records, taken) in enumerate(zip(run.sizes, steps, strict=True)):
        if records >= size:
            most = max(most, -(-taken // (records // size)))
        elif records and taken <= left:
            left -= taken
            spent = np.zeros(records, dtype=np.int64)
            for number in range(taken):
                drawn = batch_indices(records, size, config.seed, client, number)
                spent += as_releases(np.bincount(drawn, minlength=records), charges.power)
            most = max(most, int(spent.max()))
        elif records:  # a batch may consist of one record
            most = max(most, taken * as_releases(size, charges.power))
    return most
