"""A host in a Ray actor does what one in this process does; if it is late, others go on."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from flwr.app import Context, RecordDict
from ray import cloudpickle
from torch.utils.data import TensorDataset

from flwr_splitmix import RayLink, SplitClient
from flwr_splitmix.clients import ClientError, exchange
from flwr_splitmix.description import read_description
from flwr_splitmix.links import LinkError
from flwr_splitmix.links.host import ClientHost
from flwr_splitmix.links.ray.actor import RayHost, call_host
from flwr_splitmix.links.ray.link import RayClients
from flwr_splitmix.links.ticket import RECORD, Ticket
from flwr_splitmix.mixers import PatchCutMix, SmashedShape
from flwr_splitmix.runs.checkpoints import ClientStore
from flwr_splitmix.server.messages import messages_to
from flwr_splitmix.threads import POLICY

ROOT = str(Path(__file__).resolve().parents[3])
SHAPE = SmashedShape(batch=4, patches=6, width=8, prefix=0)


class SlowClient(SplitClient):
    """Takes its time when asked to."""

    @exchange
    def sleep(self, *, seconds: float) -> dict[str, Any]:
        time.sleep(seconds)
        return {"slept": seconds}


class ExitingClient(SplitClient):
    """Calls sys.exit(), as a script would, in a step and at its end."""

    @exchange
    def leave(self) -> dict[str, Any]:
        sys.exit(3)

    def release(self) -> Any:
        sys.exit()


class UnfinishedClient(SplitClient):
    """Cannot end its round, for a reason that has a value of its data."""

    def release(self) -> Any:
        raise ValueError("Jane Doe")


def client_fn(context: Context) -> SplitClient:
    """Make a small client with dropout, so that a wrong generator would show."""
    index = int(context.node_config["partition-id"])
    if index == 13:
        raise FileNotFoundError("this device has no camera")
    if index == 16:
        sys.exit("bad node")
    if index == 14:
        raise ClientError("no labels in /data/hospital-3/part-1/labels.csv")
    rng = torch.Generator().manual_seed(index)
    inputs = torch.randn(10, 6, 3, generator=rng)
    labels = torch.randint(3, (10,), generator=rng)
    data: Any = TensorDataset(inputs, labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        segment = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.5))
    kind = {15: UnfinishedClient, 17: ExitingClient}.get(index, SlowClient)
    return kind(segment, data, batch_size=4, test_data=data, device="cpu")


def context(index: int) -> Context:
    return Context(
        run_id=1, node_id=7, node_config={"partition-id": index}, state=RecordDict(), run_config={}
    )


def ticket(index: int, server_round: int = 1) -> Ticket:
    return Ticket(
        client=index,
        seed=5,
        server_round=server_round,
        num_rounds=4,
        arrays="initial",
        state_round=server_round - 1,
        kept_rounds=[1],
    )


def attach(host: Any, index: int, server_round: int = 1) -> dict[str, Any]:
    pickled = cloudpickle.dumps(client_fn)  # type: ignore[no-untyped-call]
    call = host.attach.remote(ticket(index, server_round), pickled, [ROOT], context(index), None)
    answer: dict[str, Any] = ray.get(call, timeout=120)
    return answer


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=0,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": ROOT}},
    )
    yield
    ray.shutdown()


@pytest.fixture
def start_host(session: None) -> Iterator[Any]:
    """Start hosts as RayLink does; they end with the test."""
    started: list[Any] = []

    def start(state_dir: Path | str = "", name: str | None = None) -> Any:
        actor = ray.remote(RayHost).options(num_cpus=0, max_restarts=-1, name=name)
        started.append(actor.remote(1, str(state_dir)))
        return started[-1]

    yield start
    for host in started:
        ray.kill(host)


@pytest.fixture(scope="module")
def host(session: None) -> Iterator[Any]:
    """Start one host for the tests that leave no trace in it."""
    host: Any = ray.remote(RayHost).options(num_cpus=0).remote(1, "")
    yield host
    ray.kill(host)


def clients_of(handles: dict[int, Any], deadline: float, server_round: int = 1) -> RayClients:
    """Return the clients of a round as RayLink hands them to a strategy."""
    attached = {index: attach(handles[index], index, server_round) for index in handles}
    descriptions = {index: read_description(description) for index, description in attached.items()}
    return RayClients(server_round, descriptions, {}, None, handle_of=handles, deadline=deadline)


def payloads(number: int, gradients: dict[int, Any]) -> dict[int, Any]:
    plan = PatchCutMix(2).plan((0, 1), SHAPE, np.random.default_rng(number))
    return {
        index: {
            "number": number,
            "progress": number / 3,
            "gradient": gradients.get(index),
            "plan": plan.for_node(index),
        }
        for index in (0, 1)
    }


def test_a_round_over_ray_equals_one_in_this_process(start_host: Any, tmp_path: Path) -> None:
    host = start_host(tmp_path / "there")
    local_host = ClientHost(ClientStore(tmp_path / "here"))
    for server_round in (1, 2):
        clients = clients_of({0: host, 1: host}, 120.0, server_round)
        for index in (0, 1):
            build = partial(client_fn, context(index))
            description = local_host.attach(ticket(index, server_round), build, None)
            assert clients.descriptions[index] == read_description(description)
            assert description["state-round"] == server_round - 1
        gradients: dict[int, Any] = {}
        for number in range(3):
            requests = payloads(number, gradients)
            replies = clients.call("step", requests)
            for index, outcome in local_host.call("step", requests).items():
                assert outcome.reply is not None
                same(replies[index], outcome.reply)
                gradients[index] = [2 * t for t in outcome.reply["smashed"]]
        for index in (0, 1):
            arrays, metrics, warning = ray.get(host.finish.remote(ticket(index, server_round)))
            tensors, same_metrics, _ = local_host.finish(ticket(index, server_round))
            assert metrics == same_metrics
            assert warning == ""
            same({n: torch.tensor(a) for n, a in arrays.items()}, tensors)
    assert metrics["num-steps"] > 0
    for index in (0, 1):
        states = [ClientStore(tmp_path / side).load(index) for side in ("here", "there")]
        assert states[0] is not None
        assert states[1] is not None
        assert states[0][0] == states[1][0] == 2
        assert states[0][2] == states[1][2]
        same(states[0][1], states[1][1])


def same(actual: Any, expected: Any) -> None:
    """Compare nested replies bit for bit."""
    if isinstance(expected, torch.Tensor):
        assert actual.dtype == expected.dtype
        assert torch.equal(actual, expected)
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key, value in expected.items():
            same(actual[key], value)
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for a, b in zip(actual, expected, strict=True):
            same(a, b)
    else:
        assert actual == expected


def test_a_client_fn_that_raises_is_a_sentence(host: Any) -> None:
    answer = attach(host, 13)
    assert answer == {"error": "client_fn raised FileNotFoundError; the log says more"}


def test_what_a_client_raises_is_in_its_hosts_log_alone(start_host: Any, tmp_path: Path) -> None:
    """The log has the folder of a client's own error, and the end of a round."""
    file = tmp_path / "log"

    def log_to_file(_: RayHost) -> None:
        logging.getLogger().addHandler(logging.FileHandler(file))

    host = start_host(name="a host with a log")
    ray.get(host.__ray_call__.remote(log_to_file), timeout=120)
    answers = [attach(host, index) for index in (13, 14, 15)]
    assert answers[:2] == [
        {"error": "client_fn raised FileNotFoundError; the log says more"},
        {"error": "no labels in .../labels.csv"},
    ]
    assert "error" not in answers[2]
    with pytest.raises(ClientError) as caught:
        call_host(replace(ticket(15), host="a host with a log", timeout=120.0), "finish")
    assert str(caught.value) == "ValueError; the log says more"
    logged = file.read_text()
    assert "FileNotFoundError: this device has no camera" in logged
    assert "client 14 failed in attach: no labels in /data/hospital-3/part-1/labels.csv" in logged
    assert "client 15 failed in release: ValueError: Jane Doe" in logged


