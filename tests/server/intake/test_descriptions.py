"""Which clients fit a round, by what they say of themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from flwr_splitmix.description import Description, DescriptionError, read_description
from flwr_splitmix.links import Clients, LinkError
from flwr_splitmix.links.link import Outcome
from flwr_splitmix.mixers import SmashedShape
from flwr_splitmix.segments import Geometry
from flwr_splitmix.server.intake.checks import cap_at_median
from flwr_splitmix.server.intake.descriptions import agree_on_batches, agree_on_shape
from flwr_splitmix.server.naming import reasons

SHAPE = SmashedShape(batch=4, patches=6, width=3)


class Described(Clients):
    """Clients that only say what they are."""

    def __init__(self, *descriptions: dict[str, Any]) -> None:
        accepted: dict[int, Description] = {}
        failures: dict[int, str] = {}
        for client, description in enumerate(descriptions):
            try:
                accepted[client] = read_description(description)
            except DescriptionError as error:
                failures[client] = str(error)
        super().__init__(1, accepted, failures, None)

    def _exchange(self, method: str, payloads: Mapping[int, Any]) -> dict[int, Outcome]:
        raise AssertionError("nothing is to be called")


def says(**changes: Any) -> dict[str, Any]:
    usual = {"batch-size": 4, "patches": 6, "width": 3, "prefix": 0, "num-examples": 40}
    return {**usual, **{name.replace("_", "-"): value for name, value in changes.items()}}


def test_the_majority_decides_where_the_upper_segment_does_not() -> None:
    clients = Described(says(), says(batch_size=8), says(), says(patches=7))
    shape, steps = agree_on_shape(clients, None)
    assert shape == SHAPE
    assert steps == 10
    assert clients.alive == (0, 2)
    assert clients.failures[3] == (
        "its smashed data are 4 x (7 patches) x 3, others make (4, 6, 3): give all of them one "
        "lower segment, and inputs of one size"
    )


@pytest.mark.parametrize("liar", [0, 1])
@pytest.mark.parametrize("exaggeration", [{"batch_size": 65_536}, {"patches": 999}, {"width": 999}])
def test_of_two_clients_the_one_that_exaggerates_does_not_decide(
    liar: int, exaggeration: dict[str, int]
) -> None:
    """Its batch-size of 2**31 - 1 would end the run for want of memory."""
    clients = Described(*(says(**(exaggeration if client == liar else {})) for client in range(2)))
    assert agree_on_shape(clients, None)[0] == SHAPE
    assert clients.alive == (1 - liar,)


@pytest.mark.parametrize("patches", [(6, 5), (5, 6), (6, 5, 5), (9, 8, 7, 6)])
def test_shapes_that_the_upper_segment_does_not_take_decide_nothing(
    patches: tuple[int, ...],
) -> None:
    """Otherwise one client with smaller images could end the run with torch's error."""
    clients = Described(*(says(patches=number) for number in patches))
    trials: list[int] = []

    def takes(shape: SmashedShape) -> bool:
        trials.append(shape.patches)
        return shape.patches == 6

    assert agree_on_shape(clients, None, takes=takes)[0] == SHAPE
    assert clients.alive == (patches.index(6),)
    assert trials[-1] == 6
    assert len(trials) == len(set(trials))


def test_if_the_upper_segment_takes_nothing_most_clients_decide_as_before() -> None:
    """A trial may fail where training does not, so that the rarest shape must not decide."""
    clients = Described(says(), says(), says(), says(patches=9))
    assert agree_on_shape(clients, None, takes=lambda shape: False)[0] == SHAPE
    assert clients.alive == (0, 1, 2)


def test_clients_that_agree_are_not_tried() -> None:
    clients = Described(says(), says(batch_size=2), says())
    assert agree_on_shape(clients, None, takes=lambda shape: False)[0] == SHAPE


@pytest.mark.parametrize("widths", [(5, 7), (7, 5), (1024, 64), (64, 1024)])
def test_the_same_holds_for_the_width_of_texts(widths: tuple[int, int]) -> None:
    texts = {"batch-size": 4, "num-examples": 40, "calibration-steps": 0}
    clients = Described(*({**texts, "width": width} for width in widths))
    agree_on_batches(clients, None)
    assert clients.alive == (widths.index(min(widths)),)


