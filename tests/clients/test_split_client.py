"""What a client does with shares and gradients, and what it carries from round to round."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.clients import Client, ClientError, Order, SplitClient
from flwr_splitmix.links.arrays import to_arrays, to_tensors
from flwr_splitmix.mixers import FullShare, PatchShare, Share
from flwr_splitmix.optimizers import adamw
from flwr_splitmix.schedule import WarmupCosine, constant
from flwr_splitmix.seeding import derive_seed, seeded_draws
from flwr_splitmix.segments import split_vision_model
from flwr_splitmix.testing.toy import Examples, Toy, sgd

TOY = Toy(clients=1)
ORDER = Order(client=0, seed=9, server_round=1, num_rounds=2)
N, D = TOY.patches, TOY.width


def client_of(toy: Toy = TOY, **options: Any) -> SplitClient:
    (client,) = toy.make_clients(**options)
    client.attach(ORDER, None)
    return client


def weights(client: SplitClient) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in client.segment.named_parameters()}


def moved(client: SplitClient, before: dict[str, Tensor]) -> bool:
    return any(not torch.equal(before[n], p) for n, p in client.segment.named_parameters())


def step(client: SplitClient, number: int, gradient: Any, *shares: Share | None) -> dict[str, Any]:
    plan = [None if share is None else share.to_wire() for share in shares]
    arguments = {"number": number, "progress": 0.0, "gradient": gradient, "plan": plan or None}
    return client.run("step", arguments)


def patches(start: int, stop: int, **options: Any) -> PatchShare:
    return PatchShare(lam=(stop - start) / N, patches=N, seed=3, start=start, stop=stop, **options)


def test_the_gradient_of_the_last_step_is_applied_before_the_next_forward() -> None:
    client, other = client_of(), client_of()
    up = step(client, 0, None, FullShare())["smashed"][0]
    step(other, 0, None, FullShare())
    gradient = torch.randn_like(up)
    client_up = step(client, 1, [gradient], FullShare())["smashed"][0]
    other_up = step(other, 1, None, FullShare())["smashed"][0]
    assert client.steps == 1
    assert other.steps == 0
    assert not torch.equal(client_up, other_up)


def test_broadcast_pushes_the_whole_gradient_through_the_unmasked_smashed_data() -> None:
    """CutMixSL eq. 13, against autograd on a copy of the segment."""
    client, copy = client_of(), TOY.lower()
    share = patches(1, 3, broadcast=True)
    before = weights(client)
    step(client, 0, None, share)
    whole = torch.randn(TOY.batch, N, D, dtype=torch.float64)
    step(client, 1, [share.pick(whole)])

    batches = client_of().batches
    inputs, _ = batches.next_batch(ORDER.seed, 0)
    with seeded_draws(torch.device("cpu"), derive_seed(ORDER.seed, "step", 0, 1, 0)):
        smashed = copy.train()(inputs)
    names = [name for name, _ in copy.named_parameters()]
    exact = torch.autograd.grad((smashed * whole).sum(), list(copy.parameters()))
    for name, gradient in zip(names, exact, strict=True):
        moved = before[name] - client.segment.get_parameter(name)
        torch.testing.assert_close(moved, gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("optimizer", [sgd(0.1, momentum=0.9), adamw(0.1)], ids=["sgd", "adamw"])
@pytest.mark.parametrize("gradient", [None, "zero", "none in its pass"])
def test_only_a_client_without_a_gradient_takes_no_step(
    optimizer: Any, gradient: str | None
) -> None:
    """AdamW decays the weights, and momentum carries on, with a gradient of zeros, as unsplit."""
    client = client_of(optimizer=optimizer)
    up = step(client, 0, None, patches(0, 4))["smashed"][0]
    step(client, 1, [torch.randn_like(up)], patches(0, 4))  # momentum there is
    assert client.steps == 1
    before = weights(client)
    gradients = {None: None, "zero": [torch.zeros_like(up)], "none in its pass": [None]}[gradient]
    step(client, 2, gradients, patches(0, 4))
    assert moved(client, before) == (gradient == "zero")
    assert client.steps == 1 + (gradient == "zero")


def test_a_client_with_no_patches_takes_no_step() -> None:
    client = client_of(optimizer=adamw(0.1))
    before = weights(client)
    reply = step(client, 0, None, patches(2, 2))
    assert tuple(reply["smashed"][0].shape) == (TOY.batch, 0, D)
    assert tuple(reply["labels"].shape) == (TOY.batch,)
    step(client, 1, [reply["smashed"][0]])
    assert not moved(client, before)
    assert client.steps == 0


def test_what_is_uploaded_has_no_graph_and_is_as_the_share_says() -> None:
    reply = step(client_of(), 0, None, patches(0, 2), None, patches(2, 6))
    first, second, third = reply["smashed"]
    assert second is None
    assert [tuple(t.shape) for t in (first, third)] == [(4, 2, D), (4, 4, D)]
    assert not any(t.requires_grad for t in (first, third))
    assert reply.keys() == {"smashed", "labels"}


def test_the_forward_of_k_times_is_done_once() -> None:
    """Passes differ in their masks only: together they are one forward's smashed data."""
    client = client_of()
    first, second, whole = step(client, 0, None, patches(0, 3), patches(3, 6), FullShare())[
        "smashed"
    ]
    order = patches(0, 6).positions(TOY.batch)
    assert torch.equal(torch.cat([first, second], 1), whole[:, order])
    assert client.batches.drawn == 1


