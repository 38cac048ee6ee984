"""The options of strategies (of the loop of rounds, of the L shape, of the U shape), and checks."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import TypedDict, cast, get_args

from flwr.serverapp import strategy as flower
from torch import Tensor, nn

from flwr_splitmix.clients import Client
from flwr_splitmix.device import Precision
from flwr_splitmix.labels import TargetLoss
from flwr_splitmix.links import Link
from flwr_splitmix.mixers import Mixer
from flwr_splitmix.observers import Metrics, Observer
from flwr_splitmix.optimizers import OptimizerFactory
from flwr_splitmix.privacy import GaussianNoise, Relation
from flwr_splitmix.runs import Run
from flwr_splitmix.schedule import Schedule
from flwr_splitmix.segments.geometry import geometry_of
from flwr_splitmix.server.evaluation.over_link import Evaluation
from flwr_splitmix.server.segments.upper import ServerUpdate
from flwr_splitmix.server.steps.pace import Pace
from flwr_splitmix.server.steps.part_count import PartsAsked
from flwr_splitmix.suggestions import close_to
from flwr_splitmix.values import check_kind, real_number, whole_number


class RoundOptions(TypedDict, total=False):
    """Options of the loop of rounds; see `LoopSetup`."""

    fraction_train: float
    evaluation: Evaluation
    evaluate_every: int
    checkpoint_every: int
    seed: int
    link: Link | None
    observers: Sequence[Observer]
    run: Run | None
    metrics: Metrics | None


class TrainingOptions(RoundOptions, total=False):
    """Options that strategies of both shapes have; see `TrainingLoop` and the shapes."""

    aggregator: flower.Strategy | None
    optimizer: OptimizerFactory | None
    schedule: Schedule | None
    device: str
    precision: Precision
    steps_per_round: int | None
    epochs_per_round: int


class SplitOptions(TrainingOptions, total=False):
    """Options of all strategies of the L shape; see `SplitStrategy`."""

    num_classes: int | None
    multi_label: bool
    loss: TargetLoss | None
    server_update: ServerUpdate
    min_nodes: int | None
    noise: GaussianNoise | None
    delta: float
    trusted_mixer: bool
    relation: Relation
    pace: Pace | None
    micro_batches: PartsAsked


class UShapeOptions(TrainingOptions, total=False):
    """Options of all strategies of the U shape; see `UShapeStrategy`."""

    width: int | None
    max_length: int | None
    min_nodes: int


def check_counts(**counts: int | None) -> None:
    """Raise ValueError, with the name, unless a count is None or a whole number >= 1."""
    for name, value in counts.items():
        if value is not None:
            whole_number(name, value, least=1)


def check_options(fraction_train: float, evaluation: str, **counts: int) -> None:
    """Raise ValueError if an option of the loop of rounds is outside its range."""
    for name, value in counts.items():
        whole_number(name, value, least=1)  # refuses None, too
    if not 0 < real_number("fraction_train", fraction_train) <= 1:
        raise ValueError(f"fraction_train is {fraction_train}; it must be above 0, at most 1")
    if evaluation not in get_args(Evaluation):
        raise ValueError(
            f"evaluation is {evaluation!r}; it must be one of {', '.join(get_args(Evaluation))} "
            "(central evaluation is an evaluate_fn)"
        )


def check_wait(name: str, seconds: object) -> None:
    """Raise ValueError unless a wait is a number above 0; NaN is not, as it would never end."""
    if not real_number(name, seconds) > 0:
        raise ValueError(f"{name} is {seconds}; it must be above 0")


def check_names(
    strategy: type, options: Mapping[str, object], elsewhere: Mapping[str, type]
) -> None:
    """Raise TypeError for options passed on by a strategy that the loop of rounds does not have.

    Parameters
    ----------
    strategy
        The class that the user called, whose name is in the message.
    elsewhere
        Classes that take other options, by how a user calls them.
    """
    unknown = sorted(options.keys() - RoundOptions.__annotations__.keys())
    if not unknown:
        return
    allowed = set(RoundOptions.__annotations__).union(*map(_named, strategy.__mro__))
    named = [f"{name!r}" + _suggestion(name, allowed, elsewhere) for name in unknown]
    raise TypeError(
        f"{strategy.__name__} has no option {' and no option '.join(named)}; "
        f"help({strategy.__name__}) lists them"
    )


def _named(kind: type) -> set[str]:
    """Return the arguments of a class's own constructor that can be given by name."""
    if "__init__" not in vars(kind):
        return set()
    _, *parameters = inspect.signature(vars(kind)["__init__"]).parameters.values()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {each.name for each in parameters if each.kind in by_name}