def test_the_upper_segment_decides_against_any_majority() -> None:
    clients = Described(says(patches=7), says(patches=7), says(), says(prefix=1))
    assert agree_on_shape(clients, Geometry(6, 3))[0] == SHAPE
    assert clients.alive == (2,)
    assert "1 prefix token + 6 patches" in clients.failures[3]
    with pytest.raises(LinkError, match="no client fits the upper segment: client 0: its smashed"):
        agree_on_shape(Described(says(width=4)), Geometry(6, 3))


def test_the_grid_of_patches_is_that_of_the_upper_segment_or_else_of_most_lower_ones() -> None:
    """Clients that name no grid, or another, are left out only by methods that need one."""
    clients = Described(says(grid_columns=3), says(), says(grid_columns=3), says(grid_columns=2))
    assert agree_on_shape(clients, None)[0].grid == (2, 3)
    assert agree_on_shape(clients, Geometry(6, 3))[0].grid == (2, 3)
    assert agree_on_shape(clients, Geometry(6, 3, grid=(1, 6)))[0].grid == (1, 6)
    assert agree_on_shape(Described(says(), says()), None)[0].grid is None
    assert not clients.failures


def test_steps_are_the_mean_number_of_full_batches() -> None:
    sizes = (3, 11, 40)  # 0, 2 and 10 full batches
    clients = Described(*(says(num_examples=size) for size in sizes))
    assert agree_on_shape(clients, None)[1] == 4
    assert agree_on_shape(Described(says(num_examples=1)), None)[1] == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"batch_size": 0}, "says that its batch-size is 0; it must be an integer of at least 1"),
        ({"batch_size": 2**20 + 1}, "says that its batch-size is more than 1048576"),
        (
            {"batch_size": 60_000, "width": 3_000},
            "x (6 patches) x 3000, or 1080000000 numbers; the most is 1073741824",
        ),
        ({"patches": -1}, "its patches is -1"),
        ({"width": "3"}, "its width is '3'"),
        ({"prefix": None}, "does not say its prefix, as it must"),
        ({"grid_columns": 4}, "says that its 6 patches form 4 columns"),
        ({"grid_columns": 0}, "says that its grid-columns is 0"),
        ({"grid_columns": 7}, "says that its grid-columns is more than 6"),
        ({"grid_columns": "2"}, "its grid-columns is '2'"),
        ({"num_examples": True}, "its num-examples is True"),
        ({"num_examples": 0}, "its num-examples is 0"),
        ({"num_examples": 10**5000}, "its num-examples is more than 2147483647"),
        ({"num_examples": -(10**5000)}, "its num-examples is less than -2147483647"),
        ({"num_examples": [10**5000]}, "its num-examples is a list"),
        ({"drawn": "7"}, "its drawn is '7'"),  # for one reader nothing, for another the most
        ({"same_object": "yes"}, "its same-object is 'yes'; it must be true or false"),
        ({"federated_examples": -1}, "its federated-examples is -1"),
        ({"edge": 5}, "its edge is 5; it must be a text"),
        ({"unbounded": [["plain"]]}, "its unbounded is no list of texts"),
    ],
)
def test_a_client_that_describes_itself_badly_is_left_out(
    changes: dict[str, Any], sentence: str
) -> None:
    clients = Described(says(**changes), says())
    agree_on_shape(clients, None)
    assert clients.alive == (1,)
    assert sentence in clients.failures[0]


def test_reasons_are_listed_up_to_five() -> None:
    clients = Described(*(says() for _ in range(8)))
    for client in range(7):
        clients.fail(client, "late")
    assert reasons(clients) == "clients 0, 1, 2, 3, 4, 5 and 6: late"
    for client in range(7):
        clients.failures[client] = f"late by {client} s"
    assert reasons(clients).startswith("client 0: late by 0 s; client 1: late by 1 s; ")
    assert reasons(clients).endswith("client 4: late by 4 s; and 2 more")
    clients.failures |= dict.fromkeys(range(20), "late")
    assert reasons(clients) == "clients 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 10 more: late"


def test_a_client_that_exaggerates_does_not_keep_the_others_busy() -> None:
    assert cap_at_median([10, 12, 11]) == [10, 12, 11]
    assert cap_at_median([10, 12, 10**12]) == [10, 12, 1200]
    assert cap_at_median([12, 10**400]) == [12, 1200]  # nor a single other one
    clients = Described(says(), says(), says(num_examples=10**12))
    _, steps = agree_on_shape(clients, None)
    assert steps < 100 * 12
