"""Segments of somebody's own: what works, and what is refused in words."""

from __future__ import annotations

import copy
import json
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from flwr_splitmix.clients import ClientError, Order, PrivacyBudget, SplitClient, UShapeClient
from flwr_splitmix.clients.ushape.ends import Ends
from flwr_splitmix.data.errors import ExamplesError
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.events import StepDone
from flwr_splitmix.links import LinkError
from flwr_splitmix.mixers import BoxShare
from flwr_splitmix.observers import Observer
from flwr_splitmix.segments import Geometry
from flwr_splitmix.segments.modules import with_statistics
from flwr_splitmix.strategies import PSL, USplitFL, USplitSL, VanillaCutMixSL
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


class Trunk(nn.Linear):
    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(inputs)


@pytest.mark.parametrize("name", ["head", "tail", "trunk"])
def test_a_part_of_the_u_shape_without_a_mask_is_named_at_once(name: str) -> None:
    parts = {"head": Part(), "tail": Part(3, 6), "trunk": Trunk(6, 6), name: nn.Linear(6, 6)}

    def make() -> None:
        UShapeClient(parts["head"], parts["tail"], DATA, device="cpu")
        USplitSL(parts["trunk"], device="cpu").prepare(None)

    with pytest.raises(TypeError, match=rf"^{name} is called with \(inputs, mask\): give its"):
        make()


class Pair(Part):
    """A part that returns its state, too, as torch's recurrent layers do."""

    def forward(self, inputs: Tensor, mask: Tensor) -> Any:
        return super().forward(inputs, mask), mask


def test_a_head_or_tail_that_returns_a_tuple_is_told_what_it_must_return() -> None:
    """An error about an attribute that a tuple lacks would not tell."""
    head = UShapeClient(Pair(), Part(3, 6), DATA, device="cpu")
    with pytest.raises(ClientError, match=r"head must return one tensor .* a tuple of a tensor \("):
        head.attach(ORDER, None)
    tail = UShapeClient(Part(), Pair(3, 6), DATA, batch_size=4, device="cpu")
    tail.attach(ORDER, None)
    reply = tail.run("encode", {"number": 0, "progress": 0.0, "gradient": None})
    with pytest.raises(ExamplesError, match=r"tail must return one tensor .* a tuple; return the"):
        tail.run("decode", {"number": 0, "outputs": reply["messages"]})


class TokensFirst(Part):
    """Returns (tokens, batch, width) for two tokens."""

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        return super().forward(inputs, mask).transpose(0, 1).expand(2, -1, -1)


class OneToken(Part):
    """Converts rows of integers itself, as one token each."""

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        return super().forward(inputs.float(), mask)


@pytest.mark.parametrize(
    ("head", "inputs", "message"),
    [
        (TokensFirst(), INPUTS, "the head returned 2 rows for 1 example; .* batch_first=True"),
        (
            OneToken(),
            torch.arange(40, dtype=torch.uint8).view(8, 5),
            r"whole numbers \(batch, 5\) are token ids, and the head returned 1 token of each 5; "
            r"rows of a table and series must be floating: \.float\(\)",
        ),
    ],
)
def test_a_head_that_makes_other_tokens_than_its_inputs_have_is_told_why(
    head: nn.Module, inputs: Tensor, message: str
) -> None:
    """The client names it before the server refuses the first step by the shapes alone."""
    data: Any = TensorDataset(inputs, torch.arange(8) % 3)
    client = UShapeClient(head, Part(3, 6), data, batch_size=4, device="cpu")
    with pytest.raises(ClientError, match=message):
        client.attach(ORDER, None)


def normed() -> UShapeClient:
    head = Part()
    head.linear = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6))  # type: ignore[assignment]
    return UShapeClient(head, Part(3, 6), DATA, batch_size=4, device="cpu")


def test_ends_whose_running_statistics_would_not_be_averaged_are_refused() -> None:
    """Each client would score the averaged weights with statistics of its own, without a word."""
    with pytest.raises(LinkError, match="the head has BatchNorm1d, whose running statistics are"):
        USplitFL(Trunk(6, 6), device="cpu").fit([normed(), normed()], 1)
    USplitSL(Trunk(6, 6), device="cpu").fit([normed(), normed()], 1)
    assert not with_statistics(nn.BatchNorm1d(6, track_running_stats=False))


