"""Keys by which something is done once."""

from __future__ import annotations

import json

from flwr_splitmix.seen_keys import SeenKeys


def test_a_key_is_the_first_of_its_kind_once() -> None:
    once = SeenKeys()
    assert [once.add(key) for key in ("few", ("lost", 3), "few", ("lost", 4))] == [
        True, True, False, True,
    ]  # fmt: skip
    assert "few" in once
    assert "many" not in once
    assert once.add("many")  # to look is not to ask


def test_of_several_keys_the_new_ones_are_told_in_order() -> None:
    once = SeenKeys()
    assert once.add_all([3, 1, 3]) == [3, 1]
    assert once.add_all([2, 1]) == [2]
    once.clear()
    assert once.add_all([1]) == [1]


def test_a_checkpoint_keeps_the_keys() -> None:
    once, resumed = SeenKeys(), SeenKeys()
    once.add_all(["b", "a"])
    resumed.add("c")
    resumed.restore(json.loads(json.dumps(once.state())))
    assert resumed.state() == ["a", "b", "c"]
