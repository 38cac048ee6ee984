"""The steps that each client may calibrate for in a run, while the others wait."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from flwr_splitmix.links import Clients
from flwr_splitmix.server.intake.checks import MAX_MEDIAN_WORK
from flwr_splitmix.words import counted


class Calibrations:
    """The steps of calibration that clients have asked for in a run, and those they have had.

    From the second round on honest clients report 0, and the one that does not would be compared
    with itself. So each counts with the most that it has ever reported.
    """

    def __init__(self) -> None:
        self._needed_steps: dict[int, int] = {}
        self._taken_steps: dict[int, int] = {}

    @property
    def usual(self) -> int:
        """The steps that the median client needs, of all seen so far: 0 if most need none."""
        return statistics.median_low(self._needed_steps.values()) if self._needed_steps else 0

    def due(self, clients: Clients, needs: Mapping[int, int]) -> dict[int, int]:
        """Return each client's number of steps in this round.

        In the whole run a client gets at most `MAX_MEDIAN_WORK` times the need of the median client
        that calibrates at all. One that asks for more leaves the round: it would send no private
        text before it has had them.

        Parameters
        ----------
        needs
            What the clients of the round report; one that has calibrated already reports 0.
        """
        for client, number in needs.items():
            self._needed_steps[client] = max(number, self._needed_steps.get(client, 0))
        needed = [number for number in self._needed_steps.values() if number] or [0]
        most = MAX_MEDIAN_WORK * statistics.median_low(needed)
        for client, number in needs.items():
            if self._taken_steps.get(client, 0) + number > most:
                clients.fail(
                    client,
                    f"needs {counted(number, 'more step')} of calibration, and in a run a client "
                    f"gets at most {most}, {MAX_MEDIAN_WORK} times what most need: give all "
                    "clients as many public texts, and a method of your own a calibration_steps "
                    "that is 0 once they are taken",
                )
        return {c: number for c, number in needs.items() if number and c not in clients.failures}

    def count(self, client: int) -> None:
        """Count a step that a client was given."""
        self._taken_steps[client] = self._taken_steps.get(client, 0) + 1

    def state(self) -> list[list[int]]:
        """Return, by client, the steps asked for and had, for a checkpoint."""
        return [[c, n, self._taken_steps.get(c, 0)] for c, n in sorted(self._needed_steps.items())]

    def restore(self, state: Sequence[Sequence[int]]) -> None:
        """Continue from `state`."""
        self._needed_steps = {client: needed for client, needed, _ in state}
        self._taken_steps = {client: num_taken for client, _, num_taken in state}
