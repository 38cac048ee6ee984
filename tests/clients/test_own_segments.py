"""Lower segments and data sets of somebody's own: what works, and what is refused in words."""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from flwr_splitmix.clients import ClientError, Order, PrivacyBudget, SplitClient, UShapeClient
from flwr_splitmix.clients.ends import Ends
from flwr_splitmix.data.batches import Example
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.events import StepDone
from flwr_splitmix.links import LinkError
from flwr_splitmix.mixers import BoxShare, FullShare
from flwr_splitmix.observers import Observer
from flwr_splitmix.segments import Geometry
from flwr_splitmix.segments.modules import with_statistics
from flwr_splitmix.strategies import PSL, USplitFL, USplitSL, VanillaCutMixSL

ORDER = Order(client=0, seed=9, server_round=1, num_rounds=2)
INPUTS, LABELS = torch.randn(8, 5), torch.arange(8) % 3
DATA: Any = TensorDataset(INPUTS, LABELS)


class Lower(nn.Module):
    """Inputs (b, 5) to smashed data (b, 2, 3)."""

    def __init__(self, first: nn.Module | None = None, **named: Any) -> None:
        super().__init__()
        self.first = first or nn.Identity()
        self.linear = nn.Linear(5, 6)
        for name, value in named.items():
            setattr(self, name, value)

    def forward(self, inputs: Tensor) -> Tensor:
        smashed: Tensor = self.linear(self.first(inputs))
        return smashed.view(len(inputs), 2, 3)


class Scaled(Lower):
    """Makes its scale on first use."""

    scale: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        if self.scale is None:
            self.scale = torch.full((3,), 2.0)
        return super().forward(inputs) * self.scale


class Converting(Lower):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.float())


class Reciprocal(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return 1 / inputs


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs.sign() + 2) * self.factor / 10


class Boxes(Observer):
    """Keeps the columns of the grid from which boxes are cut."""

    def __init__(self) -> None:
        self.columns: set[int] = set()

    def on_step(self, event: StepDone) -> None:
        assert event.plan is not None
        shares = (share for client in event.plan.clients for share in event.plan.shares(client))
        self.columns |= {share.columns for share in shares if isinstance(share, BoxShare)}


class Failing(Lower):
    def forward(self, inputs: Tensor) -> Tensor:
        raise RuntimeError("no such patient")


def smashed_of(segment: nn.Module, data: Any = DATA, **options: Any) -> tuple[Any, Tensor]:
    """Return a client's description and its first upload."""
    client = SplitClient(segment, data, batch_size=4, device="cpu", **options)
    described = client.attach(ORDER, None)
    arguments = {"number": 0, "progress": 0.0, "gradient": None, "plan": [FullShare().to_wire()]}
    return described, client.run("step", arguments)["smashed"][0]


class Part(nn.Module):
    """A head (b, 5) to (b, 1, 6), or with `width` 3 a tail of as many classes."""

    def __init__(self, width: int = 6, inputs: int = 5) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, width)

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        outputs: Tensor = self.linear(inputs)
        return outputs[:, None] if outputs.dim() == 2 else outputs[:, 0]


class Trunk(nn.Linear):
    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(inputs)


def messages_of(inputs: Tensor) -> Any:
    """Return the first messages of a client of the U shape."""
    data: Any = TensorDataset(inputs, LABELS)
    client = UShapeClient(Part(), Part(3, 6), data, batch_size=4, device="cpu")
    client.attach(ORDER, None)
    return client.run("encode", {"number": 0, "progress": 0.0, "gradient": None})["messages"]


@pytest.mark.parametrize("name", ["head", "tail", "trunk"])
def test_a_part_of_the_u_shape_without_a_mask_is_named_at_once(name: str) -> None:
    parts = {"head": Part(), "tail": Part(3, 6), "trunk": Trunk(6, 6), name: nn.Linear(6, 6)}

    def make() -> None:
        UShapeClient(parts["head"], parts["tail"], DATA, device="cpu")
        USplitSL(parts["trunk"], device="cpu").prepare(None)

    with pytest.raises(TypeError, match=rf"^{name} is called with \(inputs, mask\): give its"):
        make()


def normed() -> UShapeClient:
    head = Part()
    head.linear = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6))  # type: ignore[assignment]
    return UShapeClient(head, Part(3, 6), DATA, batch_size=4, device="cpu")


