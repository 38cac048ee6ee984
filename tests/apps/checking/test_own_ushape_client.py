"""The check of a U-shaped client of a user's own app: it names each mistake, with its remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.apps.checking.app import check_app
from flwr_splitmix.apps.checking.own_ushape_client import look_at_ends
from flwr_splitmix.apps.checking.report import Report
from flwr_splitmix.data.examples import fetch
from flwr_splitmix.strategies import USHAPE_STRATEGIES
from flwr_splitmix.testing.laws import TextToy
from tests.apps.checking.test_own_client import PYPROJECT, SERVER, only

CLIENT = """
from dataclasses import replace
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset
from flwr_splitmix import SplitClientApp, UShapeClient
from flwr_splitmix.hiding import Hiding

ROWS, NUMBERS = torch.rand(8, 5), torch.rand(8, 1)


class Head(nn.Linear):
    def forward(self, inputs, mask):
        hidden = super().forward(inputs)[:, None]  # (b, 1, 6)
        return {out}


class Tail(nn.Linear):
    def forward(self, hidden, mask):
        return super().forward(hidden[:, 0])


class Client(UShapeClient):
    def loss(self, hidden, sent):
        return {loss}


class Halved(Hiding):
    def obfuscate(self, batch):
        sent = super().obfuscate(batch)
        return replace(sent, messages=[message[:1] for message in sent.messages])


class Scores:
    def __init__(self):
        self.examples, self.error = 0, 0.0

    def begin(self, batch):
        return batch

    def add(self, outputs, batch):
        self.examples += {counted}
        self.error += float(mse_loss(outputs, batch.labels, reduction="sum"))

    def result(self):
        return {result}


def client_fn(context):
    head, tail = Head(5, 6), Tail(6, 1)
    {first}
    data, tests = {data}, {tests}
    return {client}


