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


def overriding(kind: type[Any], method: str, change: Callable[[Any], Any]) -> type[Any]:
    """Return a subclass whose method returns something made of what the overridden one returns."""

    def override(self: Any, *arguments: Any) -> Any:
        return change(getattr(kind, method)(self, *arguments))

    return type("Own", (kind,), {method: override})


def fit(method: str, change: Callable[[Any], Any], strategy: type[Any] = SFL) -> Any:
    kind = overriding(SplitClient, method, change)
    clients = [kind(TOY.lower(), TOY.data(i), batch_size=4, device="cpu") for i in range(2)]
    trained = strategy(TOY.upper(), device="cpu", steps_per_round=1)
    return trained.fit(clients, 1)


WRONG: list[tuple[str, Callable[[Any], Any], str]] = [
    ("attach", lambda output: None, "returns None; expected the dictionary of"),
    (
        "attach",
        lambda output: list(output),
        "returns a list of a str, a str, a str; expected the dic",
    ),
    ("release", lambda output: None, "returns None; expected a pair of"),
    ("release", lambda output: output[0], "returns a dict; expected a pair of"),
    (
        "release",
        lambda output: (*output, 1),
        "returns a tuple of a dict, a dict, an int; expected a pair",
    ),
    ("release", lambda output: (output[0], None), "returns None as metrics; expected a pair of"),
    (
        "release",
        lambda output: (output[1], output[0]),
        "returns an int as its weight 'num-examples'; exp",
    ),
    (
        "release",
        lambda output: ({name: tensor.numpy() for name, tensor in output[0].items()}, output[1]),
        r"returns a ndarray \(\d+.*\) as its weight 'position'; expected a pair of",
    ),
    (
        "release",
        lambda output: (list(output[0].values()), output[1]),
        "returns a list of .* as weights;",
    ),
]


@pytest.mark.parametrize(("method", "change", "message"), WRONG)
def test_what_an_override_returns_is_named(
    method: str, change: Callable[[Any], Any], message: str
) -> None:
    """Errors about a mapping, a str without items or an array without detach would not tell."""
    with pytest.raises(LinkError, match=f"{method} of Own {message}"):
        fit(method, change)


def test_what_a_subclass_adds_is_taken() -> None:
    def more(output: Any) -> Any:
        return output[0], {**output[1], "mine": 1.5}

    assert fit("release", more).train_metrics_clientapp[1]["mine"] == 1.5
    assert fit("release", lambda output: list(output)).train_metrics_clientapp[1]
    assert fit("attach", lambda output: {**output, "mine": "text"}).train_metrics_clientapp[1]


def test_weights_that_are_not_averaged_may_be_anything() -> None:
    with pytest.raises(LinkError, match="release of Own returns a dict; expected a pair"):
        fit("release", lambda output: output[0], PSL)
    fit("release", lambda output: (None, output[1]), PSL)
    fit("release", lambda output: ({"w": np.ones(2)}, output[1]), PSL)


@pytest.mark.parametrize(("method", "change", "message"), [WRONG[0], WRONG[3]])
def test_so_in_the_u_shape(method: str, change: Callable[[Any], Any], message: str) -> None:
    clients = TEXTS.clients_for()
    subclass = overriding(UShapeClient, method, change)
    for client in clients:
        client.__class__ = subclass
    with pytest.raises(LinkError, match=f"{method} of Own {message}"):
        USplitFL(TEXTS.server(), device="cpu", steps_per_round=1).fit(clients, 1)