def test_weights_unfrozen_after_the_client_was_made_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They would otherwise stay as they are, without a word."""
    data: Any = TensorDataset(torch.randn(8, 4, 3), torch.arange(8) % 2)
    client = SplitClient(nn.Linear(3, 3).requires_grad_(False), data, batch_size=4, device="cpu")
    client.attach(Order(0, 1, 1, 1), None)
    assert not caplog.records
    client.segment.requires_grad_(True)
    client.attach(Order(0, 1, 1, 1), None)
    assert (
        "client 0: its lower segment has weights to train that its optimizer does not know"
        in caplog.text
    )


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


def test_so_may_a_head_of_the_u_shape() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(9, 4)
            self.scale: Tensor | None = None

        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            if self.scale is None:
                self.scale = torch.ones(4)
            hidden: Tensor = self.embedding(ids) * self.scale
            return hidden

    ends = Ends(Head(), nn.Linear(4, 9))
    ids = torch.ones(1, 3, dtype=torch.int64)
    batch = MaskedBatch.of((ids, torch.zeros(1)), torch.device("cpu"))
    assert ends.width(batch, own_masks=False) == 4
    assert ends.segments["head"](ids, ids).requires_grad


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


class Counting(Lower):
    """Counts its calls in place, in a new tensor and in one that grows; and has a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(2))
        self.register_buffer("grown", torch.zeros(0), persistent=False)
        self.register_buffer("constant", torch.zeros(1).expand(4), persistent=False)
        self.register_buffer("missing", torch.full((2,), torch.nan))

    def forward(self, inputs: Tensor) -> Tensor:
        calls = self.get_buffer("calls").add_(1)
        self.replaced = self.get_buffer("replaced") + 1
        if not self.training:
            self.get_buffer("grown").resize_(3).fill_(1.0)
        return super().forward(inputs) / (1 + calls)


def test_the_description_of_a_segment_leaves_its_buffers_as_they_were() -> None:
    """Each round would otherwise train with others than the same model that is not split."""
    segment = Counting()
    before = copy.deepcopy(segment)
    client = SplitClient(segment, DATA, batch_size=4, device="cpu")
    client.attach(ORDER, None)
    for (name, buffer), (_, expected) in zip(
        segment.named_buffers(), before.named_buffers(), strict=True
    ):
        assert buffer.shape == expected.shape, name
        assert torch.equal(buffer.nan_to_num(7.0), expected.nan_to_num(7.0)), name


def test_an_edge_may_be_any_mapping() -> None:
    """JSON takes dicts alone."""
    edge = {"method": "patch", "kappa": 1.0}
    described, _ = smashed_of(Lower(edge=MappingProxyType(edge)))
    assert json.loads(described["edge"]) == edge


def test_batch_norm_without_running_statistics_is_probed_with_two_examples() -> None:
    described, _ = smashed_of(Lower(nn.BatchNorm1d(5, track_running_stats=False)))
    assert described["width"] == 3


def test_weights_without_a_shape_are_refused_at_once() -> None:
    segment = nn.Sequential(nn.LazyLinear(6), nn.Unflatten(1, (2, 3)))
    with pytest.raises(ClientError, match=r"0\.weight has no shape yet .* run one batch through"):
        SplitClient(segment, DATA)
    segment(INPUTS)
    smashed_of(segment)


class LazyPart(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.LazyLinear(width)

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        outputs: Tensor = self.linear(inputs)
        return outputs[:, None] if outputs.dim() == 2 else outputs[:, 0]


@pytest.mark.parametrize("name", ["head", "tail"])
def test_a_head_or_tail_without_a_shape_is_refused_at_once(name: str) -> None:
    """Torch's own error would come in the first round."""
    head, tail = (LazyPart(6), Part(3, 6)) if name == "head" else (Part(), LazyPart(3))
    with pytest.raises(ClientError, match=rf"^the {name}'s linear\.weight has no shape yet"):
        UShapeClient(head, tail, DATA)
    tail(head(INPUTS, torch.ones(8, 1)), torch.ones(8, 1))
    UShapeClient(head, tail, DATA).attach(ORDER, None)


@pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, INPUTS[:2])])  # type: ignore[no-untyped-call]
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_segment_is_taken_and_its_copy_refused_with_the_remedy(make: Any) -> None:
    """Torch makes weights of the copy that no optimizer takes, and says so of a non-leaf Tensor."""
    segment = make(nn.Sequential(nn.Linear(5, 6), nn.Unflatten(1, (2, 3))))
    described, smashed = smashed_of(segment)
    assert (described["patches"], described["width"]) == (2, 3)
    assert smashed.shape == (4, 2, 3)
    with pytest.raises(ValueError, match=r"segment has weights .* such as 0\.weight: .* each copy"):
        SplitClient(copy.deepcopy(segment), DATA)