def test_a_client_that_exits_does_not_end_its_host(start_host: Any) -> None:
    """The actor does not die with all its clients."""
    host = start_host(name="a host that lives on")
    assert attach(host, 16) == {"error": "client_fn raised SystemExit; the log says more"}
    assert "error" not in attach(host, 17)
    assert "error" not in attach(host, 1)
    outcome = ray.get(host.call.remote("leave", {17: {}}), timeout=120)[17]
    assert outcome.error == "SystemExit; the log says more"
    with pytest.raises(ClientError, match=r"^SystemExit; the log says more$"):
        call_host(replace(ticket(17), host="a host that lives on", timeout=120.0), "finish")
    rested = ray.get(host.call.remote("sleep", {1: {"seconds": 0.0}}), timeout=120)[1]
    assert rested.reply == {"slept": 0.0}


def test_a_hosts_threads_wait_as_the_package_says(host: Any) -> None:
    """What torch reads when it is loaded is set by then: the package comes before it."""

    def of_process(_: RayHost) -> tuple[dict[str, str], list[str]]:
        return dict(os.environ), list(sys.modules)

    environment, modules = ray.get(host.__ray_call__.remote(of_process), timeout=120)
    assert environment.items() >= POLICY.items()
    assert modules.index("flwr_splitmix.threads") < modules.index("torch")


