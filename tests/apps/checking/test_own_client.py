"""The check of a client of a user's own app: it names each mistake, with its remedy."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.apps.checking.app import check_app
from flwr_splitmix.apps.checking.report import Report
from tests.apps.app_config import APPS

PYPROJECT = APPS.parent / "examples" / "other_project" / "pyproject.toml"

SERVER = "from flwr.serverapp import ServerApp\napp = ServerApp()\n"

CLIENT = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset
from flwr_splitmix import SplitClient, SplitClientApp
from flwr_splitmix.clients import Client

IMAGES, CLASSES = torch.rand(6, 1, 8, 8), torch.arange(6) % 3
DATA = TensorDataset(IMAGES, CLASSES)


class Lower(nn.Conv2d):
    def forward(self, images):
        smashed = super().forward(images).flatten(2).mT  # (b, 4, 5)
        return {out}


class Other(Client):
    weights = attach = release = state = restore = None


def client_fn(context):
    lower, size = Lower(1, 5, 4, stride=4), 4
    {first}
    return {client}


app = SplitClientApp(client_fn)
"""


def checked(
    folder: Path,
    *,
    data: str = "DATA",
    out: str = "smashed",
    first: str = "pass",
    client: str = "SplitClient(lower, {data}, batch_size=size, device='cpu')",
    nodes: int | None = None,
) -> Report:
    """Check an app whose client differs from a right one as said."""
    code = CLIENT.format(out=out, first=first, client=client.format(data=data))
    (folder / "pyproject.toml").write_bytes(PYPROJECT.read_bytes())
    (folder / "server_app.py").write_text(SERVER, encoding="utf-8")
    (folder / "client_app.py").write_text(code, encoding="utf-8")
    return check_app(folder, here=folder, nodes=nodes)


@pytest.mark.parametrize(
    ("strategy", "nodes", "any_nodes", "start"),
    [
        (
            "CutMixSFL",
            1,
            False,
            "CutMixSFL needs at least 2 clients in a round, and the federation",
        ),
        ("DPCutMixSL", 1, False, "DPCutMixSL needs at least 2 clients"),
        ("CutMixSFL", 2, False, ""),
        ("CutMixSFL", 1, True, ""),
        ("PSL", 1, False, ""),
    ],
)
def test_a_strategy_that_mixes_clients_is_remarked_if_there_is_one(
    strategy: str, nodes: int, any_nodes: bool, start: str, tmp_path: Path
) -> None:
    """The check passes; without the remark one would hear of it from a run that fails."""
    checked(tmp_path)
    imported = f"from flwr_splitmix.strategies import {strategy}\n"
    (tmp_path / "server_app.py").write_text(imported + SERVER, encoding="utf-8")
    report = check_app(tmp_path, here=tmp_path, nodes=nodes, any_nodes=any_nodes)
    assert report.ok
    assert [remark[: len(start)] for remark in report.remarks] == ([start] if start else [])


def only(findings: list[str]) -> str:
    (finding,) = findings
    return finding


def test_a_right_client_has_no_finding(tmp_path: Path) -> None:
    report = checked(tmp_path)
    assert report.problems == report.remarks == []
    assert report.facts == {
        "client 0": "6 training examples in batches of 4",
        "lower segment": "85 parameters; 4 patches x 5 for each example",
    }


@pytest.mark.parametrize(("client", "kind"), [("None", "NoneType"), ("lower", "Lower")])
def test_a_client_fn_that_returns_no_client_is_a_problem(
    client: str, kind: str, tmp_path: Path
) -> None:
    assert only(checked(tmp_path, client=client).problems) == (
        f"client_fn returned {kind}; it must return a client, such as SplitClient(...)"
    )


def test_clients_of_other_kinds_are_named_and_not_looked_at(tmp_path: Path) -> None:
    report = checked(tmp_path, first="Other.__abstractmethods__ = frozenset()", client="Other()")
    assert report.problems == []
    assert report.facts == {"client": "Other"}


@pytest.mark.parametrize("config", ["node_config", "run_config"])
def test_the_error_for_a_missing_key_lists_the_keys(config: str, tmp_path: Path) -> None:
    report = checked(tmp_path, first=f"context.{config}['images']")
    of_node = config == "node_config"
    finding = only(report.remarks if of_node else report.problems)
    assert report.ok == of_node  # a SuperNode may have what a check cannot know
    keys = {"node_config": "'partition-id', 'num-partitions'", "run_config": "none"}[config]
    assert f"context.{config} has no key 'images'; its keys are: {keys}" in finding
    assert ("a SuperNode can have it from its --node-config" in finding) == of_node