def test_gradients_of_several_passes_add_up() -> None:
    both, one = client_of(), client_of()
    up = step(both, 0, None, FullShare(), FullShare())["smashed"][0]
    step(one, 0, None, FullShare())
    a, b = torch.randn_like(up), torch.randn_like(up)
    step(both, 1, [a, b])
    step(one, 1, [a + b])
    for name, parameter in both.segment.named_parameters():
        torch.testing.assert_close(parameter, one.segment.get_parameter(name), rtol=0, atol=1e-13)


def test_the_last_call_of_a_round_learns_and_draws_nothing() -> None:
    client = client_of()
    up = step(client, 0, None, FullShare())["smashed"][0]
    before = weights(client)
    assert step(client, 1, [torch.randn_like(up)]) == {}
    assert moved(client, before)
    assert client.batches.drawn == 1


def test_a_gradient_of_another_round_is_not_applied() -> None:
    client = client_of()
    up = step(client, 0, None, FullShare())["smashed"][0]
    client.attach(ORDER, None)  # the round was given up, another begins
    before = weights(client)
    step(client, 0, [torch.randn_like(up)], FullShare())
    assert not moved(client, before)


def test_the_steps_that_a_client_reports_are_those_of_its_round() -> None:
    client = client_of()
    for _ in range(2):
        up = step(client, 0, None, FullShare())["smashed"][0]
        step(client, 1, [torch.randn_like(up)])
        assert client.release()[1]["num-steps"] == 1
        client.attach(ORDER, None)


def test_a_restored_client_goes_on_as_if_it_had_never_stopped() -> None:
    options: dict[str, Any] = {"optimizer": adamw(0.05), "schedule": WarmupCosine(warmup=1.0)}
    first = client_of(**options)
    generator = torch.Generator().manual_seed(0)
    gradients = [
        torch.randn(TOY.batch, N, D, dtype=torch.float64, generator=generator) for _ in range(6)
    ]

    def train(client: SplitClient, part: list[Tensor]) -> None:
        client.attach(ORDER, None)
        for number, gradient in enumerate(part):
            step(client, number, None if number == 0 else [gradient], FullShare())
        step(client, len(part), [part[0]])
        client.release()

    train(first, gradients[:3])
    tensors, meta = first.state()
    tensors = {name: t.clone() for name, t in tensors.items()}
    second = client_of(**options)
    second.restore(tensors, meta)
    train(first, gradients[3:])
    train(second, gradients[3:])
    expected, actual = first.state(), second.state()
    assert expected[1] == actual[1]
    assert expected[0].keys() == actual[0].keys()
    assert all(torch.equal(t, actual[0][name]) for name, t in expected[0].items())
    assert any(name.startswith("optimizer.") for name in expected[0])


def test_a_state_holds_plain_values_that_json_keeps() -> None:
    client = client_of(optimizer=adamw())
    up = step(client, 0, None, FullShare())["smashed"][0]
    step(client, 1, [torch.randn_like(up)])
    _, meta = client.state()
    assert json.loads(json.dumps(meta))["drawn"] == 1


def test_dropout_repeats_and_the_default_generator_is_left_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    one = step(client_of(), 0, None, FullShare())["smashed"][0]
    assert torch.equal(torch.rand(1), expected)
    torch.manual_seed(2)
    assert torch.equal(one, step(client_of(), 0, None, FullShare())["smashed"][0])
    assert not torch.equal(one, step(client_of(), 1, None, FullShare())["smashed"][0])


@pytest.mark.parametrize(
    "method",
    ["attach", "release", "state", "restore", "run", "_learn", "_load", "__init__", "order", "no"],
)
def test_only_exchanges_can_be_called(method: str) -> None:
    with pytest.raises(ClientError, match="is not an exchange of SplitClient"):
        client_of().run(method, {})


def test_exchanges_are_a_closed_list() -> None:
    marked = {n for n in dir(SplitClient) if hasattr(getattr(SplitClient, n), "_splitmix_exchange")}
    assert marked == {"step", "encode_part", "learn_part", "encode_test"}


def test_a_client_that_is_not_attached_says_so() -> None:
    (client,) = TOY.make_clients()
    with pytest.raises(ClientError, match="has not been attached to a round"):
        step(client, 0, None, FullShare())
    assert isinstance(client, Client)


def test_an_unknown_share_is_refused() -> None:
    plan = [{"share": "shuffle", "seed": 1}]
    with pytest.raises(ValueError, match="unknown share 'shuffle'"):
        client_of().run("step", {"number": 0, "progress": 0.0, "gradient": None, "plan": plan})


