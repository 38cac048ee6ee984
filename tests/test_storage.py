"""Tensors and plain values come back bit for bit."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from flwr_splitmix.storage import (
    OtherFormError,
    StorageError,
    json_values,
    load_tensors,
    save_tensors,
    under,
)


def test_under_takes_what_has_the_prefix_and_its_dot() -> None:
    names = ["segment.a.b", "segment.segment.c", "segments.d", "segment", "other.segment.e"]
    tensors = {name: torch.tensor(float(place)) for place, name in enumerate(names)}
    assert under("segment", tensors) == {"a.b": tensors[names[0]], "segment.c": tensors[names[1]]}


def test_plain_values_are_json_also_where_numbers_are_not_finite(tmp_path: Path) -> None:
    meta = {"most": math.inf, "each": [-math.inf, {"mean": math.nan}]}
    save_tensors(tmp_path / "file", {"weight": torch.ones(2)}, meta)
    with safe_open(str(tmp_path / "file"), framework="pt") as file:
        json.loads(file.metadata()["splitmix"], parse_constant=pytest.fail)
    _, loaded = load_tensors(tmp_path / "file")
    assert str(loaded) == str(meta)


BASE = torch.arange(12.0)


@pytest.mark.parametrize(
    "shared",
    [
        {"encoder": BASE, "decoder": BASE},
        {"flat": BASE, "matrix": BASE.view(3, 4)},
        {"all": BASE, "part": BASE[3:7]},
        {"left": BASE[:8], "right": BASE[4:]},
        {"matrix": BASE.view(3, 4), "transposed": BASE.view(3, 4).T},
        {"row": BASE[:4], "rows": BASE[:4].expand(3, 4)},
    ],
    ids=["tied", "reshaped", "slice", "overlap", "transposed", "expanded"],
)
def test_tensors_that_share_memory_are_stored_by_value(
    tmp_path: Path, shared: dict[str, Tensor]
) -> None:
    save_tensors(tmp_path / "file", shared, {})
    loaded, _ = load_tensors(tmp_path / "file")
    assert loaded.keys() == shared.keys()
    for name, tensor in shared.items():
        assert torch.equal(loaded[name], tensor)
    save_tensors(tmp_path / "again", loaded, {})
    assert (tmp_path / "again").read_bytes() == (tmp_path / "file").read_bytes()


def test_meta_comes_back_as_it_was(tmp_path: Path) -> None:
    meta = {"lr": 0.1 + 0.2, "text": 'é "quoted"', "nested": {"list": [1, None, True]}}
    save_tensors(tmp_path / "file", {}, meta)
    assert load_tensors(tmp_path / "file") == ({}, meta)


def damage_meta(content: bytes) -> bytes:
    return content.replace(b'\\"key\\": 1', b'\\"key\\"= 1')


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:20],
        lambda content: content[:-1],
        lambda content: bytes(len(content)),
        damage_meta,
    ],
    ids=["empty", "header cut", "data cut", "zeros", "meta"],
)
def test_a_damaged_file_is_a_storage_error_that_names_it(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    file = tmp_path / "state.safetensors"
    save_tensors(file, {"weight": torch.ones(50)}, {"key": 1})
    whole = file.read_bytes()
    assert damage(whole) != whole
    file.write_bytes(damage(whole))
    with pytest.raises(StorageError, match=r"state\.safetensors"):
        load_tensors(file)


TENSORS = {
    "weight": torch.linspace(-1, 1, 40).reshape(8, 5),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "mask": torch.tensor([True, False]),
    "count": torch.tensor(7),
    "empty": torch.empty(0, 5),
}
META = {"round": 3, "trained": {"0": 3}, "lr": 0.1, "text": "é", "none": None}


def test_no_flipped_bit_goes_unseen(tmp_path: Path) -> None:
    """Without the digest, flips in 220 of the 608 bytes would be read as other values.

    A bit whose flip changes nothing that is read (a space that pads the header) is none.
    """
    file = tmp_path / "state.safetensors"
    save_tensors(file, TENSORS, META)
    whole = file.read_bytes()
    harmless = 0
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        file.write_bytes(bytes(damaged))
        try:
            tensors, meta = load_tensors(file)
        except StorageError as error:
            assert str(file) in str(error)  # noqa: PT017  # one of very many
            continue
        harmless += 1
        assert meta == META
        assert tensors.keys() == TENSORS.keys()
        assert all(torch.equal(tensors[name], t) for name, t in TENSORS.items())
    assert harmless < 40


def test_a_file_without_a_digest_is_refused_unless_it_is_written_so(tmp_path: Path) -> None:
    """Nothing would tell what has happened to its bytes."""
    file = tmp_path / "state.safetensors"
    save_tensors(file, {"weight": torch.ones(2)}, META, digested=False)
    with pytest.raises(OtherFormError, match=r"state\.safetensors has no digest, .*a new run"):
        load_tensors(file)
    tensors, meta = load_tensors(file, digested=False)
    assert meta == META
    assert torch.equal(tensors["weight"], torch.ones(2))


@pytest.mark.parametrize(
    "text",
    ["[1]", "1", "null", "[" * 100_000, '{"a": ' * 5000 + "1" + "}" * 5000, "9" * 5000],
    ids=["list", "number", "null", "deep", "deep object", "long number"],
)
def test_other_values_than_an_object_are_storage_errors(tmp_path: Path, text: str) -> None:
    file = tmp_path / "state.safetensors"
    save_file({"weight": torch.ones(2)}, file, metadata={"splitmix": text})
    with pytest.raises(StorageError, match=r"cannot read .*state\.safetensors: "):
        load_tensors(file)


def test_keys_that_are_numbers_do_not_spoil_the_digest(tmp_path: Path) -> None:
    save_tensors(tmp_path / "file", {}, {"by-client": {0: 1, 10: 2}})
    assert load_tensors(tmp_path / "file")[1] == {"by-client": {"0": 1, "10": 2}}


def test_missing_and_foreign_files_are_storage_errors(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(2)}, tmp_path / "foreign.safetensors")
    for name in ("missing.safetensors", "foreign.safetensors"):
        with pytest.raises(StorageError, match=name):
            load_tensors(tmp_path / name)
    with pytest.raises(StorageError, match="it is not a regular file"):
        load_tensors(tmp_path)


def test_numbers_of_numpy_and_torch_become_plain() -> None:
    values = {"a": np.float32(0.5), "b": [torch.tensor(2)], "c": (1, None, "x"), "3": True}
    plain = json_values(values, "it")
    assert json.dumps(plain) == '{"a": 0.5, "b": [2], "c": [1, null, "x"], "3": true}'


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [torch.ones(2)]}, r"it has a Tensor at \['a'\]\[0\]; .* take .tolist\(\)"),
        ({"a": np.ones(2)}, r"it has a ndarray at \['a'\]; "),
        ({1, 2}, "it has a set; it must consist of JSON values"),
        ({0: "a client"}, r"it has the key 0, which JSON would turn into text; .* str\(client\)"),
        ({"by": {np.int64(3): 1}}, r"it has the key (np\.int64\(3\)|3) at \['by'\]"),
    ],
)
def test_what_cannot_be_written_is_named(value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        json_values(value, "it")