def test_a_misspelt_key_of_a_node_is_a_problem(tmp_path: Path) -> None:
    problem = only(checked(tmp_path, first="context.node_config['partition_id']").problems)
    assert "context.node_config has no key 'partition_id'; its keys are: 'partition-id'" in problem


def test_a_client_fn_may_ask_for_a_key_with_a_default(tmp_path: Path) -> None:
    report = checked(tmp_path, first="assert context.node_config.get('partition', 3) == 3")
    assert report.problems == []


@pytest.mark.parametrize(
    ("first", "data", "problem"),
    [
        ("{}['a']", "DATA", "client_fn raised KeyError: 'a'"),
        ("1 / 0", "DATA", "client_fn raised ZeroDivisionError: division by zero"),
        ("size = '4'", "DATA", "client_fn raised TypeError: batch_size is '4'; it must be an"),
        ("pass", "None", "client_fn raised TypeError: data is NoneType; expected a map-style"),
        ("pass", "(x for x in DATA)", "data is generator; expected a map-style data set with"),
    ],
)
def test_an_error_of_client_fn_is_called_so(
    first: str, data: str, problem: str, tmp_path: Path
) -> None:
    assert problem in only(checked(tmp_path, first=first, data=data).problems)


EMPTY = "DATA = TensorDataset(IMAGES[:0], CLASSES[:0]) if {which} else globals()['DATA']"
PARTITION = "context.node_config['partition-id']"


def test_the_first_client_that_has_data_is_looked_at(tmp_path: Path) -> None:
    """A run leaves a client without data out, so an uneven partition is not a mistake."""
    report = checked(tmp_path, first=EMPTY.format(which=f"{PARTITION} == 0"))
    assert report.problems == []
    assert only(report.remarks) == "client 0 has no training data and will take no part"
    assert report.facts["client 1"] == "6 training examples in batches of 4"


def test_a_reason_may_follow_that_a_client_has_no_data(tmp_path: Path) -> None:
    imports = "from flwr_splitmix.clients import NO_DATA, ClientError"
    first = (
        f"{imports}\n    if {PARTITION} == 0: raise ClientError(NO_DATA + ': its folder is empty')"
    )
    report = checked(tmp_path, first=first)
    assert report.problems == []
    assert only(report.remarks) == "client 0 has no training data and will take no part"


def test_an_app_whose_clients_have_no_data_at_all_is_a_problem(tmp_path: Path) -> None:
    report = checked(tmp_path, first=EMPTY.format(which="True"))
    problem = "client_fn made no client with training data for the first"
    assert only(report.problems).startswith(problem)
    code = f"print('asked'); {EMPTY.format(which='True')}"
    with redirect_stdout(StringIO()) as printed:
        many = checked(tmp_path, first=code, nodes=1000)
    assert only(many.remarks) == f"{problem} 16 partitions"
    assert printed.getvalue().count("asked") == 16


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"client": "None\nraise SystemExit(3)"},
         "clientapp 'client_app:app' cannot be imported: SystemExit: 3"),
        ({"first": "raise SystemExit"}, "client_fn raised SystemExit"),
        ({"out": "exit('gone')"}, "the lower segment raised SystemExit: gone (its input was"),
    ],
)  # fmt: skip
def test_a_script_that_ends_itself_does_not_end_the_check(
    changed: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    assert only(checked(tmp_path, **changed).problems).startswith(problem)


def test_a_check_can_be_interrupted(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        checked(tmp_path, client="None\nraise KeyboardInterrupt")


READ = "the training data cannot be read, expected (input, label) pairs: "


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("TensorDataset(IMAGES)", READ + "a data set must give"),
        ("TensorDataset(IMAGES, torch.eye(6))", READ + "labels are torch.float32; "),
        ("[(image, 'cat') for image in IMAGES]", READ + "labels are"),
        ("[{'pixels': image} for image in IMAGES]", READ + "a data set must give"),
        ("{0: (IMAGES[0], 0), 5: 1}", READ + "KeyError: 1"),
        ("TensorDataset(IMAGES, CLASSES[:, None])", "labels have shape (4, 1) in a batch of 4; "),
        ("TensorDataset(IMAGES, CLASSES - 1)", "labels are as low as -1; classes are numbered"),
        ("TensorDataset(IMAGES, CLASSES[:, None] + torch.arange(2))", "are rows of numbers in 0.."),
        ("TensorDataset(IMAGES, IMAGES.long())", "labels have shape (4, 1, 8, 8) in a batch"),
    ],
)
def test_data_that_no_run_can_take_are_a_problem(data: str, problem: str, tmp_path: Path) -> None:
    report = checked(tmp_path, data=data)
    assert problem in only(report.problems)
    assert ("lower segment" in report.facts) != (READ in only(report.problems))


