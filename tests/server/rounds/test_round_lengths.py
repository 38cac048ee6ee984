"""The number of steps of a round: announced when it begins, and kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from torch import Tensor

from flwr_splitmix.events import EvaluationResult, RoundBegun, RoundDone
from flwr_splitmix.links import Clients
from flwr_splitmix.observers import Observer
from flwr_splitmix.runs import Run
from flwr_splitmix.server.rounds import RoundLoop
from flwr_splitmix.strategies import PSL, USplitSL
from flwr_splitmix.testing.laws import TextToy
from flwr_splitmix.testing.toy import Toy, sgd


class Lengths(Observer):
    def __init__(self) -> None:
        self.announced: list[int | None] = []
        self.taken: list[int] = []

    def on_begin(self, event: RoundBegun) -> None:
        self.announced.append(event.steps)

    def on_round(self, event: RoundDone) -> None:
        self.taken.append(event.steps)


def overriding(kind: type[Any], method: str) -> type[Any]:
    """Return a subclass that takes as many steps as the round's number, and says so in `method`."""

    def override(self: Any, clients: Clients, *arguments: Any) -> Any:
        self.steps_per_round = clients.server_round
        return getattr(kind, method)(self, clients, *arguments)

    return type("Own", (kind,), {method: override})


def images(kind: type[Any], **options: Any) -> None:
    toy = Toy(clients=2)
    kind(toy.upper(), device="cpu", optimizer=sgd(0.1), **options).fit(toy.make_clients(), 3)


def texts(kind: type[Any], **options: Any) -> None:
    toy = TextToy(clients=2)
    strategy = kind(toy.server(), device="cpu", **options)
    strategy.fit(toy.clients_for(strategy), 3)


SHAPES = pytest.mark.parametrize(("fit", "kind"), [(images, PSL), (texts, USplitSL)])


@SHAPES
def test_a_strategy_may_choose_the_length_of_every_round(fit: Any, kind: type[Any]) -> None:
    observer = Lengths()
    fit(overriding(kind, "agree"), observers=[observer])
    assert observer.announced == observer.taken == [1, 2, 3]


@SHAPES
def test_a_length_that_changes_within_its_round_is_refused(fit: Any, kind: type[Any]) -> None:
    """Ledgers count on the length that is announced, so it is not the next round's, silently."""
    with pytest.raises(RuntimeError, match=r"after a round of 7 steps had begun: .* in `agree`"):
        fit(overriding(kind, "train_round"), steps_per_round=7)


def agreeing(kind: type[Any], agree: Callable[[Any, Clients], Any]) -> type[Any]:
    """Return a subclass whose `agree` is this function of the strategy and its clients."""
    return type("Own", (kind,), {"agree": agree})


def set_to(value: Any) -> Callable[[Any, Clients], Any]:
    """Return an `agree` that sets the length of a round to a value."""

    def agree(self: Any, clients: Clients) -> Any:
        self.steps_per_round = value
        return super(type(self), self).agree(clients)

    return agree


def returning(change: Callable[[int], Any]) -> Callable[[Any, Clients], Any]:
    """Return an `agree` that returns something else than it should."""
    return lambda self, clients: change(super(type(self), self).agree(clients))


@SHAPES
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda steps: 1, r"agree of Own returns 1, but 7 steps will be taken, .* sets `steps_per"),
        (lambda steps: 2 * steps, "agree of Own returns 14, but 7 steps will be taken"),
        (str, "agree of Own returns '7'; expected the round's number of steps, or None"),
        (float, "agree of Own returns 7.0; expected"),
        (lambda steps: True, "agree of Own returns True; expected"),
        (lambda steps: -1, "agree of Own returns -1; expected"),
    ],
)
def test_a_length_is_not_believed(
    change: Callable[[int], Any], sentence: str, fit: Any, kind: type[Any], tmp_path: Path
) -> None:
    """Written down, it would let an interrupted round be charged short."""
    run = Run.create({}, name="own", home=tmp_path)
    with pytest.raises(RuntimeError, match=sentence):
        fit(agreeing(kind, returning(change)), steps_per_round=7, run=run)
    assert not (run.path / "begun.jsonl").exists()