def test_ends_whose_running_statistics_would_not_be_averaged_are_refused() -> None:
    """Each client scored the averaged weights with statistics of its own, without a word."""
    with pytest.raises(LinkError, match="the head has BatchNorm1d, whose running statistics are"):
        USplitFL(Trunk(6, 6), device="cpu").fit([normed(), normed()], 1)
    USplitSL(Trunk(6, 6), device="cpu").fit([normed(), normed()], 1)
    assert not with_statistics(nn.BatchNorm1d(6, track_running_stats=False))


def test_weights_unfrozen_after_the_client_was_made_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They stayed as they were, without a word."""
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
    assert ends.width(batch) == 4
    assert ends.segments["head"](ids, ids).requires_grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.uint8, torch.int64])
def test_inputs_of_another_dtype_are_named_with_the_remedy(dtype: torch.dtype) -> None:
    data = TensorDataset(INPUTS.to(dtype), LABELS)
    name = str(dtype).removeprefix("torch.")
    said = rf"inputs are {name}, the lower segment float32: convert .* with \.float\(\)$"
    with pytest.raises(ClientError, match=said):
        smashed_of(Lower(), data)
    _, smashed = smashed_of(Converting(), data)
    assert smashed.dtype == torch.float32


def test_numbers_that_are_not_finite_are_traced_to_data_weights_or_segment() -> None:
    """The server rejected the upload, and nobody could tell which of the three it was."""
    holes = torch.where(torch.rand(8, 5) < 0.5, torch.nan, INPUTS)
    with pytest.raises(ClientError, match="its data have NaN or infinite numbers: replace them"):
        smashed_of(Lower(), TensorDataset(holes, LABELS))
    diverged = Lower()
    with torch.no_grad():
        diverged.linear.weight[0, 0] = torch.inf
    with pytest.raises(ClientError, match=r"weights of its lower segment are .* has diverged"):
        smashed_of(diverged)
    with pytest.raises(ClientError, match="makes NaN or infinite numbers of finite data"):
        smashed_of(Lower(Reciprocal()), TensorDataset(torch.zeros(8, 5), LABELS))
    with pytest.raises(ClientError, match="its data have NaN or infinite numbers: replace them"):
        messages_of(holes)
    large = Lower(Times(1e38))  # finite, though their sum is not
    assert smashed_of(large)[1].isfinite().all()


class Sum(Lower):
    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.shape[1] != 5:
            raise RuntimeError(f"bad shape: {inputs}")
        return super().forward(inputs)


@pytest.mark.parametrize(
    ("segment", "more"),
    [
        (Lower, r": mat1 and mat2 shapes cannot be multiplied \(2x7 and 5x6\)$"),
        (Sum, "$"),  # its words may hold data
    ],
)
def test_inputs_of_another_shape_are_named(segment: type[Lower], more: str) -> None:
    """With test data alone it was a traceback."""
    wide: Any = TensorDataset(torch.randn(8, 7), LABELS)
    said = r"inputs \(7,\) do not fit the lower segment"
    with pytest.raises(ClientError, match=rf"^{said}"):
        smashed_of(segment(), wide)
    client = SplitClient(segment(), DATA, batch_size=4, test_data=wide, device="cpu")
    client.attach(ORDER, None)
    with pytest.raises(ClientError, match=rf"^test {said}{more}"):
        client.run("encode_test", {"kind": "federated", "start": 0, "stop": 2})


def test_test_images_of_another_size_are_named() -> None:
    segment = Lower(nn.Sequential(nn.Flatten(), nn.Linear(4, 5)), input_shape=(1, 2, 2))
    images: Any = TensorDataset(torch.randn(8, 1, 2, 2), LABELS)
    large: Any = TensorDataset(torch.randn(8, 1, 3, 3), LABELS)
    client = SplitClient(segment, images, batch_size=4, test_data=large, device="cpu")
    client.attach(ORDER, None)
    with pytest.raises(ClientError, match=r"images have shape \(1, 3, 3\), the lower segment exp"):
        client.run("encode_test", {"kind": "federated", "start": 0, "stop": 2})


class Bounded(Lower):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).tanh()


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_an_infinite_input_behind_finite_smashed_data_costs_the_step_and_is_named(
    micro_batches: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The weights became NaN, which was said to be training that diverged, or not said at all."""
    holes = torch.where(torch.arange(40).view(8, 5) == 7, torch.inf, INPUTS)
    client = SplitClient(Bounded(), TensorDataset(holes, LABELS), batch_size=8, device="cpu")  # type: ignore[arg-type]
    other = SplitClient(Bounded(), DATA, batch_size=8, device="cpu")
    upper = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    options: Any = {"micro_batches": micro_batches, "server_update": "sum", "device": "cpu"}
    strategy = PSL(upper, num_classes=3, **options)
    strategy.fit([client, other], 1)
    assert strategy.rows[0]["clients_failed"] == 1
    assert "its data have NaN or infinite numbers: replace them" in caplog.text
    assert all(bool(weight.isfinite().all()) for weight in client.segment.parameters())


