"""The U shape's strategies: who errs costs its own contribution only; bytes are the paper's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.clients import MixGuardClient, TextSet, UShapeClient
from flwr_splitmix.events import Exchange, RoundDone
from flwr_splitmix.hiding import NoPeek
from flwr_splitmix.hiding.mixguard import MixGuardOptions
from flwr_splitmix.links import LinkError
from flwr_splitmix.observers import Observer
from flwr_splitmix.strategies import DPForwardSL, MixGuard, NoPeekSL, USplitFL, USplitSL
from flwr_splitmix.testing.laws import TextToy, check_same_tensors, sgd


class Seen(Observer):
    def __init__(self) -> None:
        self.rounds: list[RoundDone] = []
        self.bytes: dict[tuple[str, str], int] = {}

    def on_exchange(self, event: Exchange) -> None:
        key = (event.method, event.direction)
        self.bytes[key] = self.bytes.get(key, 0) + event.nbytes

    def on_round(self, event: RoundDone) -> None:
        self.rounds.append(event)


class Faulty(UShapeClient):
    """Does in one exchange what `reply` says, in step 1."""

    method = "encode"

    def run(self, method: str, arguments: Any) -> dict[str, Any]:
        answer = super().run(method, arguments)
        wrong = method == self.method and arguments.get("number") == 1 and self.order.client == 1
        return self.reply(answer) if wrong else answer

    def reply(self, answer: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError


def faulty(method: str, reply: Any) -> type[Faulty]:
    return type("Odd", (Faulty,), {"method": method, "reply": lambda self, answer: reply(answer)})


def first(answer: dict[str, Any], key: str, change: Any) -> dict[str, Any]:
    return {**answer, key: [change(answer[key][0]), *answer[key][1:]]}


def nan(tensor: Tensor) -> Tensor:
    return tensor.index_fill(0, torch.tensor([0]), float("nan"))


def test_a_strategy_takes_no_texts_that_are_hidden_in_another_way() -> None:
    """`DPForwardSL` would train on plain hidden states, and report no epsilon."""
    toy = TextToy(clients=3)
    strategy, plain = DPForwardSL(toy.server()), toy.clients_for()
    message = (
        r"not hidden by DPForward, as DPForwardSL promises; make it .*hiding=DPForward\(\.\.\.\)"
    )
    with pytest.raises(LinkError, match=message):
        strategy.fit(plain, 1)


def test_a_derived_method_may_take_the_place_of_its_base() -> None:
    class Further(NoPeek):
        pass

    toy = TextToy(clients=2, hiding=Further)
    observer = Seen()
    NoPeekSL(toy.server(), observers=[observer]).fit(toy.clients_for(), 1)
    assert observer.rounds[-1].steps


@pytest.mark.parametrize(
    ("method", "reply", "sentence"),
    [
        ("encode", lambda f: first(f, "messages", nan), "uploaded NaN or infinite numbers"),
        ("encode", lambda f: first(f, "messages", Tensor.float), "of torch.float32, expected"),
        ("encode", lambda f: first(f, "messages", lambda t: t[:, :2]), r"uploaded \(4, 2, 5\) of"),
        ("encode", lambda f: {"messages": f["messages"]}, "sent no mask"),
        ("encode", lambda f: {"mask": f["mask"]}, r"sent no list of 1\.\.64 messages"),
        ("encode", lambda f: {**f, "messages": f["messages"] * 65}, r"no list of 1\.\.64 messa"),
        ("encode", lambda f: {**f, "mask": f["mask"] * 2}, "a mask with other numbers than 0"),
        ("encode", lambda f: {**f, "public": "all"}, r"no list of 1\.\.4 groups of public texts"),
        ("encode", lambda f: {**f, "public": [f["mask"]]}, "public texts that are not groups"),
        ("decode", lambda f: first(f, "gradients", nan), "uploaded NaN or infinite numbers"),
        ("decode", lambda f: {}, "returned no list of 1 gradient$"),
        ("decode", lambda f: first(f, "gradients", lambda t: t[1:]), r"uploaded \(3, \d, 5\) of"),
    ],
)  # fmt: skip
def test_nonsense_costs_its_sender_the_round(method: str, reply: Any, sentence: str) -> None:
    observer = Seen()
    toy = TextToy(kind=faulty(method, reply))
    strategy = USplitSL(toy.server(), device="cpu", steps_per_round=3, observers=[observer])
    clients = toy.clients_for(strategy)
    strategy.fit(clients, 1)
    (event,) = observer.rounds
    assert list(event.failures) == [1]
    assert event.steps == 3
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(event.failures[1])


class Dying(UShapeClient):
    """Client 1 dies between its messages and its gradients."""

    def run(self, method: str, arguments: Any) -> dict[str, Any]:
        if method == "decode" and self.order.client == 1:
            raise RuntimeError("the battery is empty")
        return super().run(method, arguments)


def test_who_does_not_answer_contributes_nothing() -> None:
    trained = []
    for clients, kind in ((1, UShapeClient), (2, Dying)):
        toy = TextToy(clients=clients, kind=kind, dropout=0.0)
        strategy = USplitSL(toy.server(), optimizer=sgd(), device="cpu", steps_per_round=1)
        strategy.fit(toy.clients_for(strategy), 1)
        trained.append(strategy.trunk.module.state_dict())
    check_same_tensors("trunk", trained[0], trained[1], 1e-12)


class Trunk(nn.Module):
    def __init__(self, takes: int, returns: int, *, wrapped: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(takes, returns).double()
        self.wrapped = wrapped

    def forward(self, hidden: Tensor, mask: Tensor) -> Any:
        outputs = self.layer(hidden)
        return {"hidden": outputs} if self.wrapped else outputs


@pytest.mark.parametrize(
    ("trunk", "message"),
    [
        (Trunk(7, 7), r"trunk does not take hidden states of shape \(\d+, \d, 5\), .* one model"),
        (Trunk(5, 7), r"trunk returns \(\d+, \d, 7\) for .* \(\d+, \d, 5\); expected"),
        (Trunk(5, 5, wrapped=True), r"trunk returns a dict for .*; expected one tensor of"),
    ],
)
def test_a_trunk_that_does_not_fit_is_told_the_shapes(trunk: nn.Module, message: str) -> None:
    toy = TextToy(clients=3)
    strategy = USplitSL(trunk, device="cpu", steps_per_round=1)
    with pytest.raises(ValueError, match=message):
        strategy.fit(toy.clients_for(strategy), 1)


def test_below_min_nodes_the_round_ends() -> None:
    toy = TextToy(clients=2, kind=faulty("encode", lambda answer: {}))
    strategy = USplitSL(toy.server(), device="cpu", min_nodes=2)
    with pytest.raises(LinkError, match="1 client is left, min_nodes is 2: client 1: sent no"):
        strategy.fit(toy.clients_for(strategy), 1)


class Boastful(UShapeClient):
    def attach(self, order: Any, arrays: Any) -> dict[str, Any]:
        description = super().attach(order, arrays)
        return {**description, "width": 7} if order.client == 2 else description


def test_clients_of_another_width_are_left_out() -> None:
    observer = Seen()
    toy = TextToy(kind=Boastful)
    strategy = USplitSL(toy.server(), device="cpu", steps_per_round=1, observers=[observer])
    clients = list(toy.clients_for(strategy))
    clients[1] = replace(toy, width=7).clients_for(strategy)[0]
    strategy.fit(clients, 1)
    failures = observer.rounds[0].failures
    assert failures[1].startswith("the server's head and tail do not fit this client's: it has hea")
    assert failures[2] == "its hidden states have width 7, the trunk's 5"


def test_heads_and_tails_are_averaged() -> None:
    toy = TextToy(clients=2, dropout=0.0)
    strategy = USplitFL(toy.server(), device="cpu", steps_per_round=2)
    clients = toy.clients_for(strategy, sgd(0.1))
    result = strategy.fit(clients, 1)
    weights = [client.weights() for client in clients]
    assert not torch.equal(weights[0]["head.words.weight"], weights[1]["head.words.weight"])
    for name, array in result.arrays.items():
        mean = (weights[0][name] + weights[1][name]) / 2
        torch.testing.assert_close(torch.from_numpy(array.numpy()), mean)


def test_what_is_said_of_heads_and_tails_names_no_lower_segment(
    caplog: pytest.LogCaptureFixture,
) -> None:
    toy = TextToy(clients=2)
    strategy = USplitSL(toy.server(), device="cpu", steps_per_round=1)
    clients = toy.clients_for(strategy)
    with torch.no_grad():
        next(clients[1].tail.parameters()).add_(1)
    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        strategy.fit(clients, 1)
    assert "all clients start from client 0's weights, which replace theirs" in caplog.text
    assert "lower segment" not in caplog.text


def test_the_loss_of_a_round_is_the_clients_mean() -> None:
    toy = TextToy(clients=2)
    observer = Seen()
    strategy = USplitFL(toy.server(), device="cpu", observers=[observer])
    result = strategy.fit(toy.clients_for(strategy), 1)
    loss = result.train_metrics_clientapp[1]["train-loss"]
    assert observer.rounds[0].client_means["train-loss"] == pytest.approx(loss)
    assert strategy.rows[0]["loss"] == pytest.approx(loss)


def test_one_client_without_a_loss_does_not_take_it_out_of_flowers_result() -> None:
    """Flower's aggregators leave out what not all clients report."""
    toy = TextToy(clients=2)
    nothing = TextSet([[1, 2, 3, 4]] * 9, [[-100] * 4] * 8 + [[1, 2, 3, 4]])
    strategy = USplitFL(toy.server(), device="cpu", steps_per_round=1)
    without = UShapeClient(toy.head(), toy.tail(), nothing, batch_size=1, device="cpu")
    result = strategy.fit([*toy.clients_for(strategy), without], 2)
    losses = [result.train_metrics_clientapp[n].get("train-loss") for n in (1, 2)]
    assert losses == [row["loss"] for row in strategy.rows]
    assert None not in losses


