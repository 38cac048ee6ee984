"""A client's description of itself: keys, ranges, and one reader that nothing gets past."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest

from flwr_splitmix.clients import Client
from flwr_splitmix.description import (
    Description,
    DescriptionError,
    NodeDescription,
    SegmentDescription,
    SplitDescription,
    UploadFacts,
    UShapeDescription,
    keys_of,
    read_description,
)
from flwr_splitmix.strategies import USplitSL
from flwr_splitmix.testing.laws import TextToy
from flwr_splitmix.testing.toy import Toy
from flwr_splitmix.values import MAX_COUNT
from tests.clients.ushape import ORDER

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"

SPLIT = SplitDescription(
    num_examples=12,
    batch_size=4,
    segment=SegmentDescription(
        prefix=1,
        patches=6,
        width=3,
        grid_columns=2,
        positions="lower",
        edge="{}",
        trainable=False,
    ),
    uploads=UploadFacts(
        budget_spent=True,
        public_evaluation=True,
        across_batch=True,
        same_object=True,
        unbounded=("clip", "plain"),
    ),
    state_round=2,
    drawn=0,
    federated_examples=5,
    benchmark_examples=0,
    repeatable_secrets=True,
    seeded=True,
    node=NodeDescription(given_weights="w", given_orders="o", allow_training=False),
    others={"battery": 0.5, "sensors": ["left", "right"]},
)
USHAPE = UShapeDescription(
    num_examples=12,
    batch_size=4,
    width=3,
    calibration_steps=0,
    hiding="MixGuard Hiding",
    frozen_weights=0.25,
    drawn=7,
)
LEAST = {
    SplitDescription: {"num-examples": 8, "batch-size": 4, "prefix": 0, "patches": 6, "width": 3},
    UShapeDescription: {"num-examples": 8, "batch-size": 4, "width": 3, "calibration-steps": 0},
    Description: {},
}
"""The entries that a client of each shape must send."""

HOSTILE = [
    -1, 2**31, 2**63, 10**4300 - 1, -(10**4300 - 1), 1.5, 0.0, math.nan, math.inf, True, False, "7",
    "", [], [1], [None], ["a"], {}, {"a": 1}, b"x", object(),
]  # fmt: skip


@pytest.mark.parametrize(
    "description", [SPLIT, USHAPE, Description(num_examples=3)], ids=lambda d: ""
)
def test_what_is_sent_is_read(description: Description) -> None:
    assert read_description(json.loads(json.dumps(description.to_plain()))) == description


@pytest.mark.parametrize("shape", LEAST)
def test_what_has_its_default_is_not_sent(shape: type[Description]) -> None:
    """Nodes and servers of one protocol agree on a mapping, whatever version has more keys."""
    description = read_description(LEAST[shape])
    assert type(description) is shape
    assert description.to_plain() == LEAST[shape]
    assert (description.drawn, description.tests("federated"), description.tests("benchmark")) == (
        None,
        0,
        0,
    )


def reason(description: Mapping[str, Any]) -> str:
    """Return why a description is refused; "" if it is not."""
    try:
        read_description(description)
    except DescriptionError as error:
        return str(error)
    return ""


def is_of(kind: Any, value: object) -> bool:
    """Return whether a value has the type of a key."""
    if isinstance(value, list):
        return get_origin(kind) is tuple and all(isinstance(each, str) for each in value)
    return type(value) is (int if get_origin(kind) is Annotated else kind)


@pytest.mark.parametrize("shape", LEAST)
def test_any_value_under_any_key_is_read_or_refused_with_the_keys_name(
    shape: type[Description],
) -> None:
    """What one client reports must not end a run, in ledgers, traces or checkpoints."""
    for key, kind in keys_of(shape).items():
        refused = {number: reason({**LEAST[shape], key: v}) for number, v in enumerate(HOSTILE)}
        assert all(is_of(kind, HOSTILE[number]) for number, why in refused.items() if not why)
        assert any(refused.values())
        named = rf"says that its {key} is .{{1,120}}|says that its 6 patches form \d+ columns"
        assert not [why for why in refused.values() if why and not re.fullmatch(named, why)]


def test_what_is_read_can_be_written() -> None:
    for key, value in product(keys_of(SplitDescription), HOSTILE):
        description = {**LEAST[SplitDescription], key: value}
        if not reason(description):
            assert json.dumps(read_description(description).to_plain(), allow_nan=False)


@pytest.mark.parametrize("shape", LEAST)
def test_a_key_that_is_missing_is_named(shape: type[Description]) -> None:
    for key in LEAST[shape]:
        description = {name: value for name, value in LEAST[shape].items() if name != key}
        if key in ("patches", "calibration-steps"):  # by which the shape is known
            assert type(read_description(description)) is Description
        else:
            with pytest.raises(DescriptionError, match=f"does not say its {key}, as it must"):
                read_description(description)


def test_a_key_of_a_clients_own_is_kept_if_it_is_plain() -> None:
    own_keys: dict[str, Any] = {
        "battery": 0.5,
        "site": "A",
        "ok": True,
        "none": None,
        "ids": [1, 2],
    }
    description = read_description({**LEAST[SplitDescription], **own_keys})
    assert description.others == own_keys
    assert description.to_plain() == {**LEAST[SplitDescription], **own_keys}
    for value in ({}, [[1]], 2**63, -(10**400), object(), b"x", [2**63]):
        with pytest.raises(DescriptionError, match="itself in other than plain values"):
            read_description({**LEAST[SplitDescription], "own": value})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("batch-norm", "across-batch"),
        ("across_batch", "across-batch"),
        ("AcrossBatch", "across-batch"),
        ("budget-spend", "budget-spent"),
        ("goes-on", "same-object"),
    ],
)
def test_a_fact_is_not_missed_for_its_spelling(key: str, meant: str) -> None:
    """An epsilon would otherwise be too small, without a word."""
    with pytest.raises(DescriptionError, match=f"by a key that is not '{meant}', but means it"):
        read_description({**LEAST[SplitDescription], key: True})


@pytest.mark.parametrize("key", ["batches", "width2", "prefixs"])
def test_a_key_of_ones_own_may_be_like_one_that_is_there(key: str) -> None:
    entries = {**LEAST[SplitDescription], "width": 8, "prefix": 0, "batch-size": 4, "patches": 4}
    assert read_description({**entries, key: 5}).others == {key: 5}


def test_both_kinds_of_clients_say_what_is_read_here() -> None:
    (split,) = Toy(clients=1).make_clients()
    toy = TextToy(clients=1)
    (ushape,) = toy.clients_for(USplitSL(toy.server(), device="cpu"))
    clients: dict[type[Description], Client] = {SplitDescription: split, UShapeDescription: ushape}
    for shape, client in clients.items():
        description = read_description(client.attach(ORDER, None))
        assert type(description) is shape
        assert not description.others


def test_the_page_on_the_architecture_has_every_key() -> None:
    section = PAGE.read_text("utf-8").split("### What a client says of itself", 1)[1]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \| (.*?) \| .+ \|$", section.split("\n## ")[0], re.M)
    documented = [
        (key, who, value) for keys, who, value in rows for key in re.findall("`(.+?)`", keys)
    ]
    common = keys_of(Description)
    fields = [(key, "all", kind) for key, kind in common.items()]
    for who, shape in (("L shape", SplitDescription), ("U shape", UShapeDescription)):
        fields += [(key, who, kind) for key, kind in keys_of(shape).items() if key not in common]
    always = {key for keys in LEAST.values() for key in keys}
    assert sorted(documented) == sorted(
        (key, f"{who}, always" if key in always else who, words_of(kind))
        for key, who, kind in fields
    )


def words_of(kind: Any) -> str:
    """Say on the page which values a key has."""
    if get_origin(kind) is Annotated:
        least, most = get_args(kind)[1]
        powers = {2**20: " to 2^20", 2**16: " to 2^16", MAX_COUNT: ""}
        return f"integer from {least}{powers.get(most, f' to {most}')}"
    return {bool: "true or false", str: "text", float: "finite number"}.get(kind, "texts")
