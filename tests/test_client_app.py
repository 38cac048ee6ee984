"""SplitClientApp: what a node answers, and what it needs to be installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod, message_size_mod
from safetensors.torch import load_file

from flwr_splitmix import Run, SplitClient, SplitClientApp, adamw
from flwr_splitmix.links import StreamLink
from flwr_splitmix.links.arrays import to_arrays
from flwr_splitmix.links.ticket import RECORD, Ticket, with_record
from flwr_splitmix.privacy.journal import read_journal
from flwr_splitmix.strategies import PSL
from flwr_splitmix.testing.toy import Toy
from tests.links.fake_grid import FakeGrid, OnFakeGrid
from tests.node_messages import TICKET, context, message, no_client

ROOT = Path(__file__).parents[1]
TOY = Toy(clients=1)


def test_a_node_says_which_client_it_is_and_that_it_is_real() -> None:
    reply = SplitClientApp(no_client)(message("query"), context(**{"partition-id": 4}))
    record = dict(reply.content.config_records[RECORD])
    assert record["client"] == 4
    assert record["simulated"] is False


def two(context: Context, more: int) -> SplitClient:
    raise AssertionError


@pytest.mark.parametrize(
    ("client_fn", "message"),
    [
        (None, "client_fn is None; expected a function that makes the node's client from the Fl"),
        (SplitClient, "client_fn is the class SplitClient; expected a function that makes"),
        (5, "client_fn is an int; expected a function"),
        (two, "client_fn is a function of other arguments; expected a function that makes"),
    ],
)
def test_what_makes_no_client_is_refused_at_once(client_fn: Any, message: str) -> None:
    """Otherwise it would fail on every node."""
    with pytest.raises(TypeError, match=message):
        SplitClientApp(client_fn)


def test_mods_are_a_list() -> None:
    mods: Any = message_size_mod
    with pytest.raises(TypeError, match=r"mods is a function; expected a list of mods, mods=\["):
        SplitClientApp(no_client, mods=mods)


@pytest.mark.parametrize("value", [None, -1, "0", "3", "", 1.0, True])
def test_a_partition_id_is_an_index(value: Any) -> None:
    """One that is text or negative is not called missing."""
    config = {} if value is None else {"partition-id": value}
    reply = SplitClientApp(no_client)(message("query"), context(**config))
    assert reply.content.config_records[RECORD]["error"] == (
        "a SuperNode has no partition-id; give it one with --node-config"
        if value is None
        else f"a SuperNode's partition-id is {value!r}; it must be a whole number from 0, without "
        "quotes (--node-config)"
    )


def test_flower_can_measure_a_ticket() -> None:
    """Its `message_size_mod` does."""
    assert TICKET.to_record().count_bytes() > 0
    assert Ticket.from_message(message("train", TICKET)) == TICKET


class OwnDp(LocalDpMod):
    """A mod of Flower's with a detail changed."""


@wraps(fixedclipping_mod)
def wrapped(*arguments: Any) -> Message:
    return fixedclipping_mod(*arguments)


@pytest.mark.parametrize(
    "mod",
    [
        LocalDpMod(1.0, 1.0, 1.0, 1e-5),
        fixedclipping_mod,
        OwnDp(1.0, 1.0, 1.0, 1e-5),
        partial(fixedclipping_mod),
        wrapped,
    ],
)
def test_mods_that_need_the_arrays_of_a_round_in_one_message_are_refused(mod: Any) -> None:
    with pytest.raises(ValueError, match=r"mod.*, which changes arrays of one train message and"):
        SplitClientApp(no_client, mods=[message_size_mod, mod])


def test_what_is_no_mod_is_named() -> None:
    with pytest.raises(TypeError, match="a mod is 'fixedclipping'; expected a function of message"):
        SplitClientApp(no_client, mods=["fixedclipping"])


