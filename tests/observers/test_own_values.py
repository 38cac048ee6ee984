"""What an observer of one's own keeps is written to the run, or refused under its name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flwr_splitmix import Run
from flwr_splitmix.observers import Observer, RunEnded
from flwr_splitmix.strategies import PSL
from flwr_splitmix.testing.toy import Toy

TOY = Toy(clients=1)


class Own(Observer):
    """Keeps a value, as its state or as a fact."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def state(self) -> dict[str, Any]:
        return dict(self.values.get("state", {}))

    def facts(self) -> dict[str, Any]:
        return dict(self.values.get("facts", {}))

    def on_end(self, event: RunEnded) -> None:
        self.values["error"] = event.error

    def restore(self, state: Any) -> None:
        self.values["restored"] = state


def fit(home: Path, rounds: int, observer: Own, run: Run | None = None) -> Run:
    run = run or Run.create({}, name="x", home=home)
    strategy = PSL(TOY.upper(), device="cpu", steps_per_round=1, run=run, observers=[observer])
    strategy.fit(TOY.make_clients(), rounds)
    return Run.open(run.id, home=home)


def test_numbers_of_numpy_and_torch_are_kept(tmp_path: Path) -> None:
    values = {"mean": np.float32(0.5), "seen": [torch.tensor(3)]}
    run = fit(tmp_path, 1, Own(state=values, facts=values))
    assert run.summary is not None
    assert (run.summary["mean"], run.summary["seen"]) == (0.5, [3])
    later = Own()
    fit(tmp_path, 2, later, run)
    assert later.values["restored"] == {"mean": 0.5, "seen": [3]}


def test_numbers_that_json_lacks_are_text_in_the_summary_and_kept_as_state(tmp_path: Path) -> None:
    values = {"most": math.inf, "seen": [math.nan]}
    run = fit(tmp_path, 1, Own(state=values, facts=values))
    for file in run.path.glob("*.json"):
        json.loads(file.read_text(), parse_constant=pytest.fail)
    assert run.summary is not None
    assert (run.summary["most"], run.summary["seen"]) == ("inf", ["nan"])
    later = Own()
    fit(tmp_path, 2, later, run)
    assert later.values["restored"]["most"] == math.inf
    assert math.isnan(later.values["restored"]["seen"][0])


@pytest.mark.parametrize("method", ["state", "facts"])
def test_what_cannot_be_written_names_the_observer(tmp_path: Path, method: str) -> None:
    observer = Own(**{method: {"weights": torch.ones(2)}})
    with pytest.raises(TypeError, match=rf"Own\.{method}\(\) has a Tensor at \['weights'\]"):
        fit(tmp_path, 1, observer)
    assert "has a Tensor" in observer.values["error"]


@pytest.mark.parametrize("method", ["state", "facts"])
@pytest.mark.parametrize(("values", "description"), [(None, "a NoneType"), ([1], "a list")])
def test_what_is_no_dictionary_names_the_observer(
    tmp_path: Path, method: str, values: Any, description: str
) -> None:
    observer = Own()
    setattr(observer, method, lambda: values)
    with pytest.raises(
        TypeError, match=rf"Own\.{method}\(\) is {description}; expected a dict of JSON"
    ):
        fit(tmp_path, 1, observer)


def test_without_a_run_nothing_is_written() -> None:
    observer = Own(facts={"weights": torch.ones(2)})
    PSL(TOY.upper(), device="cpu", steps_per_round=1, observers=[observer]).fit(
        TOY.make_clients(), 1
    )
    assert observer.values["error"] == ""


@pytest.mark.parametrize("name", ["loss", "top1", "seed", "epsilon", "versions"])
def test_facts_do_not_replace_what_the_summary_has_of_the_run(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"Own\.facts\(\) has '{name}', which the summary has"):
        fit(tmp_path, 1, Own(facts={name: 1.0, "mine": 2.0}))


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("on_steps", "on_step"), ("on_exchanges", "on_exchange"), ("on_rond", "on_round")],
)
def test_a_method_that_no_event_is_passed_to_is_named(
    name: str, suggestion: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The observer would see nothing, silently."""
    type("Mistyped", (Observer,), {name: lambda self, event: None})
    assert caplog.messages == [
        f"Mistyped.{name} gets no event: no observer has such a method; did you mean {suggestion}?"
    ]


def test_other_methods_of_an_observer_are_its_own(caplog: pytest.LogCaptureFixture) -> None:
    names = ["on_step", "on_disk", "step", "flush"]
    type("Own", (Observer,), {name: lambda self, event: None for name in names})
    assert not caplog.messages
