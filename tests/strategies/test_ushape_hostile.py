"""Clients that say or send too much: more than they have, than others, or than memory holds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.clients import UShapeClient
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import Hiding, SentBatch
from flwr_splitmix.links import LinkError
from flwr_splitmix.segments.language import LanguageCut, build_language_parts
from flwr_splitmix.segments.language.layouts.layout import Task
from flwr_splitmix.server.intake.checks import UploadError
from flwr_splitmix.server.intake.ushape import read_scores
from flwr_splitmix.strategies import USplitSL
from flwr_splitmix.testing.laws import TextToy
from tests.segments.language.tiny_models import CONFIGS
from tests.strategies.test_ushape import Seen, faulty

HUGE = 10**400


def finite(module: nn.Module) -> bool:
    return all(bool(t.isfinite().all()) for t in module.state_dict().values())


def failures_of(toy: TextToy, trunk: nn.Module | None = None, **options: Any) -> dict[int, str]:
    observer = Seen()
    strategy = USplitSL(
        trunk or toy.server(),
        device="cpu",
        observers=[observer],
        **{"steps_per_round": 3, **options},
    )
    strategy.fit(toy.clients_for(strategy), 1)
    assert observer.rounds[0].steps == 3
    assert finite(strategy.trunk.module)
    return dict(observer.rounds[0].failures)


@pytest.mark.parametrize("kind", ["qwen3", "gpt2", "bert"])
def test_a_trunk_of_transformers_knows_its_width_and_length(kind: str) -> None:
    """Otherwise what most clients say would count, and one liar of two is most."""
    config = CONFIGS[kind]
    task: Task = "classification" if kind == "bert" else "generation"
    trunk = build_language_parts(config, LanguageCut(1, 1), parts=("trunk",), task=task).trunk
    assert trunk is not None
    strategy = USplitSL(trunk, device="cpu")
    assert strategy.width == config.hidden_size
    assert strategy.max_length == config.max_position_embeddings


@pytest.mark.parametrize(
    ("claim", "sentence"),
    [
        ({"num-examples": HUGE}, "says that its num-examples is more than 2147483647"),
        ({"batch-size": 10**5}, "says that its batch-size is more than 65536"),
        ({"calibration-steps": HUGE}, "says that its calibration-steps is more than 100000"),
        ({"width": True}, "says that its width is True; it must be an integer of at least 1"),
        ({"drawn": 1.0}, "says that its drawn is 1.0; it must be an integer of at least 0"),
        ({"hiding": 3}, "says that its hiding is 3; it must be a text"),
    ],
    ids=["examples", "batch", "calibration", "width", "drawn", "hiding"],
)
def test_what_a_client_says_of_itself_is_bounded(claim: dict[str, Any], sentence: str) -> None:
    class Liar(UShapeClient):
        def attach(self, order: Any, arrays: Any) -> dict[str, Any]:
            description = super().attach(order, arrays)
            return {**description, **claim} if order.client == 1 else description

    assert failures_of(TextToy(kind=Liar)) == {1: sentence}


def test_a_batch_far_beyond_the_others_costs_only_its_own_client() -> None:
    """32 times as many texts as anybody else would end the run where the trunk's memory ends."""

    class Large(UShapeClient):
        def attach(self, order: Any, arrays: Any) -> dict[str, Any]:
            sizes = {0: 480, 1: 481}
            return {**super().attach(order, arrays), "batch-size": sizes.get(order.client, 30)}

    sentence = "its batch-size is 481, more than 16 times the median client's 30"
    (client, failure), *others = failures_of(TextToy(kind=Large, clients=5)).items()
    assert (client, others) == (1, [])
    assert failure.startswith(sentence)


@pytest.mark.parametrize(("size", "left_out"), [(256, False), (257, True)])
def test_a_small_batch_of_one_leaves_no_ordinary_one_out(size: int, left_out: bool) -> None:
    class Unequal(UShapeClient):
        def attach(self, order: Any, arrays: Any) -> dict[str, Any]:
            described = {"batch-size": size} if order.client else {}
            return {**super().attach(order, arrays), **described}

    assert bool(failures_of(TextToy(kind=Unequal, clients=2))) is left_out