@pytest.mark.parametrize(
    ("kind", "action", "typed"),
    [
        ("train", (), "train()"),
        ("train", ("finish",), "train('finish')"),
        ("evaluate", (), "evaluate()"),
        ("query", (), "query()"),
    ],
)
def test_a_function_left_over_from_a_client_app_is_named(
    kind: str, action: tuple[str, ...], typed: str
) -> None:
    """Flower says that a function of this name is registered already, by whom it does not."""
    app = SplitClientApp(no_client)
    message = (
        rf"itself: remove @app\.{re.escape(typed)} with .*, such as @app\.{kind}\('mine'\), .* in "
        r'a ClientApp of its own \(docs/own-app\.md, "FedAvg in the same app"\)'
    )
    with pytest.raises(ValueError, match=message):
        getattr(app, kind)(*action)


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_an_action_of_ones_own_is_answered(kind: str) -> None:
    app = SplitClientApp(no_client)
    getattr(app, kind)("mine")(lambda message, _: Message(message.content, reply_to=message))
    question = message(f"{kind}.mine")
    assert app(question, context()).content == question.content


def test_a_resumed_run_keeps_its_configuration_and_lacks_nothing_of_the_apps() -> None:
    configurations: list[dict[str, Any]] = []

    def client_fn(context: Context) -> SplitClient:
        configurations.append(dict(context.run_config))
        raise ValueError("that is all")

    ticket = replace(TICKET, link="stream", address="127.0.0.1:1", run_config='{"lr": 0.5}')
    node_context = context(**{"partition-id": 0})
    node_context.run_config = {"lr": 0.1, "width": 8}
    SplitClientApp(client_fn)(message("train", ticket), node_context)
    assert configurations == [{"lr": 0.5, "width": 8}]


@pytest.mark.parametrize("kind", ["train", "evaluate", "train.finish"])
def test_a_real_node_takes_no_part_over_rays_link(kind: str) -> None:
    """A node's policy, ledger and mixer are those of the stream."""
    ticket = replace(TICKET, link="ray", host="any")
    reply = SplitClientApp(no_client)(message(kind, ticket), context())
    error = str(reply.content.config_records[RECORD]["error"])
    assert "link 'ray' is for simulations: use 'stream' or 'auto'" in error


def test_a_client_that_cannot_be_built_says_so_without_data(tmp_path: Path) -> None:
    def client_fn(context: Context) -> SplitClient:
        raise FileNotFoundError("/data/jane-doe.csv")

    ticket = replace(TICKET, link="stream", address="127.0.0.1:1", tls=False)
    config = {"state-dir": str(tmp_path), "partition-id": TICKET.client}
    reply = SplitClientApp(client_fn)(message("train", ticket), context(**config))
    assert reply.content.config_records[RECORD]["error"] == (
        "client_fn raised FileNotFoundError; the log of its node says more"
    )


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    def client_fn(context: Context) -> SplitClient:
        return TOY.make_clients()[0]

    ticket = replace(TICKET, link="stream", address="127.0.0.1:1")
    config = {
        "state-dir": str(tmp_path),
        "ssl-certfile": "client.crt",
        "partition-id": TICKET.client,
    }
    reply = SplitClientApp(client_fn)(message("train", ticket), context(**config))
    assert "ssl-certfile and ssl-keyfile must be given together" in str(
        reply.content.config_records[RECORD]["error"]
    )


@pytest.mark.parametrize(
    "key", ["state-dir", "privacy-policy", "link-via-ca", "ssl-certfile", "ssl-keyfile"]
)
def test_the_home_of_a_user_that_there_is_not_is_refused_with_its_key(
    key: str, tmp_path: Path
) -> None:
    """A RuntimeError out of the app would be lost."""

    def client_fn(context: Context) -> SplitClient:
        return TOY.make_clients()[0]

    ticket = replace(TICKET, link="stream", address="127.0.0.1:1", tls=False)
    pair = {"ssl-certfile": "node.crt", "ssl-keyfile": "node.key"} if key[:3] == "ssl" else {}
    pinned = {"link-via": "127.0.0.1:1"} if key == "link-via-ca" else {}
    config = {"partition-id": 0, "state-dir": str(tmp_path), **pair, **pinned}
    node_context = context(**{**config, key: "~nouser/x"})
    reply = SplitClientApp(client_fn)(message("train", ticket), node_context)
    (error,) = reply.content.config_records[RECORD].values()
    assert f"{key} is '~nouser/x'" in str(error)
    assert str(error).endswith("knows no folder '~nouser'; give an absolute path")
    logged = [read_journal(log)[-1]["refused"] for log in tmp_path.glob("audit-0.jsonl")]
    assert logged == ([] if key == "state-dir" else [error])


