"""An adapter from a ledger to Flower's `PrivacyAccountant` protocol, for use with its tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from flwr_splitmix.privacy.events import Gaussian
from flwr_splitmix.privacy.ledger import Ledger

_METHOD = "rdp"


class Config(Protocol):
    """The part of Flower's `PrivacyConfig` that is used."""

    @property
    def target_delta(self) -> float:
        """Delta of the reported epsilon."""

    @property
    def population_size(self) -> int:
        """Number of clients, kept for reports."""

    @property
    def neighboring_relation(self) -> str:
        """Must be "add-or-remove-one"."""

    @property
    def sampling_method(self) -> str:
        """Must be "no-amplification"."""

    @property
    def max_epsilon(self) -> float | None:
        """The budget, if any."""


class NoisedRelease(Protocol):
    """The part of Flower's `GaussianPrivacyEvent` that is used."""

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation over sensitivity."""

    @property
    def population_size(self) -> int:
        """Must be the configuration's."""


AnyConfig = TypeVar("AnyConfig", bound=Config)
Spent = TypeVar("Spent")


class FlowerAccountant(Generic[AnyConfig, Spent]):
    """Reads and charges a client's ledger through Flower's interface.

    Its guarantee is about a record of this client, whereas Flower's own accountant is about a
    client. It is also narrower than Flower's "add-or-remove-one": what the ledger charges for
    uploads holds if a record is replaced by an empty one, and the number of records is public. A
    Flower event is charged to every record.

    Parameters
    ----------
    config
        Flower's `PrivacyConfig`, add-or-remove without amplification: every client takes part in
        every step, so there is no gain from sampling.
    ledger
        The client's ledger, with relation "add-remove".
    spent
        Class of the result of `get_privacy_spent`: Flower's `PrivacySpent`, not imported here.

    Raises
    ------
    ValueError
        If the configuration or the ledger has another relation, or there is sampling.
    """

    def __init__(self, config: AnyConfig, ledger: Ledger, spent: Callable[..., Spent]) -> None:
        if config.neighboring_relation != "add-or-remove-one" or ledger.relation != "add-remove":
            raise ValueError(
                f"the relation is {_value(config.neighboring_relation)} in the configuration and "
                f"{ledger.relation} in the ledger; both must be add or remove"
            )
        if config.sampling_method != "no-amplification":
            raise ValueError(
                f"the sampling method is {_value(config.sampling_method)}; "
                "cut-layer releases are not sampled, so it must be no-amplification"
            )
        self._config = config
        self._ledger = ledger
        self._spent = spent

    @property
    def config(self) -> AnyConfig:
        """The configuration."""
        return self._config

    @property
    def num_releases(self) -> int:
        """Number of releases, including those of the cut layer."""
        return self._ledger.releases

    def compose(self, event: NoisedRelease, count: int = 1) -> None:
        """Charge every record with `count` releases."""
        self._ledger.charge(self._understood(event, count))

    def get_epsilon(self, delta: float) -> float:
        """Return epsilon at delta; infinite if there is no bound."""
        return self._ledger.epsilon(delta)

    def get_delta(self, epsilon: float) -> float:
        """Return delta at epsilon; 1 if there is no bound."""
        return self._ledger.delta(epsilon)

    def get_privacy_spent(self, delta: float | None = None) -> Spent:
        """Return what was spent, by default at the configuration's delta."""
        statement = self._ledger.statement(self._config.target_delta if delta is None else delta)
        return self._spent(
            epsilon=statement.epsilon,
            delta=statement.delta,
            num_releases=self.num_releases,
            accounting_method=_METHOD,
            optimal_order=statement.order,
        )

    def would_exceed(
        self, event: NoisedRelease, max_epsilon: float | None = None, count: int = 1
    ) -> bool:
        """Return whether `compose` would bring epsilon above the limit, at the target delta.

        Raises
        ------
        ValueError
            If neither the call nor the configuration has a limit.
        """
        limit = self._config.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            raise ValueError("there is no max_epsilon in the configuration and none was given")
        return self._ledger.would_exceed(
            self._understood(event, count), max_epsilon=limit, delta=self._config.target_delta
        )

    def state_dict(self) -> dict[str, object]:
        """Return the ledger's state and its configuration as JSON values."""
        return {"config": _plain(self._config), "ledger": self._ledger.state_dict()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Restore the state.

        Raises
        ------
        ValueError
            If it belongs to another configuration, or does not fit the ledger.
        """
        if state.get("config") != _plain(self._config):
            raise ValueError(
                f"the state belongs to the configuration {state.get('config')}, "
                f"this one is {_plain(self._config)}"
            )
        ledger = state.get("ledger")
        if not isinstance(ledger, Mapping):
            raise ValueError("the state has no ledger")
        self._ledger.load_state_dict(ledger)

    def _understood(self, event: NoisedRelease, count: int) -> Gaussian:
        if event.population_size != self._config.population_size:
            raise ValueError(
                f"population_size is {event.population_size} in the event "
                f"and {self._config.population_size} in the configuration"
            )
        return Gaussian(noise_multiplier=event.noise_multiplier, times=count)


def _plain(config: Config) -> dict[str, Any]:
    return {
        "target_delta": config.target_delta,
        "population_size": config.population_size,
        "neighboring_relation": _value(config.neighboring_relation),
        "sampling_method": _value(config.sampling_method),
        "max_epsilon": config.max_epsilon,
    }


def _value(name: str) -> str:
    """Return the plain text of Flower's enumerations, which are strings."""
    return str(getattr(name, "value", name))