app = SplitClientApp(client_fn)
"""


def checked(folder: Path, **changed: str) -> Report:
    """Check an app whose client differs from a right one, a regression, as said."""
    parts = {
        "out": "hidden",
        "loss": "mse_loss(self.tail(hidden, sent.mask), sent.batch.labels)",
        "counted": "len(outputs)",
        "result": "{'loss': self.error / self.examples, 'accuracy': 0.5}",
        "first": "pass",
        "data": "TensorDataset(ROWS, NUMBERS)",
        "tests": "TensorDataset(ROWS, NUMBERS)",
        "client": "Client(head, tail, data, batch_size=4, test_data=tests, scores=Scores)",
    }
    (folder / "pyproject.toml").write_bytes(PYPROJECT.read_bytes())
    (folder / "server_app.py").write_text(SERVER, encoding="utf-8")
    code = CLIENT.format(**(parts | changed))
    (folder / "client_app.py").write_text(code, encoding="utf-8")
    return check_app(folder, here=folder)


@pytest.mark.parametrize("size", [1, 4])
def test_a_right_client_of_the_u_shape_has_no_finding(size: int, tmp_path: Path) -> None:
    client = f"Client(head, tail, data, batch_size={size}, test_data=tests, scores=Scores)"
    report = checked(tmp_path, client=client)
    assert report.problems == report.remarks == []
    assert report.facts == {
        "client 0": f"8 training examples in batches of {size}",
        "head": "36 parameters; 1 token x 6 for each example",
        "tail": "7 parameters",
    }


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"data": "[(row, 'a') for row in ROWS]"},
         "the training data cannot be read, expected (input, label) pairs: labels are"),
        ({"data": "TensorDataset(ROWS.double(), NUMBERS)"},
         "inputs are float64, the head float32: convert them in the data set with .float()"),
        ({"data": "TensorDataset(ROWS[:, :3], NUMBERS)"}, "inputs (3,) do not fit the head: "),
        ({"data": "TensorDataset((ROWS - 9).long(), NUMBERS)"}, "token ids are negative; rows of"),
        ({"data": "TensorDataset(ROWS / 0, NUMBERS)"}, "its data have NaN or infinite numbers"),
        ({"out": "hidden[:, 0]"}, "a head must return (batch, tokens, width), this one (2, 6)"),
        ({"out": "hidden.detach()"}, "the head returns data without a gradient, though it has par"),
        ({"out": "hidden * 1e9"}, "the head returns numbers beyond 1e+06, which the server refus"),
        ({"out": "hidden[:1]"}, "the head returned 1 row for 2 examples; the batch must be the fi"),
        ({"client": "Client(head, tail, data, hiding=Halved())"},
         "messages are (1, 1, 6) and their mask (2, 1); expected (exam"),
        ({"out": "1 / 0"}, "the head raised ZeroDivisionError: division by zero"),
        ({"out": "exit('gone')"}, "the head raised SystemExit: gone"),
        ({"loss": "super().loss(hidden, sent)"},
         "labels are torch.float32; expected classes, int64 (batch,); others, such as several l"),
        ({"loss": "hidden.mean(1)"}, "loss returns a tensor (2, 6); expected a tensor of one num"),
        ({"loss": "hidden.mean() / 0"}, "loss is infinite: it makes that of finite labels with"),
        ({"loss": "self.tail(hidden.mT, sent.mask).mean()"},
         "loss, or the tail in it, raised RuntimeError: "),
        ({"data": "TensorDataset(ROWS, torch.ones(8, dtype=torch.int64))",
          "client": "UShapeClient(head, tail, data)"},
         "labels lie in 1..1, expected 0..0"),
        ({"client": "Client(head, tail, data, learns='tail')", "out": "hidden + float('nan')"},
         "its head makes NaN or infinite numbers of finite data with finite weights"),
    ],
)  # fmt: skip
def test_what_no_round_can_begin_or_learn_from_is_a_problem(
    changed: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    """Otherwise a run would begin, and lose all clients in its first round."""
    assert only(checked(tmp_path, **changed).problems)[: len(problem)] == problem


@pytest.mark.parametrize(
    ("changed", "remark"),
    [
        ({"counted": "3 * len(outputs)"}, "its scores count 12 examples, it was given 4: `add`"),
        ({"result": "{'loss': 1.0}"}, "returned no 'accuracy' among the scores of its evaluation"),
        ({"result": "1 / 0"}, "the tail or its scores raised ZeroDivisionError: division by zero"),
        ({"tests": "TensorDataset(ROWS.double(), NUMBERS)"},
         "inputs are float64, the head float32: convert them in the data set with .float()"),
        ({"client": "Client(head, tail, data, batch_size=4, test_data=tests)"},
         "labels are torch.float32; expected classes, int64 (batch,); others, such as several l"),
    ],
)  # fmt: skip
def test_what_no_evaluation_can_score_is_a_remark(
    changed: dict[str, Any], remark: str, tmp_path: Path
) -> None:
    """Each evaluation would lose the client; but a strategy need not evaluate."""
    report = checked(tmp_path, **changed)
    assert report.problems == []
    begin = "an evaluation would lose this client's federated test data: "
    assert only(report.remarks)[: len(begin + remark)] == begin + remark


def test_a_head_of_another_floating_type_is_a_remark(tmp_path: Path) -> None:
    report = checked(tmp_path, out="hidden.double()", loss="self.tail(hidden.float(), None).mean()")
    assert report.problems == []
    remark = "the head returns torch.float64; the server takes the type of its trunk's parameters"
    assert report.remarks[0][: len(remark)] == remark


def test_a_client_with_a_loss_and_scores_of_the_package_is_looked_at_too(tmp_path: Path) -> None:
    data = "TensorDataset(ROWS, torch.arange(8) % 3)"
    client = "UShapeClient(head, Tail(6, 3), data, batch_size=50, test_data=data)"
    report = checked(tmp_path, data=data, client=client)
    assert report.problems == []
    assert only(report.remarks) == (
        "client 0 has less than one batch of batch_size 50: examples are drawn with replacement"
    )
    assert report.facts["tail"] == "21 parameters"


@pytest.mark.parametrize("name", USHAPE_STRATEGIES)
def test_a_client_of_any_method_passes(name: str) -> None:
    toy = TextToy(clients=1, tests=6)
    client = toy.clients_for(USHAPE_STRATEGIES[name](toy.server(), device="cpu"))[0]
    report = Report("texts", 1)
    look_at_ends(client, fetch(client.batches.data, client.batches.first(2)), report)
    assert report.problems == []
    assert [*report.facts] == ["head", "tail"]
