"""What an overridden `server_state` returns is checked when a checkpoint is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flwr_splitmix.runs import Run
from flwr_splitmix.strategies import PSL, SplitStrategy, UShapeStrategy, USplitSL
from flwr_splitmix.testing.toy import Toy, sgd
from flwr_splitmix.testing.toy_texts import TextToy

Change = Callable[[Any], Any]


def fitted(kind: type[Any], change: Change, home: Path) -> Run:
    """Do a round of a subclass whose `server_state` is made of what its base class returns."""
    subclass = type("Own", (kind,), {"server_state": lambda self: change(kind.server_state(self))})
    toy: Any = Toy(clients=2) if issubclass(kind, SplitStrategy) else TextToy(clients=2)
    run = Run.create({}, name="own", home=home)
    strategy = subclass(toy.server(), device="cpu", steps_per_round=1, optimizer=sgd(0.1), run=run)
    strategy.fit(toy.clients_for(strategy, sgd(0.1)), 1)
    return run


@pytest.mark.parametrize("kind", [PSL, USplitSL])
def test_what_is_added_is_kept(kind: type[SplitStrategy | UShapeStrategy], tmp_path: Path) -> None:
    added = {"own": torch.ones(2)}, {"taken": 3, "each": [np.float32(0.5)]}
    run = fitted(kind, lambda pair: ({**pair[0], **added[0]}, {**pair[1], **added[1]}), tmp_path)
    checkpoint = run.checkpoints.load()
    assert torch.equal(checkpoint.tensors["own"], torch.ones(2))
    assert (checkpoint.meta["taken"], checkpoint.meta["each"]) == (3, [0.5])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda pair: None, r"is None; expected a pair of tensors by name and JSON values"),
        (lambda pair: pair[0], r"is an? \w+; expected a pair of tensors by name and JSON values"),
        (lambda pair: ([], pair[1]), r"is a tuple of a list of nothing, a dict; expected a pair"),
        (lambda pair: ({**pair[0], "n": 3}, pair[1]), r"has an int as 'n'; expected a tensor"),
        (
            lambda pair: ({**pair[0], 3: torch.ones(1)}, pair[1]),
            r"has a tensor named 3; names must",
        ),
        (lambda pair: (pair[0], {**pair[1], "n": {1}}), r"has a set at \['n'\]; it must consist"),
    ],
)
def test_what_no_checkpoint_could_hold_is_named(
    change: Change, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=rf"^Own\.server_state\(\) {sentence}"):
        fitted(PSL, change, tmp_path)


@pytest.mark.parametrize("kind", [PSL, USplitSL])
@pytest.mark.parametrize("part", [0, 1], ids=["tensors", "values"])
def test_what_the_strategy_itself_keeps_may_not_be_missing(
    kind: type[SplitStrategy | UShapeStrategy], part: int, tmp_path: Path
) -> None:
    """A checkpoint without the server's segment would have a resumed run begin with another.

    Over the stream, the lower segments of the clients would go on, with an upper one that is new.
    """

    def without(pair: Any) -> Any:
        return ({}, pair[1]) if part == 0 else (pair[0], {})

    first = ["'(upper|trunk)[.]", "'(upper-optimizer|calibrations)"][part]
    sentence = (
        rf"^Own\.server_state\(\) lacks {first}.*; add to what super\(\)\.server_state\(\) re"
    )
    with pytest.raises(TypeError, match=sentence):
        fitted(kind, without, tmp_path)


@pytest.mark.parametrize("name", ["observers", "seed-of-run", "trained"])
def test_a_name_that_a_checkpoint_has_for_something_else_is_refused(
    name: str, tmp_path: Path
) -> None:
    """The strategy's own value would be lost without a word."""
    with pytest.raises(ValueError, match=rf"^server_state\(\) returns '{name}', a name that a"):
        fitted(PSL, lambda pair: (pair[0], {**pair[1], name: 3}), tmp_path)
    with pytest.raises(
        ValueError, match=r"^server_state\(\) returns 'initial-lower\.position', a name"
    ):
        fitted(
            PSL,
            lambda pair: ({**pair[0], "initial-lower.position": torch.ones(1)}, pair[1]),
            tmp_path,
        )
