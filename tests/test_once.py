"""What is done once."""

from __future__ import annotations

import json

from flwr_splitmix.once import Once


def test_a_key_is_the_first_of_its_kind_once() -> None:
    once = Once()
    assert [once.first(key) for key in ("few", ("lost", 3), "few", ("lost", 4))] == [
        True, True, False, True,
    ]  # fmt: skip
    assert "few" in once
    assert "many" not in once
    assert once.first("many")  # to look is not to ask


def test_of_several_keys_the_new_ones_are_told_in_order() -> None:
    once = Once()
    assert once.new([3, 1, 3]) == [3, 1]
    assert once.new([2, 1]) == [2]
    once.forget()
    assert once.new([1]) == [1]


def test_a_checkpoint_keeps_the_keys() -> None:
    once, resumed = Once(), Once()
    once.new(["b", "a"])
    resumed.first("c")
    resumed.restore(json.loads(json.dumps(once.state())))
    assert resumed.state() == ["a", "b", "c"]