class Root(Lower):
    def forward(self, inputs: Tensor) -> Tensor:
        return (0 * super().forward(inputs)).sqrt()


def test_a_gradient_that_is_not_finite_costs_the_step() -> None:
    client = SplitClient(Root(), DATA, batch_size=8, device="cpu")
    client.attach(ORDER, None)
    plan = [FullShare().to_wire()]
    arguments: dict[str, Any] = {"progress": 0.0, "gradient": None, "plan": plan}
    smashed = client.run("step", {"number": 0, **arguments})["smashed"][0]
    arguments["gradient"] = [torch.ones_like(smashed)]
    with pytest.raises(ClientError, match="the gradient of its lower segment has NaN or infinite"):
        client.run("step", {"number": 1, **arguments})
    assert client.steps == 0


def test_other_errors_of_a_segment_are_its_own() -> None:
    """Only a client's own words reach a server: a segment's message might hold data."""
    with pytest.raises(RuntimeError, match="no such patient"):
        smashed_of(Failing(), TensorDataset(INPUTS.double(), LABELS))


@pytest.mark.parametrize(
    "named",
    [
        {"edge": nn.Linear(2, 2)},
        {"edge": "mean"},
        {"geometry": (2, 3)},
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


def test_batch_norm_without_running_statistics_is_probed_with_two_examples() -> None:
    described, _ = smashed_of(Lower(nn.BatchNorm1d(5, track_running_stats=False)))
    assert described["width"] == 3


def test_weights_without_a_shape_are_refused_at_once() -> None:
    segment = nn.Sequential(nn.LazyLinear(6), nn.Unflatten(1, (2, 3)))
    with pytest.raises(ClientError, match=r"0\.weight has no shape yet .* run one batch through"):
        SplitClient(segment, DATA)
    segment(INPUTS)
    smashed_of(segment)


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
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("weights of float16 are trained (first.weight, ...): ")
    assert "torch.autocast, with .float() on the output" in said


def test_state_that_is_no_tensor_is_refused_at_once() -> None:
    class Extra(Lower):
        def get_extra_state(self) -> Any:
            return {"calls": 1}

    with pytest.raises(ClientError, match="state_dict has _extra_state, a dict; only tensors"):
        SplitClient(Extra(), DATA)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("sparse", [Tensor.to_sparse, Tensor.to_sparse_csr])
def test_a_sparse_buffer_is_refused_at_once_if_it_would_be_sent(sparse: Any) -> None:
    """NumPy's and torch's messages named neither the buffer nor a remedy."""
    segment = Lower()
    segment.register_buffer("graph", sparse(torch.eye(3)))
    with pytest.raises(ClientError, match=r"graph is a sparse tensor, .* persistent=False"):
        SplitClient(segment, DATA)
    segment.register_buffer("graph", sparse(torch.eye(3)), persistent=False)
    smashed_of(segment)


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


class Padded(TensorDataset):
    """Pads a batch to its longest series only."""

    def batch(self, indices: np.ndarray) -> Example:
        inputs, labels = self[torch.from_numpy(indices)]
        return inputs[:, : len(indices)], labels


def test_smashed_data_of_another_length_than_described_are_refused_with_the_remedy() -> None:
    """The server's message spoke of shares and tokens."""
    data: Any = Padded(torch.randn(8, 9, 5), LABELS)
    said = r"are \(batch, 4, 3\), those of its first example.* \(batch, 1, 3\): .* by padding"
    with pytest.raises(ClientError, match=said):
        smashed_of(nn.Linear(5, 3), data)


class Sized(Dataset[Example]):
    """A data set with a number named batch."""

    batch = 16

    def __len__(self) -> int:
        return len(LABELS)

    def __getitem__(self, index: int) -> Example:
        return INPUTS[index], LABELS[index]


def test_a_data_set_may_have_a_number_named_batch() -> None:
    described, smashed = smashed_of(Lower(), Sized())
    assert (described["num-examples"], len(smashed)) == (8, 4)


class Streamed(IterableDataset[Example]):
    def __iter__(self) -> Any:
        return iter(DATA)


@pytest.mark.parametrize("name", ["test_data", "benchmark_data"])
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (DataLoader(DATA), r" is DataLoader; needed is a map-style .* \w+=loader.dataset"),
        (Streamed(), " is Streamed; needed is a map-style data set"),
        ((INPUTS, LABELS), r" is a tuple of arrays; .*TensorDataset\(inputs, labels\)"),
        ([INPUTS.numpy(), np.asarray(LABELS)], r" is a list of arrays; .*TensorDataset"),
    ],
)
def test_test_sets_are_checked_at_once_like_training_data(name: str, data: Any, said: str) -> None:
    given: dict[str, Any] = {name: data}
    with pytest.raises(TypeError, match=f"^{name}{said}"):
        SplitClient(Lower(), DATA, **given)
    given = {name: list(zip(INPUTS, LABELS, strict=True))}
    assert SplitClient(Lower(), DATA, **given).tests  # a list of pairs is a data set


