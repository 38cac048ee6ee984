"""What an overridden `attach` or `release` wrongly returns is named, with class and method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flwr_splitmix.clients import SplitClient, UShapeClient
from flwr_splitmix.links import LinkError
from flwr_splitmix.strategies import PSL, SFL, USplitFL
from flwr_splitmix.testing.laws import TextToy
from flwr_splitmix.testing.toy import Toy

TOY, TEXTS = Toy(clients=2), TextToy(clients=2)


def overriding(kind: type[Any], method: str, made: Callable[[Any], Any]) -> type[Any]:
    """Return a subclass whose method returns something made of what the overridden one returns."""

    def own(self: Any, *arguments: Any) -> Any:
        return made(getattr(kind, method)(self, *arguments))

    return type("Own", (kind,), {method: own})


def fit(method: str, made: Callable[[Any], Any], strategy: type[Any] = SFL) -> Any:
    kind = overriding(SplitClient, method, made)
    clients = [kind(TOY.lower(), TOY.data(i), batch_size=4, device="cpu") for i in range(2)]
    trained = strategy(TOY.upper(), device="cpu", steps_per_round=1)
    return trained.fit(clients, 1)


WRONG: list[tuple[str, Callable[[Any], Any], str]] = [
    ("attach", lambda made: None, "returns None; needed is the dictionary of"),
    ("attach", lambda made: list(made), "returns a list of a str, a str, a str; needed is the dic"),
    ("release", lambda made: None, "returns None; needed is a pair of"),
    ("release", lambda made: made[0], "returns a dict; needed is a pair of"),
    ("release", lambda made: (*made, 1), "returns a tuple of a dict, a dict, an int; needed is"),
    ("release", lambda made: (made[0], None), "returns None as metrics; needed is a pair of"),
    ("release", lambda made: (made[1], made[0]), "returns an int as its weight 'num-examples'; n"),
    (
        "release",
        lambda made: ({name: tensor.numpy() for name, tensor in made[0].items()}, made[1]),
        r"returns a ndarray \(\d+.*\) as its weight 'position'; needed is a pair of",
    ),
    ("release", lambda made: (list(made[0].values()), made[1]), "returns a list of .* as weights;"),
]


@pytest.mark.parametrize(("method", "made", "said"), WRONG)
def test_what_an_override_returns_is_named(
    method: str, made: Callable[[Any], Any], said: str
) -> None:
    """Errors about a mapping, a str without items or an array without detach would not tell."""
    with pytest.raises(LinkError, match=f"{method} of Own {said}"):
        fit(method, made)


def test_what_a_subclass_adds_is_taken() -> None:
    def more(made: Any) -> Any:
        return made[0], {**made[1], "mine": 1.5}

    assert fit("release", more).train_metrics_clientapp[1]["mine"] == 1.5
    assert fit("release", lambda made: list(made)).train_metrics_clientapp[1]
    assert fit("attach", lambda made: {**made, "mine": "text"}).train_metrics_clientapp[1]


def test_weights_that_are_not_averaged_may_be_anything() -> None:
    with pytest.raises(LinkError, match="release of Own returns a dict; needed is a pair"):
        fit("release", lambda made: made[0], PSL)
    fit("release", lambda made: (None, made[1]), PSL)
    fit("release", lambda made: ({"w": np.ones(2)}, made[1]), PSL)


@pytest.mark.parametrize(("method", "made", "said"), [WRONG[0], WRONG[3]])
def test_so_in_the_u_shape(method: str, made: Callable[[Any], Any], said: str) -> None:
    clients = TEXTS.clients_for()
    own = overriding(UShapeClient, method, made)
    for client in clients:
        client.__class__ = own
    with pytest.raises(LinkError, match=f"{method} of Own {said}"):
        USplitFL(TEXTS.server(), device="cpu", steps_per_round=1).fit(clients, 1)
