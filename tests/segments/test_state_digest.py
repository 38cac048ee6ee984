"""The digest of a module's state changes with whatever a copy of it could do otherwise."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from flwr_splitmix.segments.state_digest import state_digest


def made() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))


INPUTS = torch.arange(6.0).view(2, 3)


def nudge(module: Any) -> None:
    with torch.no_grad():
        weight = module[0].weight
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a weight": nudge,
    "a buffer": lambda module: module[1].num_batches_tracked.add_(1),
    "the mode": lambda module: module.eval(),
    "an attribute": lambda module: setattr(module[2], "p", 0.25),
    "a tensor that is no buffer": lambda module: setattr(module, "gate", torch.ones(1)),
    "a frozen weight": lambda module: module[0].bias.requires_grad_(False),
    "a dtype": lambda module: module.double(),
    "a layer": lambda module: module.append(nn.Identity()),
    "a hook": lambda module: module.register_forward_hook(print),
}


@pytest.mark.parametrize("change", CHANGES)
def test_it_changes_with(change: str) -> None:
    module = made()
    before = state_digest(module, INPUTS)
    assert before is not None
    assert before == state_digest(copy.deepcopy(module), INPUTS.clone())
    CHANGES[change](module)
    after = state_digest(module, INPUTS)
    assert after is not None
    assert after != before


def test_it_changes_with_the_tensors_beside_the_module() -> None:
    one = state_digest(made(), INPUTS)
    others = [(INPUTS + 1,), (INPUTS.double(),), (INPUTS.view(3, 2),), (INPUTS, INPUTS), ()]
    assert one not in [state_digest(made(), *other) for other in others]


class OwnCopy(nn.Linear):
    def __deepcopy__(self, memo: Any) -> nn.Linear:
        return nn.Linear(3, 3)


class OwnAttribute:
    """Copies what it does not pickle."""

    secret = 0

    def __deepcopy__(self, memo: Any) -> OwnAttribute:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("kind", ["function", "copy", "attribute's copy", "marked", "sparse"])
def test_what_it_cannot_tell_has_none(kind: str) -> None:
    module = made()
    if kind == "function":
        module.forward = lambda inputs: inputs  # type: ignore[method-assign]
    elif kind == "copy":
        module.append(OwnCopy(3, 3))
    elif kind == "attribute's copy":
        module.extra = OwnAttribute()  # type: ignore[assignment]
    elif kind == "marked":
        module[1].running_mean.tag = 1  # type: ignore[union-attr]
    else:
        module.register_buffer("sparse", torch.eye(3).to_sparse())
    assert state_digest(module, INPUTS) is None