@SHAPES
def test_a_length_may_be_numpys_or_unknown(fit: Any, kind: type[Any], tmp_path: Path) -> None:
    observer, run = Lengths(), Run.create({}, name="own", home=tmp_path)
    fit(agreeing(kind, set_to(np.int64(2))), observers=[observer], run=run)
    fit(agreeing(kind, returning(np.int64)), observers=[observer], steps_per_round=2)
    fit(agreeing(kind, returning(lambda steps: None)), observers=[observer], steps_per_round=2)
    assert observer.announced == [2] * 6 + [None] * 3
    assert observer.taken == [2] * 9


@SHAPES
@pytest.mark.parametrize("value", [-2, 0, 2.0, "2"])
def test_a_bad_length_set_in_agree_is_refused_by_name(
    value: Any, fit: Any, kind: type[Any]
) -> None:
    """Otherwise -2 would give rows of -2 steps, and 0 the full length."""
    with pytest.raises(ValueError, match=f"steps_per_round is {value!r}; it must be"):
        fit(agreeing(kind, set_to(value)))


@SHAPES
@pytest.mark.parametrize("first", [1, 2])
def test_an_agree_without_that_of_the_shape_is_refused(
    fit: Any, kind: type[Any], first: int
) -> None:
    """In later rounds it would have the length of the first."""

    def agree(self: Any, clients: Clients) -> Any:
        return kind.agree(self, clients) if clients.server_round < first else 3

    with pytest.raises(RuntimeError, match=r"agree of Own must call super\(\).agree\(clients\)"):
        fit(agreeing(kind, agree))


@pytest.mark.parametrize(
    "strategy", [PSL(Toy().upper(), device="cpu"), USplitSL(TextToy().server(), device="cpu")]
)
def test_a_round_of_which_nothing_was_agreed_is_refused(strategy: Any) -> None:
    nobody = cast(Clients, None)
    with pytest.raises(RuntimeError, match=r"was called before agree, .*: call agree\(clients\)"):
        strategy.train_round(nobody, 1)


class Counted(RoundLoop):
    """A shape of its own: it says how many steps it will take, and how many it took."""

    says: Any = 3
    takes: Any = 3

    def agree(self, clients: Clients) -> int | None:
        return cast(int | None, self.says)

    def train_round(self, clients: Clients, server_round: int) -> int:
        return cast(int, self.takes)

    def evaluate_round(self, clients: Clients) -> EvaluationResult | None:
        return None

    def server_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {}, {}

    def restore_server(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        pass

    def summary(self) -> None:
        pass


def counted_rounds(says: Any, takes: Any) -> list[int]:
    kind = type("Own", (Counted,), {"says": says, "takes": takes})
    strategy = kind(aggregator=None, min_nodes=1)
    strategy.fit(Toy(clients=2).make_clients(), 2)
    return [row["steps"] for row in strategy.rows]


def test_a_shape_of_ones_own_says_what_it_takes() -> None:
    assert counted_rounds(None, 3) == counted_rounds(3, 3) == counted_rounds(4, 3) == [3, 3]
    assert counted_rounds(0, 0) == [0, 0]


@pytest.mark.parametrize(
    ("says", "takes", "sentence"),
    [
        (-1, 0, "agree of Own returns -1; expected the round's number of steps, or None"),
        ([3], 0, "agree of Own returns a list of an int; expected"),
        (2, 3, "train_round of Own took 3 steps, but `agree` had returned 2, on which ledgers"),
        (2, None, "train_round of Own returns None; expected the number of steps that it has"),
    ],
)
def test_a_shape_of_ones_own_that_says_otherwise_is_refused(
    says: Any, takes: Any, sentence: str
) -> None:
    with pytest.raises(RuntimeError, match=sentence):
        counted_rounds(says, takes)
