"""Segments of somebody's own: outputs and descriptions that work, and those refused in words."""

from __future__ import annotations

import copy
import json
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from flwr_splitmix.clients import ClientError, SplitClient
from flwr_splitmix.events import StepDone
from flwr_splitmix.mixers import BoxShare
from flwr_splitmix.observers import Observer
from flwr_splitmix.segments import Geometry
from flwr_splitmix.strategies import PSL, USplitSL, VanillaCutMixSL
from tests.clients.own_segments import DATA, INPUTS, ORDER, Lower, Part, smashed_of


class Scaled(Lower):
    """Makes its scale on first use."""

    scale: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        if self.scale is None:
            self.scale = torch.full((3,), 2.0)
        return super().forward(inputs) * self.scale


class Boxes(Observer):
    """Keeps the columns of the grid from which boxes are cut."""

    def __init__(self) -> None:
        self.columns: set[int] = set()

    def on_step(self, event: StepDone) -> None:
        assert event.plan is not None
        shares = (share for client in event.plan.clients for share in event.plan.shares(client))
        self.columns |= {share.columns for share in shares if isinstance(share, BoxShare)}


def test_a_segment_may_keep_a_tensor_of_its_first_forward_pass() -> None:
    segment = Scaled()
    _, smashed = smashed_of(segment)
    assert smashed.shape == (4, 2, 3)
    assert segment(INPUTS).requires_grad


def test_so_may_one_whose_first_forward_pass_is_an_evaluation() -> None:
    client = SplitClient(
        Scaled(geometry=Geometry(2, 3)), DATA, batch_size=4, test_data=DATA, device="cpu"
    )
    client.attach(ORDER, None)
    client.run("encode_test", {"kind": "federated", "start": 0, "stop": 2})
    assert client.segment(INPUTS).requires_grad


@pytest.mark.parametrize(
    "named",
    [
        {"edge": nn.Linear(2, 2)},
        {"edge": "mean"},
        {"geometry": "grid"},
        {"input_shape": 5},
        {"input_shape": "five"},
        {"prefix": nn.Linear(2, 2)},
    ],
    ids=str,
)
def test_attributes_that_mean_something_else_are_left_alone(named: dict[str, Any]) -> None:
    described, smashed = smashed_of(Lower(**named))
    assert {**described, "smashed": tuple(smashed.shape)}.items() >= {
        "prefix": 0,
        "patches": 2,
        "width": 3,
        "smashed": (4, 2, 3),
    }.items()
    assert "edge" not in described


@pytest.mark.parametrize("geometry", [(2, 3), [2, 3], {"patches": 2, "width": 3}])
def test_a_geometry_that_is_none_is_refused(geometry: Any) -> None:
    """The grid and the positions that it is to state would be ignored with it."""
    with pytest.raises(TypeError, match=r"^segment\.geometry is .*; expected a Geometry\(patches"):
        SplitClient(Lower(geometry=geometry), DATA)
    with pytest.raises(TypeError, match=r"^upper\.geometry is .*; expected a Geometry\(patches"):
        PSL(Lower(geometry=geometry), num_classes=3)
    with pytest.raises(TypeError, match=r"^trunk\.geometry is .*; expected a Geometry\(patches"):
        USplitSL(Part(geometry=geometry))


class TimeFirst(Lower):
    """Returns (tokens, batch, width), as torch's recurrent layers do by default."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).transpose(0, 1)


@pytest.mark.parametrize(
    ("segment", "message"),
    [
        (TimeFirst(), "returned 2 rows for 1 example; .* need batch_first=True"),
        (TimeFirst(geometry=Geometry(2, 3)), "returned 2 rows for 4 examples; .*batch_first=True"),
        (
            Lower(geometry=Geometry(3, 2)),
            r"a batch are \(batch, 2, 3\), those of its segment's geometry \(batch, 3, 2\): "
            "correct the geometry, or leave it out",
        ),
    ],
)
def test_a_batch_that_is_not_first_and_a_wrong_geometry_are_named(
    segment: nn.Module, message: str
) -> None:
    """The remedy is not that of series of several lengths."""
    with pytest.raises(ClientError, match=message):
        smashed_of(segment)


class Dropping(Lower):
    """Leaves one of its two patches out in training."""

    def forward(self, inputs: Tensor) -> Tensor:
        smashed = super().forward(inputs)
        return smashed[:, :1] if self.training else smashed


def test_a_segment_with_fewer_patches_in_training_is_named_in_place_of_the_data() -> None:
    """Its user was asked to pad data that already had one size."""
    message = r"\(batch, 1, 3\) in training and \(batch, 2, 3\) in evaluation; .* dropped .* zero"
    with pytest.raises(ClientError, match=message):
        smashed_of(Dropping())
    smashed_of(Dropping(geometry=Geometry(1, 3)))


def test_an_edge_may_be_any_mapping() -> None:
    """JSON takes dicts alone."""
    edge = {"method": "patch", "kappa": 1.0}
    described, _ = smashed_of(Lower(edge=MappingProxyType(edge)))
    assert json.loads(described["edge"]) == edge


def test_batch_norm_without_running_statistics_is_probed_with_two_examples() -> None:
    described, _ = smashed_of(Lower(nn.BatchNorm1d(5, track_running_stats=False)))
    assert described["width"] == 3


def test_complex_inputs_of_real_weights_get_a_remedy() -> None:
    """Torch's error named neither the inputs nor what makes them real."""
    data: Any = TensorDataset(INPUTS.to(torch.complex64), torch.arange(8) % 3)
    message = "inputs are complex64, the lower segment float32: .* torch.view_as_real"
    with pytest.raises(ClientError, match=message):
        smashed_of(Lower(), data)


def test_a_grid_of_the_lower_segment_is_that_of_the_boxes() -> None:
    """Also where the upper segment has none."""
    lower = nn.Sequential(nn.Linear(5, 60), nn.Unflatten(1, (20, 3)))
    lower.geometry = Geometry(20, 3, grid=(4, 5))  # type: ignore[assignment]
    upper = nn.Sequential(nn.Flatten(), nn.Linear(60, 3))
    clients = [SplitClient(copy.deepcopy(lower), DATA, batch_size=4) for _ in range(2)]
    boxes = Boxes()
    VanillaCutMixSL(upper, num_classes=3, observers=[boxes]).fit(clients, 1)
    assert boxes.columns == {5}