def test_a_lower_segment_that_does_not_fit_is_refused_with_what_differs() -> None:
    """Names beyond the first four are told, where only later ones differ."""
    (client,) = TOY.make_clients()
    state = client.segment.state_dict()
    *_, last = state
    differing = [
        ({k: state[k] for k in state if k != last}, f"it lacks {last} {tuple(state[last].shape)}"),
        (
            {**state, last: torch.ones(7)},
            f"it has {last} (7,) in place of {tuple(state[last].shape)}",
        ),
        (
            {**state, **{f"more.{i}": torch.ones(2) for i in range(5)}},
            "it also has more.0 (2,), more.1 (2,), more.2 (2,) and 2 more",
        ),
    ]
    for wrong, sentence in differing:
        with pytest.raises(ClientError) as error:
            client.attach(ORDER, wrong)
        beginning = "the server's lower segment does not fit this client's"
        assert str(error.value) == f"{beginning}: {sentence}"


def test_the_description_is_what_the_server_needs() -> None:
    toy = Toy(clients=1, prefix=2, tests=5, batch_norm=False)
    (client,) = toy.make_clients(repeatable_secrets=False)
    assert client.attach(ORDER, None) == {
        "num-examples": 12, "batch-size": 4, "drawn": 0, "prefix": 2, "patches": 6, "width": 3,
        "grid-columns": 3, "federated-examples": 5, "benchmark-examples": 0,
    }  # fmt: skip


def test_without_a_geometry_a_forward_pass_says_the_shape() -> None:
    data = Examples(torch.randn(6, 5, 4), torch.zeros(6, dtype=torch.int64))
    client = SplitClient(nn.Linear(4, 2), data, batch_size=2, device="cpu")
    described = client.attach(ORDER, None)
    assert (described["prefix"], described["patches"], described["width"]) == (0, 5, 2)
    flat = SplitClient(nn.Flatten(), data, device="cpu")
    with pytest.raises(
        ClientError,
        match=r"must be \(batch, patches, width\), got shape \(1, 20\); .* \.unsqueeze\(1\)",
    ):
        flat.attach(ORDER, None)


def test_a_lower_segment_that_returns_no_tensor_is_refused_with_what_it_returns() -> None:
    recurrent = nn.LSTM(3, 2, batch_first=True)
    client = SplitClient(recurrent, Examples(torch.zeros(1, 5, 3), torch.zeros(1).long()))
    with pytest.raises(ClientError, match=r"must return one tensor .* returns a tuple"):
        client.attach(ORDER, None)


def test_inputs_of_another_shape_are_refused_before_the_round() -> None:
    lower, _ = split_vision_model(image_size=16, depth=1, seed=0)
    data = Examples(torch.zeros(4, 1, 28, 28), torch.zeros(4, dtype=torch.int64))
    client = SplitClient(lower, data, device="cpu")
    with pytest.raises(
        ClientError, match=r"\(1, 28, 28\), the lower segment expects \(1, 16, 16\)"
    ):
        client.attach(ORDER, None)


def test_a_client_without_data_is_refused() -> None:
    empty = Examples(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ClientError, match="has no training data: leave it out of the list of"):
        SplitClient(nn.Linear(4, 2), empty, device="cpu")


def test_test_data_are_encoded_without_dropout_and_without_a_graph() -> None:
    client = client_of(Toy(clients=1, tests=6))
    arguments = {"kind": "federated", "start": 2, "stop": 5}
    reply, again = client.run("encode_test", arguments), client.run("encode_test", arguments)
    assert torch.equal(reply["smashed"][0], again["smashed"][0])
    assert not reply["smashed"][0].requires_grad
    assert tuple(reply["smashed"][0].shape) == (3, N, D)
    with pytest.raises(ClientError, match="has no benchmark test data"):
        client.run("encode_test", {**arguments, "kind": "benchmark"})


def test_no_more_test_data_are_encoded_at_once_than_an_evaluation_asks_for() -> None:
    client = client_of(Toy(clients=1, tests=251))
    client.run("encode_test", {"kind": "federated", "start": 1, "stop": 251})
    with pytest.raises(ClientError, match="asks for 251 federated test examples at once; at most"):
        client.run("encode_test", {"kind": "federated", "start": 0, "stop": 251})


def test_weights_in_bfloat16_leave_and_come_back() -> None:
    """Flower's arrays are NumPy's, which has no bfloat16."""
    lower = nn.Conv1d(3, 2, 1, dtype=torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in lower.state_dict().items()}
    data = Examples(torch.zeros(4, 3, 5, dtype=torch.bfloat16), torch.zeros(4).long())
    client = SplitClient(lower, data, device="cpu")
    arrays = to_tensors(to_arrays(client.weights()))
    client.attach(ORDER, arrays)
    for name, tensor in client.segment.state_dict().items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, before[name])


def test_a_frozen_segment_uploads_and_takes_no_step() -> None:
    (client,) = TOY.make_clients()
    frozen = TOY.lower().requires_grad_(False)
    client = SplitClient(frozen, TOY.data(0), batch_size=4, schedule=constant, device="cpu")
    client.attach(ORDER, None)
    up = step(client, 0, None, FullShare())["smashed"][0]
    step(client, 1, [torch.randn_like(up)])
    assert client.steps == 0
    tensors, meta = client.state()
    client.restore(tensors, meta)