class Copied(Lower):
    """Keeps a record of its copies; some cannot be made."""

    def __init__(self, copies: list[bool], possible: bool) -> None:
        super().__init__()
        self.copies, self.possible = copies, possible

    def __deepcopy__(self, memo: Any) -> Lower:
        self.copies.append(self.possible)
        if not self.possible:
            raise RuntimeError("it has no copies")
        return Lower()


@pytest.mark.parametrize(("possible", "times"), [(True, 1), (False, 2)])
def test_only_a_trial_of_layers_that_was_incomplete_is_made_again(
    possible: bool, times: int
) -> None:
    """Of an incomplete one, trained weights may show more."""
    copies: list[bool] = []
    client = SplitClient(Copied(copies, possible), DATA, batch_size=4, device="cpu")
    for server_round in (1, 2):
        client.attach(replace(ORDER, server_round=server_round), None)
    assert copies == [possible] * times


def test_a_client_with_a_budget_looks_for_layers_across_the_batch_in_every_round() -> None:
    """Its server chooses the weights of each."""
    copies: list[bool] = []
    budget = PrivacyBudget(max_epsilon=50.0)
    client = SplitClient(
        Copied(copies, possible=True), DATA, batch_size=4, device="cpu", privacy=budget
    )
    for server_round in (1, 2):
        client.attach(replace(ORDER, server_round=server_round), None)
    assert copies == [True, True]


def test_a_batch_of_one_example_before_batch_norm_is_refused_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each client logged 45 lines."""
    client = SplitClient(Lower(nn.BatchNorm1d(5)), DATA, batch_size=1, device="cpu")
    strategy = PSL(nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), num_classes=3, device="cpu")
    with pytest.raises(LinkError, match="client 0: batch normalisation in the lower segment needs"):
        strategy.fit([client], 1)
    assert "client 0 failed in step: batch normalisation in the lower segment" in caplog.text
    assert not any(record.exc_info for record in caplog.records)


def test_a_grid_of_the_lower_segment_is_that_of_the_boxes() -> None:
    """It was ignored, with an error about the upper segment's."""
    lower = nn.Sequential(nn.Linear(5, 60), nn.Unflatten(1, (20, 3)))
    lower.geometry = Geometry(20, 3, grid=(4, 5))  # type: ignore[assignment]
    upper = nn.Sequential(nn.Flatten(), nn.Linear(60, 3))
    clients = [SplitClient(copy.deepcopy(lower), DATA, batch_size=4) for _ in range(2)]
    boxes = Boxes()
    VanillaCutMixSL(upper, num_classes=3, observers=[boxes]).fit(clients, 1)
    assert boxes.columns == {5}
