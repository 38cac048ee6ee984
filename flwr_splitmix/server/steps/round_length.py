"""The length of a round: the steps agreed on, announced and taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from flwr_splitmix.mixers import SmashedShape
from flwr_splitmix.values import whole_number
from flwr_splitmix.words import counted, described

_ON_AGREE = (
    "a strategy whose rounds differ sets `steps_per_round` in `agree`, before "
    "`super().agree(clients)` (clients.server_round is the round)"
)


@dataclass(frozen=True)
class RoundLength:
    """The number of steps of a round, and of an epoch."""

    steps: int
    epoch: int

    @classmethod
    def of(cls, batches: int, steps_per_round: int | None, epochs_per_round: int) -> RoundLength:
        """Return the length of a round; without `steps_per_round`, epochs of `batches` steps.

        Raises
        ------
        ValueError
            If one of the two options, which a strategy may set anew for each round, is not a whole
            number of at least 1.
        """
        epochs = whole_number("epochs_per_round", epochs_per_round, least=1)
        steps = batches * epochs
        if steps_per_round is not None:
            steps = whole_number("steps_per_round", steps_per_round, least=1)
        return cls(steps, max(1, steps // epochs))


@dataclass(frozen=True)
class Agreement:
    """The values that a shape's `agree` has fixed for a round with the clients left in it.

    Parameters
    ----------
    batches
        Mean number of full batches of the round's clients.
    length
        Computed from `batches` and the strategy's two options.
    """

    batches: int
    length: RoundLength

    def check_still(self, length: RoundLength) -> None:
        """Check that the length by the strategy's present options is still the one agreed on.

        Raises
        ------
        RuntimeError
            If it is not: the clients' ledgers rely on the announced length.
        """
        if length != self.length:
            raise RuntimeError(
                f"steps_per_round or epochs_per_round changed after a round of {self.length.steps} "
                f"steps had begun: {_ON_AGREE}"
            )


@dataclass(frozen=True)
class ShapeAgreement(Agreement):
    """An agreement of the L shape, with the shape of the clients' smashed data."""

    shape: SmashedShape


AnyAgreement = TypeVar("AnyAgreement", bound=Agreement)


def agreed(strategy: type, agreement: Agreement | None, kind: type[AnyAgreement]) -> AnyAgreement:
    """Return the agreement of a round, of the kind that the shape makes.

    Raises
    ------
    RuntimeError
        If there is none: `train_round` was called by itself.
    """
    if not isinstance(agreement, kind):
        raise RuntimeError(
            f"train_round of {strategy.__name__} was called before agree, which fixes the round's "
            "length: call agree(clients) first, as fit and start do"
        )
    return agreement


def announced_steps(strategy: type, returned: object, agreement: Agreement | None) -> int | None:
    """Return the number of steps that an `agree` returned, on which ledgers rely.

    Parameters
    ----------
    agreement
        The shape's agreement for the round; None if it fixes nothing.

    Raises
    ------
    RuntimeError
        If it is neither None nor a number of steps, or not that of the agreement.
    """
    if returned is None:
        return None
    steps = _steps(returned)
    if steps is None:
        raise RuntimeError(
            f"agree of {strategy.__name__} returns {_shown(returned)}; expected the round's number "
            "of steps, or None if it is not known in advance"
        )
    if agreement is not None and steps != agreement.length.steps:
        agreed_steps = counted(agreement.length.steps, "step")
        raise RuntimeError(
            f"agree of {strategy.__name__} returns {steps}, but {agreed_steps} will be taken, "
            "and ledgers rely on the returned number: return that of "
            "`super().agree(clients)`; "
            f"{_ON_AGREE}"
        )
    return steps


def taken_steps(strategy: type, returned: object, announced: int | None) -> int:
    """Return the number of steps that a `train_round` returned.

    Parameters
    ----------
    announced
        The number that `agree` returned for the round; None if it was not known.

    Raises
    ------
    RuntimeError
        If it is not a number of steps, or larger than announced.
    """
    steps = _steps(returned)
    if steps is None:
        raise RuntimeError(
            f"train_round of {strategy.__name__} returns {_shown(returned)}; expected the number "
            "of steps that it has taken"
        )
    if announced is not None and steps > announced:
        raise RuntimeError(
            f"train_round of {strategy.__name__} took {counted(steps, 'step')}, but `agree` had "
            f"returned {announced}, on which ledgers rely for an interrupted round: let `agree` "
            "return the most that a round takes, or None"
        )
    return steps


def _steps(returned: object) -> int | None:
    """Return a whole number of at least 0, and None for anything else."""
    try:
        return whole_number("steps", returned, least=0)
    except ValueError:
        return None


def _shown(returned: object) -> str:
    simple = isinstance(returned, (bool, int, float, str))
    return repr(returned)[:40] if simple else described(returned)
