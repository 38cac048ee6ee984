"""What the catalogue says of each method is what its classes are."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from inspect import Parameter, signature
from pkgutil import iter_modules
from typing import Any

import pytest

from flwr_splitmix import strategies
from flwr_splitmix.hiding.making import hiding_options
from flwr_splitmix.methods import (
    BY_NAME,
    METHODS,
    MIXING,
    Method,
    own_options,
    plain_options,
    strategy_class,
    strategy_names,
)
from flwr_splitmix.strategies import STRATEGIES, USHAPE_STRATEGIES, SplitStrategy, UShapeStrategy
from flwr_splitmix.testing.toy import Toy
from tests.laws.makers import alike, maker

every_method = pytest.mark.parametrize("method", [pytest.param(m, id=m.name) for m in METHODS])
of_the_l_shape = pytest.mark.parametrize(
    "method", [pytest.param(m, id=m.name) for m in METHODS if m.shape == "L"]
)


def test_every_class_of_a_method_stands_in_the_catalogue() -> None:
    """A class that is forgotten there could not be had by its name."""
    shapes = (SplitStrategy, UShapeStrategy)
    classes: set[type[Any]] = set()
    for place in iter_modules(strategies.__path__):
        module = import_module(f"flwr_splitmix.strategies.{place.name}")
        kinds = (value for value in vars(module).values() if isinstance(value, type))
        classes |= {kind for kind in kinds if issubclass(kind, shapes)}
    public = {kind for kind in classes if not kind.__name__.startswith("_")}
    assert public - {*shapes} == {strategy_class(name) for name in strategy_names()}


def test_names_are_unique() -> None:
    assert len(BY_NAME) == sum(len(method.names) for method in METHODS)


def test_strategies_are_found_by_their_shape_and_by_their_name() -> None:
    assert list(STRATEGIES) == list(strategy_names("L"))
    assert list(USHAPE_STRATEGIES) == list(strategy_names("U"))
    for name, kind in {**STRATEGIES, **USHAPE_STRATEGIES}.items():
        assert kind.__name__ == name
        assert getattr(strategies, name) is kind
        assert name in strategies.__all__
    assert all(issubclass(kind, SplitStrategy) for kind in STRATEGIES.values())
    assert all(issubclass(kind, UShapeStrategy) for kind in USHAPE_STRATEGIES.values())


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'CutMixSLL'"):
        _ = strategies.CutMixSLL


@pytest.mark.parametrize(
    "method", [pytest.param(m, id=m.name) for m in METHODS if m.twin is not None]
)
def test_a_twin_differs_in_averaging_alone(method: Method) -> None:
    """So whatever holds of a strategy holds of its twin, and the laws need not be run over both."""
    plain, twin = (strategy_class(name) for name in method.names)
    assert twin.__bases__ == (plain,)
    # What Python gives to every class, and abc to every class below an abstract one.
    implicit_names = {"__module__", "__doc__", "__parameters__", "__abstractmethods__", "_abc_impl"}
    implicit_names |= {"__firstlineno__", "__static_attributes__"}  # since Python 3.13
    assert vars(twin).keys() - implicit_names == {"averages"}
    assert (plain.averages, twin.averages) == (False, True)


@every_method
def test_what_a_strategy_needs_is_what_its_constructor_asks_for(method: Method) -> None:
    kind = strategy_class(method.name)
    parameters = signature(kind).parameters
    required = {name for name in own_options(kind) if parameters[name].default is Parameter.empty}
    required |= {name for name in ("noise", "labels") if getattr(kind, f"needs_{name}", False)}
    assert set(method.needs) == required


@every_method
def test_keys_on_noise_are_options_of_the_methods_hiding(method: Method) -> None:
    """Of a method of the L shape they are those of all others."""
    keys = {key.replace("-", "_") for key in method.noise}
    assert keys <= (hiding_options(strategy_class(method.name).hiding) if keys else set())


@of_the_l_shape
def test_the_mixer_is_the_one_that_the_catalogue_names(method: Method) -> None:
    """The laws are run once for each of these names."""
    strategy = maker(method.name)(Toy().upper())
    assert str(strategy.mixer) == method.mixer
    assert strategy.mixer.positions == method.positions


def test_own_options_are_those_that_no_other_strategy_has() -> None:
    assert own_options(strategy_class("PSL")) == ()
    assert own_options(strategy_class("CutoutSFL")) == (
        "ratio",
        "alpha",
        "mask_per_sample",
        "fixed_positions",
    )
    assert own_options(strategy_class("InputMixupSL")) == ("grid", "across")
    assert own_options(strategy_class("BatchShuffleSL")) == ("labels", "kappa")


@of_the_l_shape
def test_the_keys_on_mixing_are_those_of_the_constructor(method: Method) -> None:
    options = plain_options(strategy_class(method.name))
    assert set(method.keys) == {key for key in MIXING if key in options}


def test_plain_options_are_those_that_a_run_configuration_can_say() -> None:
    assert plain_options(strategy_class("InputMixupSL")) == ("across",)
    assert plain_options(strategy_class("BatchShuffleSL")) == ("kappa",)
    assert plain_options(strategy_class("MixupSL")) == ("k", "alpha", "regroup", "leftover")


@pytest.mark.parametrize("family", alike(METHODS), ids=lambda family: family[0].name)
def test_methods_that_mix_alike_differ_in_their_constructors_alone(family: list[Method]) -> None:
    """So the laws are run over the first of them only."""
    for method in family[1:]:
        attributes = vars(strategy_class(method.name))
        assert {name for name, value in attributes.items() if callable(value)} <= {"__init__"}


def test_the_catalogue_loads_neither_torch_nor_a_strategy() -> None:
    script = (
        "import sys, flwr_splitmix.methods\n"
        "sys.exit(any(n == 'torch' or n.startswith('flwr_splitmix.s') for n in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
