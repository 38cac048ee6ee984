"""Tensors and optimizers come back bit for bit."""

from __future__ import annotations

import copy
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
from timm.optim import create_optimizer_v2  # type: ignore[attr-defined]  # it has no __all__
from torch import Tensor

from flwr_splitmix.storage import (
    OtherFormError,
    StorageError,
    json_values,
    load_tensors,
    pack_optimizer,
    save_tensors,
    under,
    unpack_optimizer,
)

OptimizerOf = Callable[[list[Tensor]], torch.optim.Optimizer]


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
    """Before, of the bits flipped here, one in each of 608 bytes, 220 were read as other values.

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
    """It was read, whatever had happened to its bytes."""
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
    with pytest.raises(StorageError, match="it is no regular file"):
        load_tensors(tmp_path)


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1),
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, amsgrad=True),
        lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, nesterov=True),
        lambda parameters: torch.optim.SGD(parameters, lr=1e-2),
    ],
    ids=["adamw", "amsgrad", "momentum", "sgd"],
)
def test_training_goes_on_bit_for_bit_after_a_round_trip(tmp_path: Path, make: OptimizerOf) -> None:
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.randn(4, 3, generator=generator), torch.randn(3, generator=generator)]
    gradients = [[torch.randn(p.shape, generator=generator) for p in parameters] for _ in range(6)]

    optimizer = make(parameters)
    for at in range(3):
        step(optimizer, parameters, gradients[at])
    tensors, meta = pack_optimizer(optimizer)
    save_tensors(tmp_path / "file", tensors, meta)

    resumed_parameters = copy.deepcopy(parameters)
    resumed = make(resumed_parameters)
    unpack_optimizer(resumed, *load_tensors(tmp_path / "file"))
    for at in range(3, 6):
        step(optimizer, parameters, gradients[at])
        step(resumed, resumed_parameters, gradients[at])
        for ours, theirs in zip(resumed_parameters, parameters, strict=True):
            assert torch.equal(ours, theirs)


def step(
    optimizer: torch.optim.Optimizer, parameters: list[Tensor], gradients: list[Tensor]
) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    optimizer.step()


def test_two_optimizers_share_a_file_by_prefix(tmp_path: Path) -> None:
    packed = {}
    metas = {}
    for prefix, value in (("lower", 1.0), ("upper", 2.0)):
        parameter = torch.zeros(2)
        optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
        step(optimizer, [parameter], [torch.full((2,), value)])
        tensors, metas[prefix] = pack_optimizer(optimizer, prefix)
        packed.update(tensors)
    save_tensors(tmp_path / "file", packed, metas)
    loaded, meta = load_tensors(tmp_path / "file")
    parameter = torch.zeros(2)
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    unpack_optimizer(optimizer, loaded, meta["upper"], "upper")
    assert torch.equal(optimizer.state[parameter]["momentum_buffer"], torch.full((2,), 2.0))


@pytest.mark.parametrize("make", [torch.optim.NAdam, torch.optim.ASGD, torch.optim.AdamW])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_scalars_of_an_optimizer_keep_their_dtype(make: Any, dtype: torch.dtype) -> None:
    """Torch's loading casts them to the weights' dtype, which rounds them or what follows."""
    first, second = torch.ones(2, dtype=dtype), torch.ones(2, dtype=dtype)
    began, resumed = make([first], lr=0.01), make([second], lr=0.01)
    for _ in range(3):
        step(began, [first], [torch.full((2,), 0.3, dtype=dtype)])
    unpack_optimizer(resumed, *pack_optimizer(began))
    for name, value in began.state[first].items():
        torch.testing.assert_close(resumed.state[second][name], value, rtol=0, atol=0)


def test_moments_take_the_dtype_of_the_weights() -> None:
    first, second = torch.zeros(2), torch.zeros(2, dtype=torch.float64)
    began = torch.optim.NAdam([first])
    step(began, [first], [torch.ones(2)])
    resumed = torch.optim.NAdam([second])
    unpack_optimizer(resumed, *pack_optimizer(began))
    kept = resumed.state[second]
    assert (kept["exp_avg"].dtype, kept["mu_product"].dtype) == (torch.float64, torch.float32)


def test_moments_of_a_single_number_do_so_too() -> None:
    first, second = torch.zeros(()), torch.zeros((), dtype=torch.float64)
    began = torch.optim.AdamW([first])
    step(began, [first], [torch.ones(())])
    resumed = torch.optim.AdamW([second])
    unpack_optimizer(resumed, *pack_optimizer(began))
    step(resumed, [second], [torch.ones((), dtype=torch.float64)])
    assert resumed.state[second]["exp_avg"].dtype == torch.float64


@pytest.mark.parametrize("tensor", [False, True])
def test_a_resumed_optimizer_keeps_its_own_options_and_takes_the_state(tensor: bool) -> None:
    first, second = torch.zeros(2), torch.zeros(2)
    began = torch.optim.AdamW([first], lr=torch.tensor(0.1) if tensor else 0.1)
    step(began, [first], [torch.ones(2)])
    tensors, meta = pack_optimizer(began)
    resumed = torch.optim.AdamW([second], lr=1e-5, weight_decay=5.0, betas=(0.1, 0.2))
    unpack_optimizer(resumed, tensors, json.loads(json.dumps(meta)))
    (group,) = resumed.param_groups
    assert (group["lr"], group["weight_decay"], group["betas"]) == (1e-5, 5.0, (0.1, 0.2))
    assert torch.equal(resumed.state[second]["exp_avg"], began.state[first]["exp_avg"])


def test_what_is_no_option_comes_from_the_file() -> None:
    """Some optimizers count their steps in a group."""
    first, second = torch.zeros(2), torch.zeros(2)
    began, resumed = torch.optim.SGD([first], lr=0.1), torch.optim.SGD([second], lr=0.1)
    began.param_groups[0]["k"], resumed.param_groups[0]["k"] = 7, 0
    unpack_optimizer(resumed, *pack_optimizer(began))
    assert resumed.param_groups[0]["k"] == 7


@pytest.mark.parametrize(
    ("make", "options"),
    [(torch.optim.AdamW, {"amsgrad": True}), (torch.optim.RMSprop, {"momentum": 0.9})],
)
def test_an_option_that_needs_another_state_is_refused(make: Any, options: dict[str, Any]) -> None:
    first, second = torch.zeros(2), torch.zeros(2)
    began = make([first], lr=0.1)
    step(began, [first], [torch.ones(2)])
    (option,) = options
    with pytest.raises(ValueError, match=f"has no '.*', needed for {option}="):
        unpack_optimizer(make([second], lr=0.1, **options), *pack_optimizer(began))


def test_numbers_of_numpy_and_torch_become_plain() -> None:
    values = {"a": np.float32(0.5), "b": [torch.tensor(2)], "c": (1, None, "x"), "3": True}
    plain = json_values(values, "it")
    assert json.dumps(plain) == '{"a": 0.5, "b": [2], "c": [1, null, "x"], "3": true}'


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": [torch.ones(2)]}, r"it has a Tensor at \['a'\]\[0\]; .* take .tolist\(\)"),
        ({"a": np.ones(2)}, r"it has a ndarray at \['a'\]; "),
        ({1, 2}, "it has a set; it must consist of JSON values"),
        ({0: "a client"}, r"it has the key 0, which JSON would turn into text; .* str\(client\)"),
        ({"by": {np.int64(3): 1}}, r"it has the key (np\.int64\(3\)|3) at \['by'\]"),
    ],
)
def test_what_cannot_be_written_is_named(value: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        json_values(value, "it")


@pytest.mark.parametrize(
    ("name", "options"),
    [("muon", {}), ("madgrad", {}), ("adabelief", {"amsgrad": True}), ("adafactorbv", {})],
)
def test_the_state_of_another_librarys_optimizer_is_taken(name: str, options: Any) -> None:
    """They have other names for their moments, and options that JSON cannot hold."""

    def made() -> tuple[Tensor, torch.optim.Optimizer]:
        weight = torch.nn.Parameter(torch.ones(4, 4))
        return weight, create_optimizer_v2([weight], opt=name, lr=0.1, **options)

    (first, began), (second, resumed) = made(), made()
    step(began, [first], [torch.full((4, 4), 0.5)])
    tensors, meta = pack_optimizer(began)
    unpack_optimizer(resumed, tensors, json.loads(json.dumps(meta)))
    second.data.copy_(first.data)
    for optimizer, weight in ((began, first), (resumed, second)):
        step(optimizer, [weight], [torch.full((4, 4), 0.25)])
    assert torch.equal(first, second)