def test_labels_of_several_classes_are_a_fact(tmp_path: Path) -> None:
    report = checked(tmp_path, data="TensorDataset(IMAGES, torch.eye(6).bool())")
    assert report.problems == []
    assert report.facts["labels"] == "6 for each example, for a strategy with multi_label=True"


@pytest.mark.parametrize(
    ("out", "problem"),
    [
        ("None", "returns NoneType; expected a tensor (batch, patches, width)"),
        ("(smashed, None)", "returns tuple; expected a tensor (batch, patches, width)"),
        ("smashed.detach().numpy()", "returns ndarray; expected a tensor (batch, patches, width)"),
        ("smashed[:, 0]", "returns smashed data of shape (2, 5); expected a tensor (batch, pa"),
        ("smashed[:, :0]", "returns smashed data of shape (2, 0, 5); expected a tensor (batch"),
        ("smashed[:1]", "returns a batch of 1 for a batch of 2; expected one row for each"),
        ("smashed.long()", "returns torch.int64; expected torch.float32"),
        ("smashed / 0", "returns NaN or infinite numbers, which the server refuses"),
        ("smashed * 1e9", "returns numbers beyond 1e+06, which the server refuses"),
        ("smashed @ images", "raised RuntimeError: "),
    ],
)
def test_smashed_data_that_no_server_takes_are_a_problem(
    out: str, problem: str, tmp_path: Path
) -> None:
    assert only(checked(tmp_path, out=out).problems).startswith(f"the lower segment {problem}")


@pytest.mark.parametrize(
    ("out", "problem"),
    [
        (
            "smashed[:, :3] if self.training else smashed",
            r"\(batch, 3, 5\) in training and \(batch, 4, 5\) in evaluation",
        ),
        ("smashed if self.training else smashed @ images", "do not fit the lower segment"),
        ("smashed if self.training else 1 / 0", "ZeroDivisionError: .* in evaluation mode"),
    ],
)
def test_an_output_that_is_another_in_evaluation_is_a_problem(
    out: str, problem: str, tmp_path: Path
) -> None:
    """A client describes itself in evaluation mode, so each round failed after a check passed."""
    assert re.search(problem, only(checked(tmp_path, out=out).problems))


def test_an_error_of_the_lower_segment_shows_its_input(tmp_path: Path) -> None:
    report = checked(tmp_path, data="TensorDataset(IMAGES.double(), CLASSES)")
    problem = only(report.problems)
    assert problem.startswith("the lower segment raised RuntimeError: ")
    assert problem.endswith("(its input was (2, 1, 8, 8) of torch.float64)")


def test_data_that_are_not_finite_are_named_as_the_cause(tmp_path: Path) -> None:
    report = checked(tmp_path, data="TensorDataset(IMAGES / 0, CLASSES)")
    assert only(report.problems).endswith("; the inputs have such, too: mend the data")


@pytest.mark.parametrize("kind", ["float16", "float64"])
def test_another_floating_type_is_a_remark(kind: str, tmp_path: Path) -> None:
    report = checked(tmp_path, out=f"smashed.to(torch.{kind})")
    assert report.problems == []
    assert f"returns torch.{kind}; the server takes the type of its" in only(report.remarks)


def test_a_lower_segment_that_can_never_learn_gets_a_remark(tmp_path: Path) -> None:
    report = checked(tmp_path, out="smashed.detach()")
    assert report.problems == []
    assert "without a gradient, so its parameters never learn" in only(report.remarks)


def test_a_frozen_lower_segment_needs_no_gradient(tmp_path: Path) -> None:
    report = checked(tmp_path, first="lower.requires_grad_(False)")
    assert report.problems == report.remarks == []


def test_a_batch_of_more_than_the_data_gets_a_remark(tmp_path: Path) -> None:
    report = checked(tmp_path, first="size = 50")
    assert report.problems == []
    assert only(report.remarks) == (
        "client 0 has less than one batch of batch_size 50: examples are drawn with replacement"
    )