@pytest.mark.parametrize("times", [4, 5])
def test_who_sends_far_more_messages_than_the_others_is_left_out(times: int) -> None:
    def more(reply: dict[str, Any]) -> dict[str, Any]:
        return {**reply, "messages": reply["messages"] * times}

    sentence = "sent 5 messages for a batch, more than 4 times the median client's 1"
    failures = failures_of(TextToy(kind=faulty("encode", more)))
    assert (failures == {1: sentence}) is (times == 5)


class Small(nn.Module):
    """A trunk without memory for more than so many texts."""

    def __init__(self, texts: int) -> None:
        super().__init__()
        self.own = nn.Linear(5, 5).double()
        self.texts = texts

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Map, if there is memory."""
        if len(hidden) > self.texts:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        out: Tensor = self.own(hidden)
        return out


def test_who_needs_more_memory_than_the_trunk_has_is_left_out() -> None:
    def long(reply: dict[str, Any]) -> dict[str, Any]:
        mask = torch.ones(4, 900, dtype=torch.uint8)
        return {"messages": [torch.zeros(4, 900, 5, dtype=torch.float64)] * 3, "mask": mask}

    failures = failures_of(TextToy(kind=faulty("encode", long)), Small(11))
    sentence = "the trunk has no memory for its 3 messages of 4 examples of 900 tokens; a smaller"
    assert failures.keys() == {1}
    assert failures[1].startswith(sentence)


def test_who_needs_more_memory_to_learn_from_than_there_is_is_left_out() -> None:
    class Forgetful(Small):
        """Has memory for a forward pass of many texts, and none for the backward pass."""

        def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
            out: Tensor = self.own(hidden)
            if len(hidden) > self.texts and out.requires_grad:
                out.register_hook(lacks_memory)  # type: ignore[no-untyped-call]
            return out

    def lacks_memory(gradient: Tensor) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    class Thrice(Hiding):
        def obfuscate(self, batch: MaskedBatch) -> SentBatch:
            sent = super().obfuscate(batch)
            times = 3 if self.side.client == 1 else 1
            return replace(sent, messages=[*sent.messages] * times)

        def recover(self, outputs: Sequence[Tensor], sent: SentBatch) -> Tensor:
            return torch.stack([*outputs]).mean(0)

    failures = failures_of(TextToy(hiding=Thrice), Forgetful(11))
    assert failures.keys() == {1}
    assert failures[1].startswith("the trunk has no memory for its 3 messages of 4 examples of ")


def test_a_trunk_without_memory_for_any_client_ends_the_run() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        failures_of(TextToy(), Small(3))


@pytest.mark.parametrize(
    ("says", "asked_of"),
    [
        ({0: 3, 1: 300}, {0: 3, 1: 300}),
        ({0: 3, 1: 4, 2: 400}, {0: 3, 1: 4, 2: 400}),
        ({1: 250}, {1: 250}),  # the others have calibrated before
    ],
    ids=str,
)
def test_the_others_do_not_calibrate_as_long_as_one_says(
    says: dict[int, int], asked_of: dict[int, int]
) -> None:
    clients: list[int] = []

    class Endless(UShapeClient):
        def attach(self, order: Any, arrays: Any) -> dict[str, Any]:
            description = super().attach(order, arrays)
            return {**description, "calibration-steps": says.get(order.client, 0)}

        def run(self, method: str, arguments: Any) -> dict[str, Any]:
            if method == "encode_public":
                clients.append(self.order.client)
                mask = torch.ones(1, 1, dtype=torch.uint8)
                hidden = torch.zeros(1, 1, 5, dtype=torch.float64)
                return {"public": [{"messages": [hidden], "mask": mask}]}
            return {} if method == "decode_public" else super().run(method, arguments)

    assert failures_of(TextToy(kind=Endless)) == {}
    assert Counter(clients) == asked_of


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        ({"examples": HUGE, "scores": {"accuracy": 1, "loss": 1}}, "is more than 2147483647"),
        ({"examples": True, "scores": {"accuracy": 1, "loss": 1}}, "scored examples is True"),
        ({"examples": 4, "scores": {"accuracy": 1e9, "loss": 1}}, r"its accuracy is 1e\+09"),
        ({"examples": 4, "scores": {"accuracy": -3.0, "loss": 1}}, "its accuracy is -3; it must"),
        ({"examples": 4, "scores": {"accuracy": HUGE, "loss": 1}}, "its accuracy is more than 2"),
        ({"examples": 4, "scores": {"accuracy": float("nan"), "loss": 1}}, "accuracy is nan; expe"),
        ({"examples": 4, "scores": {"accuracy": 0.5, "loss": float("inf")}}, "its loss is inf; ex"),
        (
            {"examples": 4, "scores": {"accuracy": 0.5, "loss": 1e308}},
            r"loss is 1e\+308; expected",
        ),
        ({"examples": 4, "scores": {"accuracy": 0.5, "loss": None}}, "loss is None; expected a"),
        ({"examples": 4, "scores": {"accuracy": 0.5}}, "no 'loss' among the scores of its eval"),
        ({"examples": 4, "scores": None}, "returned no scores of its evaluation"),
    ],
    ids=str,
)
def test_scores_are_finite_and_an_accuracy_is_one(reply: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UploadError, match=sentence):
        read_scores(reply)


def test_further_scores_that_are_none_are_left_out_alone() -> None:
    """One of them does not discard the whole evaluation."""
    bad = {"F1": 0.4, "Bad Name": 1.0, "f": float("nan"), "g": HUGE, "h": "1", "i": None, 3: 1.0}
    read = read_scores({"examples": 4, "scores": {"accuracy": 0.5, "loss": 1, "r2": -3, **bad}})
    assert read.scores == {"accuracy": 0.5, "loss": 1.0, "r2": -3.0}
    assert read.misnamed == ["F1", "Bad Name", "3"]
    assert read.not_finite == ["f", "g", "h", "i"]


def scored_examples(toy: TextToy) -> int:
    """Evaluate after a step: every number must be sound."""
    observer = Seen()
    strategy = USplitSL(
        toy.server(), device="cpu", steps_per_round=1, evaluation="federated", observers=[observer]
    )
    strategy.fit(toy.clients_for(strategy), 1)
    scored = observer.rounds[0].evaluation
    assert scored is not None
    assert 0 <= scored.accuracy <= 1
    assert scored.loss is not None
    assert math.isfinite(scored.loss)
    return scored.examples


def test_a_test_set_without_end_costs_only_its_own_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Liar(UShapeClient):
        def attach(self, order: Any, arrays: Any) -> dict[str, Any]:
            description = super().attach(order, arrays)
            return {**description, "federated-examples": HUGE} if order.client == 1 else description

    assert scored_examples(TextToy(kind=Liar, tests=4)) == 2 * 4
    sentence = "client 1: says that its federated-examples is more than 2147483647"
    assert f"the evaluation continued without {sentence}" in caplog.messages


def test_an_absurd_score_costs_only_its_own_client() -> None:
    class Absurd(UShapeClient):
        def run(self, method: str, arguments: Any) -> dict[str, Any]:
            reply = super().run(method, arguments)
            if method == "score" and self.order.client == 1:
                reply = {**reply, "scores": {**reply["scores"], "accuracy": float("nan")}}
            return reply

    assert scored_examples(TextToy(kind=Absurd, tests=4)) == 2 * 4


@pytest.mark.parametrize("steps", [1.7e308, -1.7e308, 2.0**60])
def test_absurd_numbers_of_steps_do_not_end_the_run(steps: float) -> None:
    """They are weights of the mean loss, and two of three clients say them."""

    class Liar(UShapeClient):
        def release(self) -> tuple[dict[str, Tensor], dict[str, int | float]]:
            weights, metrics = super().release()
            return weights, {**metrics, "num-steps": steps if self.order.client else 1}

    toy = TextToy(kind=Liar)
    strategy = USplitSL(toy.server(), device="cpu", steps_per_round=1)
    strategy.fit(toy.clients_for(strategy), 1)
    assert math.isfinite(strategy.rows[0]["loss"])


def test_one_of_two_that_says_another_width_does_not_turn_the_other_out() -> None:
    """The trunk knows its own width."""

    class Wide(UShapeClient):
        def attach(self, order: Any, arrays: Any) -> dict[str, Any]:
            description = super().attach(order, arrays)
            return {**description, "width": 64} if order.client == 0 else description

    toy = TextToy(kind=Wide, clients=2)
    assert list(failures_of(toy)) == [0]
    with pytest.raises(LinkError, match="no client fits the trunk"):
        failures_of(TextToy(kind=Wide, clients=1))