# Table VI of the paper: bodies alone, one sample of T = 512 at d = 2048 in bfloat16.

LENGTH, WIDTH = 512, 2048
MIB = 2**20


class Wide(nn.Module):
    """A part that costs next to nothing to compute at full width."""

    def __init__(self, *, ids: bool = False, classes: int = 0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH, dtype=torch.bfloat16))
        self.ids, self.classes = ids, classes

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        hidden = inputs.unsqueeze(-1).to(torch.bfloat16) if self.ids else inputs
        hidden = hidden * self.scale
        return hidden[:, 0, : self.classes] if self.classes else hidden


def bytes_of_a_step(kind: str) -> tuple[int, int]:
    """Return the bytes of a sample's training step, and of the refinement beside it."""
    words = torch.randint(3, 90, (LENGTH,), generator=torch.Generator().manual_seed(0))
    texts = TextSet([words] * 2, [0, 1], pad_to=LENGTH)
    parts = (Wide(ids=True), Wide(classes=2), texts)
    options = {"batch_size": 1, "device": "cpu"}
    client: UShapeClient
    if kind == "plain":
        client = UShapeClient(*parts, **options)  # type: ignore[arg-type]
    else:
        mixguard = MixGuardOptions(
            secret_tokens=0,
            calibration_epochs=1,
            refine_every=1 if kind == "refined" else 0,
            perturbation=None,
            pad_to=LENGTH,
        )
        client = MixGuardClient(*parts, texts, vocab_size=99, options=mixguard, **options)  # type: ignore[arg-type]
        client.hiding.calibrated = True
    observer = Seen()
    strategy = (USplitSL if kind == "plain" else MixGuard)(
        Wide(), device="cpu", steps_per_round=1, observers=[observer]
    )
    strategy.fit([client], 1)
    # Masks are not a tensor of Table VI: one byte a token, for each batch that is sent.
    groups = {"plain": 1, "step": 1, "refined": 3}[kind]
    total = sum(observer.bytes[m, d] for m in ("encode", "decode") for d in ("up", "down"))
    return total - groups * LENGTH, groups * LENGTH


