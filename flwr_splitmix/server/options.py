"""The options of strategies: those of all strategies, of the L shape, and of the U shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, get_args

from flwr.serverapp import strategy as flower

from flwr_splitmix.clients import Client
from flwr_splitmix.device import Precision
from flwr_splitmix.labels import TargetLoss
from flwr_splitmix.links import Link
from flwr_splitmix.observers import Observer
from flwr_splitmix.privacy import GaussianNoise, Relation
from flwr_splitmix.runs import Run
from flwr_splitmix.schedule import OptimizerFactory, Schedule
from flwr_splitmix.server.evaluation.over_link import Evaluation
from flwr_splitmix.server.numbers import whole_number as whole_number
from flwr_splitmix.server.segments.upper import ServerUpdate
from flwr_splitmix.server.steps.pace import Pace
from flwr_splitmix.server.steps.part_count import PartsAsked
from flwr_splitmix.words import with_article


class RoundOptions(TypedDict, total=False):
    """Options of the loop of rounds; see `SplitStrategy`."""

    fraction_train: float
    evaluation: Evaluation
    evaluate_every: int
    checkpoint_every: int
    seed: int
    link: Link | None
    observers: Sequence[Observer]
    run: Run | None


class Options(RoundOptions, total=False):
    """Options of all strategies of the L shape; see `SplitStrategy`."""

    aggregator: flower.Strategy | None
    num_classes: int | None
    multi_label: bool
    loss: TargetLoss | None
    optimizer: OptimizerFactory | None
    schedule: Schedule | None
    server_update: ServerUpdate
    device: str
    precision: Precision
    steps_per_round: int | None
    epochs_per_round: int
    min_nodes: int | None
    noise: GaussianNoise | None
    delta: float
    trusted_mixer: bool
    relation: Relation
    pace: Pace | None
    micro_batches: PartsAsked


class UShapeOptions(RoundOptions, total=False):
    """Options of all strategies of the U shape; see `UShapeStrategy`."""

    aggregator: flower.Strategy | None
    optimizer: OptimizerFactory | None
    schedule: Schedule | None
    device: str
    precision: Precision
    width: int | None
    max_length: int | None
    steps_per_round: int | None
    epochs_per_round: int
    min_nodes: int


def check_counts(**counts: int | None) -> None:
    """Raise ValueError, with the name, for what is no whole number of at least 1, or None."""
    for name, value in counts.items():
        if value is not None and whole_number(name, value) < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")


def check_options(fraction_train: float, evaluation: str, **counts: int) -> None:
    """Raise ValueError if an option of the loop of rounds is outside its range."""
    check_counts(**counts)
    if not 0 < fraction_train <= 1:
        raise ValueError(f"fraction_train is {fraction_train}; allowed is 0 < fraction <= 1")
    if evaluation not in get_args(Evaluation):
        raise ValueError(
            f"evaluation is {evaluation!r}; allowed are {', '.join(get_args(Evaluation))} "
            "(central evaluation is an evaluate_fn)"
        )


def check_kind(name: str, value: object, kind: type, needed: str) -> None:
    """Raise TypeError, with the name and what is `needed`, for an object of another kind."""
    if isinstance(value, kind):
        return
    if isinstance(value, type):
        given = f"the class {value.__name__}"
        needed = f"an object, {value.__name__}(...)" if issubclass(value, kind) else needed
    else:
        given = (
            repr(value) if isinstance(value, (str, bytes)) else with_article(type(value).__name__)
        )
    raise TypeError(f"{name} is {given}; needed is {needed}")


def check_observers(observers: Sequence[object]) -> None:
    """Raise TypeError if an argument is no sequence of observers."""
    check_kind("observers", observers, Sequence, "a list of observers, observers=[...]")
    for place, observer in enumerate(observers):
        check_kind(f"observers[{place}]", observer, Observer, "an object of a subclass of Observer")


def check_parts(aggregator: object, observers: Sequence[object], run: object) -> None:
    """Raise TypeError if a part of a strategy is an object of another kind."""
    if aggregator is not None:
        needed = "a Flower strategy, such as FedAvg()"
        check_kind("aggregator", aggregator, flower.Strategy, needed)
    check_observers(observers)
    if run is not None:
        needed = "a Run, such as Run.create(config, name=...) or Run.open(id)"
        check_kind("run", run, Run, needed)


def check_live_clients(clients: Sequence[object]) -> None:
    """Raise TypeError if an argument of `fit` is no sequence of clients."""
    check_kind("clients", clients, Sequence, "a list of clients, such as SplitClient objects")
    for place, client in enumerate(clients):
        check_kind(
            f"clients[{place}]", client, Client, "a client, such as SplitClient(lower, data)"
        )