def test_weights_of_float16_are_warned_of_once_for_all_clients(
    caplog: pytest.LogCaptureFixture,
) -> None:
    half = nn.Sequential(OrderedDict(first=nn.Linear(5, 6), second=nn.Unflatten(1, (2, 3)))).half()
    SplitClient(copy.deepcopy(half).to(torch.bfloat16), DATA, device="cpu")
    SplitClient(copy.deepcopy(half).requires_grad_(False), DATA, device="cpu")
    assert "float16" not in caplog.text
    for _ in range(3):
        SplitClient(copy.deepcopy(half), DATA, device="cpu")
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("weights of float16 are trained (first.weight, ...): ")
    assert "torch.autocast, with .float() on the output" in warning


def test_state_that_is_no_tensor_is_refused_at_once() -> None:
    class Extra(Lower):
        def get_extra_state(self) -> Any:
            return {"calls": 1}

    with pytest.raises(ClientError, match="state_dict has _extra_state, a dict; only tensors"):
        SplitClient(Extra(), DATA)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("sparse", [Tensor.to_sparse, Tensor.to_sparse_csr])
def test_a_sparse_buffer_is_refused_at_once_if_it_would_be_sent(sparse: Any) -> None:
    """NumPy's and torch's messages name neither the buffer nor a remedy."""
    segment = Lower()
    segment.register_buffer("graph", sparse(torch.eye(3)))
    with pytest.raises(ClientError, match=r"graph is a sparse tensor, .* persistent=False"):
        SplitClient(segment, DATA)
    segment.register_buffer("graph", sparse(torch.eye(3)), persistent=False)
    smashed_of(segment)


def test_a_buffer_that_numpy_lacks_a_type_for_is_refused_at_once() -> None:
    segment = Lower()
    segment.register_buffer("scale", torch.zeros(3).to(torch.float8_e4m3fn))
    with pytest.raises(ClientError, match=r"scale is of torch\.float8_e4m3fn, .* in float32, or"):
        SplitClient(segment, DATA)
    segment.register_buffer("scale", torch.zeros(3).to(torch.float8_e4m3fn), persistent=False)
    smashed_of(segment)


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_a_quantized_segment_is_refused_with_a_remedy_that_it_has() -> None:
    """The advice to return a tensor as extra state was for modules of one's own."""
    quantization: Any = torch.ao.quantization
    segment = quantization.quantize_dynamic(Lower(), {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(ClientError, match=r"of a quantized module, .* floating weights"):
        SplitClient(segment, DATA)


def test_complex_inputs_of_real_weights_get_a_remedy() -> None:
    """Torch's error named neither the inputs nor what makes them real."""
    data: Any = TensorDataset(INPUTS.to(torch.complex64), torch.arange(8) % 3)
    message = "inputs are complex64, the lower segment float32: .* torch.view_as_real"
    with pytest.raises(ClientError, match=message):
        smashed_of(Lower(), data)


def test_buffers_that_a_budget_does_not_bound_come_back() -> None:
    """A constant with NaN, and a counter above all weights; but no other constant."""
    segment = Lower()
    segment.register_buffer("fill", torch.tensor([torch.nan, 1.0]))
    segment.register_buffer("seen", torch.tensor(2_000_000))
    budget = PrivacyBudget(max_epsilon=50.0, allow_averaging=True)
    client = SplitClient(segment, DATA, batch_size=4, device="cpu", privacy=budget)
    client.attach(ORDER, {**client.weights(), "seen": torch.tensor(3_000_000)})
    with pytest.raises(ClientError, match="the server's lower segment: fill has NaN"):
        client.attach(ORDER, {**client.weights(), "fill": torch.tensor([torch.nan, 2.0])})


def test_a_grid_of_the_lower_segment_is_that_of_the_boxes() -> None:
    """Also where the upper segment has none."""
    lower = nn.Sequential(nn.Linear(5, 60), nn.Unflatten(1, (20, 3)))
    lower.geometry = Geometry(20, 3, grid=(4, 5))  # type: ignore[assignment]
    upper = nn.Sequential(nn.Flatten(), nn.Linear(60, 3))
    clients = [SplitClient(copy.deepcopy(lower), DATA, batch_size=4) for _ in range(2)]
    boxes = Boxes()
    VanillaCutMixSL(upper, num_classes=3, observers=[boxes]).fit(clients, 1)
    assert boxes.columns == {5}
