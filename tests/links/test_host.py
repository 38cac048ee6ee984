"""ClientHost: clients are built once, restored from their store, and fail individually."""

from __future__ import annotations

import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from flwr_splitmix.clients import Client, ClientError, SplitClient, UShapeClient, WrappedError
from flwr_splitmix.data.errors import ExamplesError
from flwr_splitmix.data.examples import fetch
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.links.errors import public_sentence, sentence
from flwr_splitmix.links.host import ClientHost
from flwr_splitmix.links.host import build as build_client
from flwr_splitmix.links.ticket import Ticket
from flwr_splitmix.mixers import FullShare
from flwr_splitmix.runs.checkpoints import ClientStore
from flwr_splitmix.scoring.texts import text_loss
from flwr_splitmix.testing.toy import Toy

TOY = Toy(clients=1)


def ticket(server_round: int = 1, **changes: Any) -> Ticket:
    return Ticket(client=0, seed=1, server_round=server_round, num_rounds=9, **changes)


def build() -> Client:
    return TOY.make_clients()[0]


def forbidden() -> Client:
    raise AssertionError("a client is built once")


def train(host: ClientHost, server_round: int) -> None:
    for number, gradient in ((0, None), (1, [torch.ones(4, 6, 3, dtype=torch.float64)])):
        plan = None if number else [FullShare().to_wire()]
        arguments = {"number": number, "progress": 0.0, "gradient": gradient, "plan": plan}
        assert host.call("step", {0: arguments})[0].error is None


def position(host: ClientHost) -> int:
    return int(host.clients[0].state()[1]["drawn"])


def zeros() -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(t) for name, t in TOY.lower().state_dict().items()}


def weight(host: ClientHost) -> torch.Tensor:
    return host.clients[0].state()[0]["segment.embed.weight"]


def test_a_client_is_built_once_and_lives_on() -> None:
    host = ClientHost()
    described = host.attach(ticket(1), build, None)
    assert described["num-examples"] == 12
    assert described["state-round"] == 0
    host.finish(ticket(1))
    assert host.attach(ticket(2), forbidden, None)["state-round"] == 1


def test_arrays_begin_a_client_or_replace_its_own() -> None:
    host = ClientHost()
    host.attach(ticket(1, arrays="initial"), build, zeros())
    assert not weight(host).any()
    train(host, 1)
    host.finish(ticket(1))
    trained = weight(host).clone()
    host.attach(ticket(2, arrays="initial"), forbidden, zeros())
    assert torch.equal(weight(host), trained)
    host.attach(ticket(2, arrays="always"), forbidden, zeros())
    assert not weight(host).any()


def test_what_client_fn_returns_must_be_a_client() -> None:
    with pytest.raises(ClientError, match="must return a SplitClient, it returned str"):
        ClientHost().attach(ticket(), lambda: "client", None)  # type: ignore[arg-type, return-value]


def test_a_host_that_was_restarted_finds_the_state_of_the_last_round(tmp_path: Path) -> None:
    first = ClientHost(ClientStore(tmp_path))
    for server_round in (1, 2):
        first.attach(ticket(server_round, state_round=server_round - 1), build, None)
        train(first, server_round)
        first.finish(ticket(server_round, kept_rounds=[1]))
    second = ClientHost(ClientStore(tmp_path))
    described = second.attach(ticket(3, arrays="initial", state_round=2), build, zeros())
    assert described["state-round"] == 2
    assert position(second) == 2
    assert torch.equal(weight(second), weight(first))


def test_a_resumed_run_rolls_the_client_back(tmp_path: Path) -> None:
    first = ClientHost(ClientStore(tmp_path))
    for server_round in (1, 2, 3):
        first.attach(ticket(server_round, state_round=server_round - 1), build, None)
        train(first, server_round)
        first.finish(ticket(server_round, kept_rounds=[1, 2]))
    second = ClientHost(ClientStore(tmp_path))
    assert second.attach(ticket(2, state_round=1), build, None)["state-round"] == 1
    assert position(second) == 1
    assert ClientStore(tmp_path).load(0) is not None
    assert not list(tmp_path.glob("*/round-00000[23].safetensors"))