def test_bytes_are_those_of_the_papers_table() -> None:
    plain, _ = bytes_of_a_step("plain")
    step, _ = bytes_of_a_step("step")
    refined, _ = bytes_of_a_step("refined")
    assert plain == 8 * MIB
    assert step == 24 * MIB
    assert refined - step == 16 * MIB


def test_what_clients_say_of_their_round_is_in_its_row() -> None:
    options = MixGuardOptions(secret_tokens=0, max_length=32, calibration_epochs=1)
    toy = TextToy(kind=MixGuardClient, clients=2, options=options, tests=4, task="classification")
    strategy = MixGuard(toy.server(), device="cpu", evaluation="federated")
    result = strategy.fit(toy.clients_for(strategy), 1)
    (row,) = strategy.rows
    assert row["train_decode_error"] > 0
    assert row["train_calibrated_error"] > 0
    assert result.train_metrics_clientapp[1]["decode-error"] == row["train_decode_error"]


def test_a_row_and_flowers_result_have_the_same_loss() -> None:
    """FedAvg's own mean is weighted by examples, and the row's by steps."""
    few, many = TextToy(clients=2, examples=4), TextToy(clients=2, examples=40)
    strategy = USplitFL(few.server(), device="cpu", steps_per_round=2)
    few_texts, many_texts = few.clients_for(strategy)[0], many.clients_for(strategy)[1]
    result = strategy.fit([few_texts, many_texts], 1)
    means = result.train_metrics_clientapp
    assert means is not None
    (row,) = strategy.rows
    assert means[1]["train-loss"] == row["loss"]