NODE = """
import json, sys, time

BLOCKED = {
    "ray", "timm", "torchvision", "transformers", "peft", "accelerate", "tokenizers",
    "flwr_datasets", "datasets", "pandas", "pyarrow", "PIL", "sklearn", "scipy",
    "matplotlib", "seaborn", "pydantic", "psutil",
}

# Importing them fails, and a search for them finds nothing.
sys.modules.update(dict.fromkeys(BLOCKED))

from flwr.app import Context, Message, Metadata, RecordDict
from safetensors.torch import save_file
from flwr_splitmix import SplitClientApp, adamw
from flwr_splitmix.links.arrays import to_arrays
from flwr_splitmix.links.ticket import Ticket, arrays_of, with_record
from flwr_splitmix.testing.toy import Toy

order = json.loads(sys.stdin.read())
toy = Toy(clients=1)

def client_fn(context):
    return toy.make_clients(adamw(0.01))[context.node_config["partition-id"]]

content = RecordDict({"arrays": to_arrays(toy.lower().state_dict())})
content = with_record(content, Ticket(**order["ticket"]).to_record())
metadata = Metadata(1, "id", 0, order["node"], "", "", time.time(), 60.0, order["kind"])
message = Message(content=content, metadata=metadata)
context = Context(
    run_id=1, node_id=order["node"], node_config=order["config"], state=RecordDict(), run_config={}
)
reply = SplitClientApp(client_fn)(message, context).content
assert not any(sys.modules[name] for name in BLOCKED)
# What runs a server, or reads its results, is not imported either.
server = ("strategies", "cli", "experiments", "observers", "attacks", "runs.run", "apps", "server")
assert not {f"flwr_splitmix.{part}" for part in server} & sys.modules.keys()
save_file(arrays_of(reply) or {}, order["out"])
print(json.dumps({key: dict(record) for key, record in reply.items() if key != "arrays"}))
"""


@pytest.mark.usefixtures("outside_of_a_run")
def test_a_node_needs_neither_ray_nor_what_is_for_models_data_or_results_of_others(
    tmp_path: Path,
) -> None:
    """Each message is a process of its own, in which the imports that a node lacks fail."""
    nodes = tmp_path / "nodes"

    def handle(request: Message, context: Context) -> Message:
        if request.metadata.message_type == "query":
            return SplitClientApp(no_client)(request, context)
        ticket = Ticket.from_message(request)
        out = tmp_path / f"{ticket.client}-{ticket.server_round}.safetensors"
        order = {
            "ticket": asdict(ticket),
            "node": context.node_id,
            "kind": request.metadata.message_type,
            "config": dict(context.node_config),
            "out": str(out),
        }
        process = subprocess.run(
            [sys.executable, "-c", NODE],
            input=json.dumps(order),
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        answer: Mapping[str, Any] = json.loads(process.stdout.splitlines()[-1])
        content = RecordDict({"arrays": to_arrays(load_file(out))})
        if "metrics" in answer:
            content["metrics"] = MetricRecord(answer["metrics"])
        if RECORD in answer:
            content = with_record(content, ConfigRecord(answer[RECORD]))
        return Message(content, reply_to=request)

    runs = {}
    for name in ("local", "nodes"):
        run = runs[name] = Run.create({}, name=name, home=tmp_path)
        strategy = PSL(TOY.upper(), optimizer=adamw(0.01), device="cpu", seed=7, run=run)
        if name == "local":
            strategy.fit(TOY.make_clients(adamw(0.01)), 2)
            continue
        grid = FakeGrid(handle, 1, **{"state-dir": str(nodes)})
        strategy.link = OnFakeGrid(StreamLink(address="127.0.0.1:0", run=run.id), grid)
        strategy.start(None, to_arrays(TOY.lower().state_dict()), 2)  # type: ignore[arg-type]
    assert runs["nodes"].rows[-1]["clients_alive"] == 1
    assert [row["loss"] for row in runs["nodes"].rows] == [
        row["loss"] for row in runs["local"].rows
    ]
    end, expected = runs["nodes"].checkpoints.load(), runs["local"].checkpoints.load()
    assert all(torch.equal(end.tensors[name], t) for name, t in expected.tensors.items())