def test_a_call_to_a_client_that_is_not_here_is_an_outcome() -> None:
    host = ClientHost()
    outcome = host.call("step", {5: {}})[5]
    assert outcome.reply is None
    assert outcome.error == "its host was restarted and does not hold it any more"
    with pytest.raises(ClientError, match="its host was restarted"):
        host.finish(ticket())


def test_a_full_disk_costs_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ClientStore, "save", refuse)
    host = ClientHost(ClientStore(tmp_path))
    host.attach(ticket(), build, None)
    arrays, metrics, warning = host.finish(ticket())
    assert arrays.keys() == TOY.lower().state_dict().keys()
    assert metrics["num-examples"] == 12
    assert warning == "client 0: its state could not be kept (No space left on device)"


class Ending(TensorDataset):
    """A data set that ends in some way instead of returning an example."""

    def __init__(self, end: Callable[[], object]) -> None:
        super().__init__(torch.ones(4, 6, 3), torch.zeros(4, dtype=torch.int64))
        self.end = end

    def __getitem__(self, index: int) -> Any:
        self.end()
        return self.tensors[0][index], self.tensors[1][index]


def without_frame(number: int, frame: FrameType | None) -> None:
    del frame
    sys.exit(143)


def again() -> None:
    """Catch the exit of a handler, and raise another."""
    try:
        signal.raise_signal(signal.SIGUSR1)
    except SystemExit as error:
        raise SystemExit(error.code) from None


@pytest.fixture
def handlers() -> Iterator[None]:
    """Exit on a signal, as programs do that are asked to end; Ctrl-C may be ignored from before."""
    handlers_by_signal = {
        signal.SIGUSR1: lambda *_: sys.exit(143),
        signal.SIGUSR2: without_frame,
        signal.SIGINT: signal.default_int_handler,
    }
    before = {
        number: signal.signal(number, handler) for number, handler in handlers_by_signal.items()
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def attached(end: Callable[[], object]) -> ClientHost:
    """Return a host with a client whose data set ends so, but not before a round has begun."""
    data = Ending(bool)
    host = ClientHost()
    host.attach(ticket(), lambda: SplitClient(nn.Linear(3, 3), data, batch_size=4), None)
    data.end = end
    return host


STEP = {"number": 0, "progress": 0.0, "gradient": None, "plan": [FullShare().to_wire()]}


def leave() -> None:
    """Exit as a script would, from a frame with arrays, which compare by element."""
    _pair = np.zeros(2), np.ones(2)
    sys.exit("no such camera")


def test_a_data_set_that_exits_costs_its_client_only(caplog: pytest.LogCaptureFixture) -> None:
    """The process must not end with all its clients."""
    outcome = attached(leave).call("step", {0: STEP})[0]
    assert outcome.error == "SystemExit; the log says more"
    assert "client 0 failed in step: SystemExit: no such camera" in caplog.text


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("end", "raised"),
    [
        (partial(signal.raise_signal, signal.SIGINT), KeyboardInterrupt),
        (partial(signal.raise_signal, signal.SIGUSR1), SystemExit),
        (partial(signal.raise_signal, signal.SIGUSR2), SystemExit),
        (again, SystemExit),
    ],
)
def test_a_process_that_is_asked_to_end_ends(
    end: Callable[[], object], raised: type[BaseException]
) -> None:
    with pytest.raises(raised):
        attached(end).call("step", {0: STEP})


def test_a_client_fn_that_exits_is_a_failure() -> None:
    """The process must not end without a reason."""
    host = ClientHost()
    context: Any = None
    with pytest.raises(WrappedError, match=r"^client_fn raised SystemExit; the log") as caught:
        host.attach(ticket(), lambda: build_client(lambda _: sys.exit("bad node"), context), None)
    assert caught.value.whole == "client_fn raised SystemExit: bad node"


