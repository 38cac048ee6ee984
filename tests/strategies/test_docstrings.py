"""`help` of a strategy names every option that it takes."""

from __future__ import annotations

import inspect
import re
from typing import Unpack

import pytest
from torch import nn

from flwr_splitmix.mixers import Mixup
from flwr_splitmix.server.options import RoundOptions, SplitOptions, UShapeOptions
from flwr_splitmix.server.rounds import RoundLoop
from flwr_splitmix.strategies import STRATEGIES, USHAPE_STRATEGIES, SplitStrategy, UShapeStrategy

ROUND = set(RoundOptions.__annotations__)


def documented(strategy: type) -> list[str]:
    section = inspect.cleandoc(strategy.__doc__ or "").partition("Parameters\n----------\n")[2]
    lines = re.findall(r"^\S.*", section.partition("\n\n")[0], re.MULTILINE)
    return [name for line in lines for name in line.split(", ")]


def accepted(strategy: type[SplitStrategy] | type[UShapeStrategy]) -> set[str]:
    parameters = set(inspect.signature(strategy).parameters)
    rest = SplitOptions if strategy.__name__ in STRATEGIES else RoundOptions
    return (parameters - {"options"}) | set(rest.__annotations__)


@pytest.mark.parametrize(
    "strategy",
    [SplitStrategy, UShapeStrategy, *STRATEGIES.values(), *USHAPE_STRATEGIES.values()],
    ids=lambda strategy: strategy.__name__,
)
def test_every_option_is_documented_once(
    strategy: type[SplitStrategy] | type[UShapeStrategy],
) -> None:
    assert sorted(documented(strategy)) == sorted(accepted(strategy))


@pytest.mark.parametrize("rest", [SplitOptions, RoundOptions])
def test_what_is_passed_on_to_the_loop_of_rounds_is_all_that_it_takes(rest: type) -> None:
    """Such as `metrics`: typed, and in a `help`."""
    assert set(inspect.signature(RoundLoop).parameters) <= {
        *rest.__annotations__,
        "recording",
        "aggregator",
        "min_nodes",
    }


@pytest.mark.parametrize(
    ("shape", "options", "own_parameters"),
    [
        (SplitStrategy, SplitOptions, {"upper", "mixer", "labels"}),
        (UShapeStrategy, UShapeOptions, {"trunk"}),
    ],
)
def test_a_shape_passes_on_all_options_but_its_modules(
    shape: type, options: type, own_parameters: set[str]
) -> None:
    parameters = set(inspect.signature(shape).parameters) - {"options"}
    assert parameters | ROUND == own_parameters | set(options.__annotations__)


def test_what_follows_the_parameters_is_kept() -> None:
    text = STRATEGIES["CutMixSFL"].__doc__ or ""
    assert text.startswith("CutMixSL whose lower segments are averaged every round")
    assert text.endswith("\n\nSource: CutMixSL, section 4 and appendix C.")


class Own(SplitStrategy):
    """Sums.

    Parameters
    ----------
    upper
        The one.
    strength
        How much.
    **options
        See `SplitStrategy`.

    Raises
    ------
    ValueError
        Never.
    """

    def __init__(self, upper: nn.Module, *, strength: float = 1, **options: Unpack[SplitOptions]):
        super().__init__(upper, mixer=Mixup(), **options)


class OwnU(UShapeStrategy):
    """Sums.

    Parameters
    ----------
    trunk
        The one.
    strength
        How much.
    **options
        See `UShapeStrategy`.
    """

    def __init__(self, trunk: nn.Module, *, strength: float = 1, **options: Unpack[UShapeOptions]):
        super().__init__(trunk, **options)


def test_an_own_strategy_of_the_u_shape_lists_what_it_passes_on() -> None:
    """Such as `width` and `max_length`, in its `help`."""
    passed_on = set(inspect.signature(UShapeStrategy).parameters) - {"trunk", "options"}
    assert sorted(documented(OwnU)) == sorted({"trunk", "strength", *passed_on, *ROUND})


class Brief(SplitStrategy):
    """Takes no option."""

    def __init__(self, upper: nn.Module):
        super().__init__(upper, mixer=Mixup())


class Silent(Own):
    pass


def test_a_subclass_of_a_user_is_completed() -> None:
    names = documented(Own)
    assert names[:2] == ["upper", "strength"]
    assert "mixer" not in names
    assert "**options" not in names
    assert "\n\nRaises\n------\nValueError\n    Never." in (Own.__doc__ or "")
    assert (Brief.__doc__, Silent.__doc__) == ("Takes no option.", None)
