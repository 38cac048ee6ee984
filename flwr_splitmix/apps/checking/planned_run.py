"""The rounds of a run before it begins: the clients drawn for each, and its number of steps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from flwr_splitmix.apps.configuration.run_config import AppConfig
from flwr_splitmix.seeding import generator
from flwr_splitmix.server.intake.checks import mean_batches
from flwr_splitmix.server.nodes.participants import drawn_clients, size_of_draw
from flwr_splitmix.server.steps.round_length import RoundLength

Counts = NDArray[np.int64]

_MAX_DRAWN = 3 * 10**6  # numbers that are drawn beforehand: some seconds
_MIN_DRAWN = 500  # a round takes at least as long as so many


@dataclass(frozen=True)
class Workload:
    """The work that a run asks of its clients.

    Attributes
    ----------
    steps, evaluations
        By client, int64 (clients,): all training steps, and evaluations over the link.
    together
        How many clients may take a step together; empty if that is not known.
    """

    steps: Counts
    evaluations: Counts
    together: tuple[int, ...]


@dataclass(frozen=True)
class PlannedRound:
    """A round as the run's seed draws it, int64 client indices: those that train, and evaluate."""

    clients: Counts
    steps: int
    evaluated: Counts


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run that loses no client and repeats no round.

    Parameters
    ----------
    sizes
        Number of training examples of each client, some of them above 0.
    batch_size
        Examples of a batch.
    rounds, steps_per_round, epochs_per_round
        Lengths of the run and of a round; 0 steps: as long as the epochs.
    min_nodes, fraction
        Fewest clients of a round, and the fraction of all that it draws.
    seed
        The run's seed, which draws them.
    evaluate_every
        Rounds between evaluations over the link; 0: there are none.
    """

    sizes: Sequence[int]
    batch_size: int
    rounds: int
    steps_per_round: int
    epochs_per_round: int
    min_nodes: int
    fraction: float
    seed: int
    evaluate_every: int

    @classmethod
    def of(
        cls, config: AppConfig, sizes: Sequence[int], min_nodes: int, *, evaluates: bool
    ) -> Self:
        """Return the run of a configuration; `evaluates`: whether it evaluates over the link."""
        return cls(
            sizes=sizes,
            batch_size=config.batch_size,
            rounds=config.num_server_rounds,
            steps_per_round=config.steps_per_round,
            epochs_per_round=config.epochs_per_round,
            min_nodes=min_nodes,
            fraction=config.fraction_train,
            seed=config.seed,
            evaluate_every=config.evaluate_every if evaluates else 0,
        )

    @property
    def draws(self) -> bool:
        """Whether a round draws some of the clients, and not all."""
        return self._size < len(self.sizes)

    @cached_property
    def drawn(self) -> Workload | None:
        """The clients' work as the seed draws them; None if there are no draws, or too many."""
        if not self._drawn:
            return None
        steps, evaluations = np.zeros((2, len(self.sizes)), dtype=np.int64)
        for each in self._drawn:
            steps[each.clients] += each.steps
            evaluations[each.evaluated] += 1
        together = sorted({len(each.clients) for each in self._drawn})
        return Workload(steps, evaluations, tuple(together))

    @cached_property
    def at_most(self) -> Workload:
        """The most work of each client with any draws: in every round, beside those with most data.

        If every round takes all clients, this is the run's actual work.
        """
        evaluations = -(-self.rounds // self.evaluate_every) if self.evaluate_every else 0
        have = np.asarray(self.sizes) > 0
        return Workload(
            np.where(have, self.rounds * self._most_steps, 0),
            np.full(len(have), evaluations),
            tuple(self._numbers),
        )

    def first_round_above(self, limits: NDArray[np.float64]) -> int | None:
        """Return the first round in which a client takes more steps in all than its limit.

        Parameters
        ----------
        limits
            By client, float64 (clients,).

        Returns
        -------
        The round by the seed's draws, if they are known; None if there is none.
        """
        if not self._drawn:
            having = np.asarray(self.sizes) > 0
            first = int((limits[having] // self._most_steps[having]).min()) + 1
            return first if first <= self.rounds else None
        steps = np.zeros(len(self.sizes))
        for number, each in enumerate(self._drawn, start=1):
            steps[each.clients] += each.steps
            if (steps > limits).any():
                return number
        return None

    @property
    def _size(self) -> int:
        return size_of_draw(len(self.sizes), self.min_nodes, self.fraction)

    @property
    def _numbers(self) -> range:
        """How many clients with data a round may have: some that it draws may have none."""
        having = sum(size > 0 for size in self.sizes)
        most = min(self._size, having)
        least = max(self.min_nodes, self._size - (len(self.sizes) - having)) if self.draws else most
        return range(min(least, most), most + 1)

    def _steps_of(self, batches: int) -> int:
        return RoundLength.of(batches, self.steps_per_round or None, self.epochs_per_round).steps

    @cached_property
    def _most_steps(self) -> Counts:
        """By client, int64 (clients,): the most steps of a round that it is in."""
        if not self.draws or self.steps_per_round:
            return np.full(len(self.sizes), self._steps_of(self._mean_batches(self.sizes)))
        full_batches = np.asarray(self.sizes) // self.batch_size
        order = np.argsort(-full_batches, kind="stable")
        place = np.argsort(order, kind="stable")
        sums = np.concatenate([[0], np.cumsum(full_batches[order])])
        means = [
            # With the n - 1 others that have most, unless it is among the n that have most itself.
            np.where(place < n, sums[n], full_batches + sums[n - 1]) / n
            for n in self._numbers
        ]
        batches = np.maximum(np.rint(np.max(means, axis=0)), 1).astype(np.int64)
        return np.array([self._steps_of(int(each)) for each in batches], dtype=np.int64)

    def _mean_batches(self, sizes: Sequence[int]) -> int:
        having = [size for size in sizes if size]
        return mean_batches(having, [self.batch_size] * len(having))

    @cached_property
    def _drawn(self) -> tuple[PlannedRound, ...]:
        """Rounds as the seed draws them; () if each takes all clients, or they are too many."""
        cost = self.rounds * max(_MIN_DRAWN, len(self.sizes))
        if not self.draws or cost > _MAX_DRAWN:
            return ()
        rounds: list[PlannedRound] = []
        empty: set[int] = set()
        for number in range(1, self.rounds + 1):
            clients = self._train(number, empty)
            if len(clients) < self.min_nodes:  # the run ends
                break
            steps = self._steps_of(self._mean_batches([self.sizes[c] for c in clients]))
            evaluated: list[int] = []
            last = number == self.rounds
            if self.evaluate_every and (last or number % self.evaluate_every == 0):
                evaluated, _ = self._draw("sample-evaluate", number, empty)
            rounds.append(
                PlannedRound(np.array(clients), steps, np.array(evaluated, dtype=np.int64))
            )
        return tuple(rounds)

    def _train(self, number: int, empty: set[int]) -> list[int]:
        """Return the clients that train in a round; add those drawn that have no data to `empty`.

        As `Participants.admit` does, a round with too few is drawn again without these.
        """
        while True:
            drawn, undrawn = self._draw("sample-train", number, empty)
            having = [client for client in drawn if self.sizes[client]]
            empty.update(set(drawn).difference(having))
            if len(having) >= self.min_nodes or not undrawn or len(having) == len(drawn):
                return having

    def _draw(self, purpose: str, number: int, empty: Collection[int]) -> tuple[list[int], int]:
        rng = generator(self.seed, purpose, number)
        return drawn_clients(range(len(self.sizes)), rng, self._size, empty)