def test_only_marked_exchanges_can_be_called(host: Any) -> None:
    clients = clients_of({0: host}, 120.0)
    assert clients.call("restore", {0: {"tensors": {}, "meta": {}}}) == {}
    assert clients.failures == {0: "'restore' is not an exchange of SlowClient"}


def test_a_late_host_costs_its_own_clients_only(start_host: Any) -> None:
    late, prompt = start_host(), start_host()
    clients = clients_of({0: late, 1: prompt, 2: late, 3: prompt}, 15.0)
    replies = clients.call("sleep", {i: {"seconds": 900.0 if i == 0 else 0.0} for i in range(4)})
    assert replies == {1: {"slept": 0.0}, 3: {"slept": 0.0}}
    # Client 2 lives in the same host, which was busy with client 0.
    assert clients.failures == dict.fromkeys((0, 2), "did not answer sleep within 15 s")
    assert clients.alive == (1, 3)
    assert clients.call("sleep", {i: {"seconds": 0.0} for i in range(4)}).keys() == {1, 3}


def process_of(host: Any) -> int:
    """Return the id of the process in which an actor runs."""
    pid: int = ray.get(host.__ray_call__.remote(lambda _: os.getpid()))
    return pid


def test_a_host_that_dies_comes_back_with_its_clients_states(
    start_host: Any, tmp_path: Path
) -> None:
    dying, other = start_host(tmp_path), start_host(tmp_path)
    clients = clients_of({0: dying, 1: other}, 120.0)
    clients.call("step", payloads(0, {}))
    ray.get(dying.finish.remote(ticket(0)))
    os.kill(process_of(dying), signal.SIGKILL)
    replies = clients.call("step", payloads(1, {}))
    assert replies.keys() == {1}
    assert clients.failures.keys() == {0}
    assert "its host died" in clients.failures[0]
    deadline = time.monotonic() + 120
    while True:
        try:
            description = attach(dying, 0, server_round=2)
            break
        except ray.exceptions.RayError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert description["state-round"] == 1
    assert ray.get(dying.call.remote("step", payloads(1, {}) | {1: {}}))[0].error is None


def test_hosts_that_no_node_has_gpus_for_are_refused_at_once(session: None) -> None:
    link = RayLink(num_hosts=2, host_gpus=0.5)
    with pytest.raises(LinkError) as caught:
        link.open(None)
    assert str(caught.value) == (
        "2 hosts with 0.5 GPUs each cannot be placed: Ray has 0 GPUs on 1 node, room for 0 of "
        "them; lower host-gpus or num-hosts"
    )
    link.close()


def test_hosts_end_with_their_link(session: None) -> None:
    import psutil

    link = RayLink(num_hosts=2)
    link.open(None)
    pids = [process_of(host) for host in link.handles]
    assert len(set(pids)) == 2
    link.close()
    deadline = time.monotonic() + 120
    while any(map(psutil.pid_exists, pids)):
        assert time.monotonic() < deadline, pids
        time.sleep(0.1)


def test_a_ticket_travels_whole() -> None:
    original = replace(ticket(3), run_config='{"k": 2}', link="ray", host="splitmix-1", timeout=7.5)
    record = original.to_record()
    (message,) = messages_to([9], RecordDict({RECORD: record}), "train", in_run=False)
    assert Ticket.from_message(message) == original
    assert record.items() <= {"version": 2, **asdict(original)}.items()