@pytest.mark.usefixtures("handlers")
def test_an_error_of_a_clients_own_time_limit_is_a_failure_like_any_other() -> None:
    """Its handler is to end what the client does, not the process; only an exit is to end that."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("the camera is too slow")

    def client_fn(context: Any) -> Any:
        signal.signal(signal.SIGUSR1, late)
        signal.raise_signal(signal.SIGUSR1)

    context: Any = None
    with pytest.raises(WrappedError, match=r"^client_fn raised TimeoutError; the log"):
        ClientHost().attach(ticket(), lambda: build_client(client_fn, context), None)


def test_errors_become_one_line() -> None:
    assert sentence(ValueError("k is 1\ndetails")) == "ValueError: k is 1"
    assert sentence(KeyError()) == "KeyError"
    assert sentence(ClientError("this client has no data\nat all")) == "this client has no data"


def test_an_error_without_words_is_named() -> None:
    assert sentence(ClientError()) == "ClientError"


def test_what_a_server_reads_of_an_error() -> None:
    """The types of a node's data, if these are what is wrong, but no name or text in them."""
    floats: Any = TensorDataset(torch.ones(2, 3), torch.ones(2))
    with pytest.raises(TypeError) as wrong:
        fetch(floats, np.arange(2))
    message = public_sentence(wrong.value)
    assert message.startswith("labels are torch.float32; expected classes, int64")
    hidden = "TypeError; the log of its node says more"
    assert public_sentence(TypeError("patient 17 has no label")) == hidden
    columns: Any = [{"patient": torch.ones(3), "diagnosis": 1}]
    with pytest.raises(TypeError) as named:
        fetch(columns, np.arange(1))
    assert "'patient', 'diagnosis'" in str(named.value)
    assert public_sentence(named.value) == (
        "a data set must give (input, label) pairs, this one gives dictionaries; wrap it in one "
        "whose __getitem__ returns the input and the label as a pair"
    )


def test_the_server_reads_no_label_that_stays_with_a_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As where the tail has too few logits: "labels lie in 7..7" tells the label."""
    data: Any = TensorDataset(torch.ones(4, 1, 8), torch.full((4,), 7))
    head, tail = _Unmasked(nn.Linear(8, 3)), _Unmasked(nn.Flatten(), nn.Linear(3, 2))
    host = ClientHost(describe_error=public_sentence)
    host.attach(
        ticket(), lambda: UShapeClient(head, tail, data, batch_size=2, hiding=Hiding()), None
    )
    arguments = {"number": 0, "progress": 0.0, "gradient": None}
    outcome = host.call("encode", {0: arguments})[0]
    assert outcome.reply is not None
    outputs = {"number": 0, "outputs": outcome.reply["messages"]}
    assert host.call("decode", {0: outputs})[0].error == (
        "labels are not all in 0..1 (classes start at 0; for more of them give the tail more "
        "logits)"
    )
    assert "labels lie in 7..7, expected 0..1" in caplog.text


@pytest.mark.parametrize("least", [3, 4])
def test_the_server_reads_no_token_that_stays_with_a_client(least: int) -> None:
    tokens = torch.tensor([[0, 0, least]])
    with pytest.raises(ExamplesError, match=f"labels lie in 0..{least}") as wrong:
        text_loss(torch.zeros(1, 3, 3), tokens)
    assert public_sentence(wrong.value) == (
        "labels are not all in 0..2; the tail needs a logit for each token of the vocabulary"
    )
    assert public_sentence(pickle.loads(pickle.dumps(wrong.value))).startswith("labels are not all")


class _Unmasked(nn.Module):
    """Layers of a head or a tail that take no mask."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, inputs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.layers(inputs)
        return hidden


def test_a_share_that_was_not_handed_over_is_a_line_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = ClientHost()
    host.attach(ticket(), build, None)
    plan = [{"share": "block"}]
    arguments = {"number": 0, "progress": 0.0, "gradient": None, "plan": plan}
    error = host.call("step", {0: arguments})[0].error
    assert error is not None
    assert error.startswith("unknown share 'block'; this client knows ")
    (record,) = caplog.records
    assert record.getMessage() == f"client 0 failed in step: {error}"
    assert not record.exc_info
