"""A run's plan from its settings: passes over the data, and the share that masks keep."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from flwr_splitmix.privacy.accountant import check_delta
from flwr_splitmix.privacy.calibration import ReleasePlan
from flwr_splitmix.privacy.events import Family
from flwr_splitmix.privacy.masks import RandomMasks, even_ratio, numbers_of
from flwr_splitmix.words import counted

_FAILURE = 0.1  # fraction of delta reserved for masks not yet drawn


def passes_of(steps: int, records: int, batch_size: int) -> int:
    """Return the number of passes over which a client's batches of so many steps are spread.

    Raises
    ------
    ValueError
        If a batch is larger than all records.
    """
    if batch_size > records:
        raise ValueError(
            f"batch_size is {batch_size} for {counted(records, 'record')}; such batches are drawn "
            "with replacement, and their number of passes is not known in advance"
        )
    return -(-steps // (records // batch_size))


def ratios_of(
    family: Family,
    patches: int,
    k: int,
    alpha: float | None,
    delta: float,
    *,
    clients: int | Collection[int] | None = None,
    k_times: bool = False,
    batches: int = 1,
) -> float | RandomMasks:
    """Return the knowledge of a client's ratios, as `ReleasePlan.kept`.

    Parameters
    ----------
    alpha
        Concentration of the ratios; None makes them as even as possible.
    delta
        The plan's; a tenth of it is that of random masks.
    clients, k_times, batches
        As for `RandomMasks`.

    Raises
    ------
    ValueError
        If delta is not strictly between 0 and 1, or `RandomMasks` refuses a value.
    """
    if alpha is None and not left_over(clients, k):
        return even_ratio(patches, k) if family == "cutmix" else 1 / k
    check_delta(delta)
    return RandomMasks(
        alpha=alpha,
        failure=_FAILURE * delta,
        clients=clients,
        k_times=k_times,
        batches=batches,
    )


def left_over(clients: int | Collection[int] | None, k: int) -> int:
    """Return the most clients in a smaller group; 0 if the number of clients is not given."""
    return max((n % k for n in numbers_of(clients)), default=0)


def ratio_in_words(plan: ReleasePlan) -> str:
    """Return, in words, the share of a sample that a plan assumes to be sent."""
    kept = plan.kept
    if plan.release.family == "full":
        return "1"
    if not isinstance(kept, RandomMasks):
        ratios = np.asarray(kept, dtype=np.float64)
        most, least = (f"{ratio:.4g}" for ratio in (ratios.max(), ratios.min()))
        if most == least:
            return f"{most} of the sample in every pass"
        return f"{most} to {least} of the sample, by pass"
    if plan.is_worst_case:
        return "the whole sample in every pass, the worst case"
    drawn = "even" if kept.alpha is None else f"drawn with alpha {kept.alpha:g}"
    return f"{drawn}; more with probability {kept.failure:g}, within delta"