def _suggestion(name: str, allowed: Collection[str], elsewhere: Mapping[str, type]) -> str:
    """Return, in brackets, where an option belongs or a similar name; "" if there is neither."""
    for called, kind in elsewhere.items():
        if any(name in _named(base) for base in kind.__mro__):
            return f" (it is an argument of {called})"
    near = close_to(name, sorted(allowed), 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def check_labels(labels: object) -> None:
    """Raise TypeError if `labels` is neither None nor a sequence of tensors."""
    if labels is None:
        return
    needed = "a list with the labels of each client, int64 tensors (examples,)"
    check_kind("labels", labels, Sequence, needed)
    for client, client_labels in enumerate(cast(Sequence[object], labels)):
        check_kind(f"labels[{client}]", client_labels, Tensor, "an int64 tensor (examples,)")


def check_observers(observers: Sequence[object]) -> None:
    """Raise TypeError if an argument is not a sequence of observers."""
    check_kind("observers", observers, Sequence, "a list of observers, observers=[...]")
    for place, observer in enumerate(observers):
        check_kind(f"observers[{place}]", observer, Observer, "an object of a subclass of Observer")


def check_positions(strategy: type, upper: nn.Module, mixer: Mixer) -> None:
    """Raise ValueError if the mixer moves patches that have their position embeddings already."""
    geometry = geometry_of("upper", upper)
    if mixer.positions != "upper" or geometry is None or geometry.positions != "lower":
        return
    if stem := getattr(upper, "unmixed_at", ""):
        raise ValueError(
            f"{strategy.__name__} moves patches, and layers before the cut have used their slots "
            "already: a model without position embeddings to add above must be cut before such "
            f"layers, this one with cut_at={stem!r}"
        )
    raise ValueError(
        f"{strategy.__name__} moves patches, so their position embeddings must be added in the "
        "upper segment: cut the model at its embedding with positions='upper'; of segments of your "
        "own, give the geometry what they do, Geometry(..., positions='upper'), or 'none' if "
        "nothing before the cut knows the patches' slots"
    )


def check_parts(
    aggregator: object,
    observers: Sequence[object],
    run: object,
    link: object,
    metrics: object,
) -> None:
    """Raise TypeError if an argument for a part of a strategy is of another kind."""
    if aggregator is not None:
        needed = "a Flower strategy, such as FedAvg()"
        check_kind("aggregator", aggregator, flower.Strategy, needed)
    check_observers(observers)
    if run is not None:
        needed = "a Run, such as Run.create(config, name=...) or Run.open(id)"
        check_kind("run", run, Run, needed)
    if link is not None:
        check_kind("link", link, Link, "a link, such as StreamLink(), or None")
    if metrics is not None:
        check_kind("metrics", metrics, Metrics, "an object of Metrics or of a subclass, or None")


def check_live_clients(clients: Sequence[object]) -> None:
    """Raise TypeError if an argument of `fit` is not a sequence of clients."""
    check_kind("clients", clients, Sequence, "a list of clients, such as SplitClient objects")
    for place, client in enumerate(clients):
        check_kind(
            f"clients[{place}]", client, Client, "a client, such as SplitClient(lower, data)"
        )
