"""Optimizers come back bit for bit."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.optim import create_optimizer_v2  # type: ignore[attr-defined]  # it has no __all__
from torch import Tensor

from flwr_splitmix.optimizer_state import pack_optimizer, unpack_optimizer
from flwr_splitmix.storage import load_tensors, save_tensors

OptimizerOf = Callable[[list[Tensor]], torch.optim.Optimizer]


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
    moments = resumed.state[second]
    assert (moments["exp_avg"].dtype, moments["mu_product"].dtype) == (torch.float64, torch.float32)


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
