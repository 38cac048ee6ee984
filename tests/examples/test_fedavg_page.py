"""docs/own-app.md: one app trains with FedAvg and with a method of ours, as a key says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from flwr_splitmix import SplitClientApp
from flwr_splitmix.links.ticket import RECORD, Ticket
from flwr_splitmix.segments import split_vision_model
from flwr_splitmix.server.messages import messages_to
from tests.examples.programs import program


@pytest.fixture(scope="module")
def client_app() -> Iterator[ModuleType]:
    module = ModuleType("client_app_of_the_page")
    sys.modules[module.__name__] = module  # its classes look it up
    exec(program("docs/own-app.md", "class WholeOrSplit"), vars(module))
    yield module
    del sys.modules[module.__name__]


def answer(app: ClientApp, method: str, kind: str, content: RecordDict) -> Message:
    """Have the app answer as a node does, which names the arguments."""
    (message,) = messages_to([9], content, kind, in_run=False)
    context = Context(
        run_id=1,
        node_id=9,
        node_config={"partition-id": 0, "num-partitions": 20},
        state=RecordDict(),
        run_config={"method": method},
    )
    return app(message=message, context=context)


def test_it_is_an_app_that_our_commands_accept(client_app: Any) -> None:
    assert isinstance(client_app.app, SplitClientApp)


def test_in_a_run_with_phases_the_message_chooses(client_app: Any) -> None:
    names = dict(vars(client_app))
    exec(program("docs/own-app.md", "class FirstWholeThenSplit"), names)
    model = split_vision_model("lenet5")
    whole = {
        f"{i}.{name}": w for i, part in enumerate(model) for name, w in part.state_dict().items()
    }
    content = RecordDict({"arrays": ArrayRecord(whole)})
    content["config"] = ConfigRecord({"phase": "fedavg", "server-round": 1})
    assert answer(names["app"], "", "train", content).content.metric_records
    content["config"] = ConfigRecord({"server-round": 1})
    with pytest.raises(Exception, match="no split-learning ticket"):
        answer(names["app"], "", "train", content)


def test_fedavg_is_answered_with_the_whole_model_trained(client_app: Any) -> None:
    lower, upper = split_vision_model("lenet5", seed=0)
    names = [f"0.{name}" for name in lower.state_dict()]
    names += [f"1.{name}" for name in upper.state_dict()]
    tensors = [*lower.state_dict().values(), *upper.state_dict().values()]
    arrays = ArrayRecord(dict(zip(names, tensors, strict=True)))
    reply = answer(client_app.app, "FedAvg", "train", RecordDict({"arrays": arrays}))
    (trained,) = reply.content.array_records.values()
    assert list(trained) == names
    assert any((trained[name].numpy() != arrays[name].numpy()).any() for name in names)
    assert reply.content.metric_records["metrics"]["num-examples"] == 300


@pytest.mark.parametrize("kind", ["query", "train", "train.finish", "evaluate"])
def test_all_else_is_answered_by_ours(
    client_app: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a server to dial, each but the query says so in our record."""
    monkeypatch.setenv("SPLITMIX_HOME", str(tmp_path))  # where the node keeps its audit log
    ticket = Ticket(0, 0, 1, 1, link="stream", address="127.0.0.1:1", timeout=1.0)
    content = RecordDict({RECORD: ticket.to_record()})
    reply = answer(client_app.app, "CutMixSFL", kind, content)
    assert reply.content.config_records[RECORD].keys() & {"client", "error"}
