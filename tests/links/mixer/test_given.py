"""A server that gives nodes different lower segments or orders, so as to read one in a mixture."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from flwr_splitmix import SplitClient, SplitClientApp, adamw
from flwr_splitmix.description import Description, NodeDescription
from flwr_splitmix.links import LinkError
from flwr_splitmix.links.arrays import to_arrays
from flwr_splitmix.links.mixer.channel import MixerAddress, MixerChannel
from flwr_splitmix.links.node.given import WEIGHTS, OriginStore
from flwr_splitmix.links.ticket import RECORD, Ticket
from flwr_splitmix.mixer_process.alike import unlike
from flwr_splitmix.mixer_process.process import MixerServer
from flwr_splitmix.mixers import Mixup
from flwr_splitmix.mixers.described import describe
from flwr_splitmix.privacy.journal import read_journal
from flwr_splitmix.runs.checkpoints import ClientStore
from flwr_splitmix.schedule import constant
from flwr_splitmix.server.messages import messages_to
from flwr_splitmix.storage import OtherFormError
from tests.links.fake_grid import TURN, OneAtATime
from tests.links.mixer.nodes import FIRST, OPENING, wait_until_attached
from tests.links.mixer.third_party import TOKEN

BATCH = 4
INPUTS = torch.rand(3, BATCH, 6, 5, generator=torch.Generator().manual_seed(1))
WEIGHTS_OF_RUN = {
    "weight": torch.rand(5, 5, generator=torch.Generator().manual_seed(2)) + torch.eye(5)
}
ZEROS = {"weight": torch.zeros(5, 5)}


def client_fn(context: Context) -> SplitClient:
    """Make a client whose lower segment is a matrix, with an optimizer as the run configures it."""
    with TURN:
        index = int(context.node_config["partition-id"])
        data: Any = TensorDataset(INPUTS[index], torch.full((BATCH,), index))
        lr, decay = (float(context.run_config.get(key, 0.0)) for key in ("lr", "weight-decay"))
        return OneAtATime(
            nn.Linear(5, 5, bias=False),
            data,
            batch_size=BATCH,
            optimizer=adamw(lr, weight_decay=decay),
            schedule=constant,
            device="cpu",
        )


APP = SplitClientApp(client_fn)


class Server:
    """A server that gives each node what it likes, and real nodes that dial the mixer only."""

    def __init__(self, mixer: MixerServer, folder: Path, **node_config: Any) -> None:
        self.mixer = mixer
        self.folder = folder
        self.node_config = node_config
        self.trains: dict[int, bool] = {}  # what nodes have as allow-training
        self.replies: dict[int, RecordDict] = {}

    def round(
        self,
        number: int,
        segments: Mapping[int, Mapping[str, Tensor]],
        tickets: Mapping[int, Mapping[str, Any]] | None = None,
        gradient: float = 0.0,
        **common: Any,
    ) -> tuple[dict[str, str], dict[str, Tensor]]:
        """Run a round of one step; return the failures and the mixture, if there is one.

        Parameters
        ----------
        segments
            By client, the lower segment that it gets.
        tickets, common
            Values of a client's ticket, and of all tickets.
        gradient
            What is returned for the mixture, at each of its numbers.
        """
        channel = MixerChannel(MixerAddress(self.mixer.address, tls=False, token=TOKEN), 5.0)
        mixing = describe(Mixup(k=len(segments)))
        nodes = {str(client): 100 + client for client in segments}
        request = {"mixing": mixing, "nodes": nodes, "round": number, "dtype": "float32"}
        tokens = channel.open({**OPENING, **request})["tokens"]
        usual = Ticket(
            0, 7, number, 9, arrays="initial", returns_arrays=False, link="stream", run="r",
            address=self.mixer.address, tls=False, timeout=60.0, state_round=number - 1,
            state_key="the run's own",
        )  # fmt: skip
        threads = []
        for client, arrays in segments.items():
            ticket_values = {**common, **(tickets or {}).get(client, {})}
            ticket = replace(usual, client=client, token=tokens[str(client)], **ticket_values)
            threads.append(threading.Thread(target=self._serve, args=(ticket, arrays), daemon=True))
            threads[-1].start()
        try:
            wait_until_attached(channel)
            failures = channel.ask("begin")["failures"]
            mixtures = channel.ask("step", FIRST)["mixtures"]
            gradients = {g: torch.full_like(m["smashed"], gradient) for g, m in mixtures.items()}
            channel.ask("finish", {"number": 1, "progress": 0.0, "gradients": gradients})
            channel.ask("close")
            return failures, mixtures.get("0", {})
        finally:
            channel.close()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()

    def _serve(self, ticket: Ticket, arrays: Mapping[str, Tensor]) -> None:
        index = ticket.client
        config: dict[str, Any] = {"partition-id": index, "state-dir": str(self.folder)}
        config["link-via"] = ticket.address
        if index in self.trains:
            config["allow-training"] = self.trains[index]
        context = Context(1, 100 + index, {**config, **self.node_config}, RecordDict(), {})
        content = RecordDict({"arrays": to_arrays(arrays), RECORD: ticket.to_record()})
        (message,) = messages_to([100 + index], content, "train", in_run=False)
        self.replies[index] = APP(message, context).content

    def has_uploaded(self, client: int) -> bool:
        """Return whether a node has uploaded smashed data."""
        entries = read_journal(self.folder / f"audit-{client}.jsonl")
        return any(entry["exchange"] == "step" and entry.get("bytes") for entry in entries)


@pytest.fixture
def server(plain: MixerServer, tmp_path: Path) -> Server:
    return Server(plain, tmp_path)


def same(clients: Iterable[int]) -> dict[int, Mapping[str, Tensor]]:
    return dict.fromkeys(clients, WEIGHTS_OF_RUN)


def error_of_inversion(mixture: Mapping[str, Tensor]) -> float:
    """Return the mean squared error of client 0's inputs, read from a mixture as if of it alone."""
    (weight,) = WEIGHTS_OF_RUN.values()
    # The server tries each client's part of the labels.
    ratios = {float(label) for label in mixture["labels"].flatten() if label}
    read = [mixture["smashed"] / ratio @ torch.linalg.inv(weight.T) for ratio in ratios]
    batches = [INPUTS[0, list(order)] for order in permutations(range(BATCH))]
    return min(float((r - x).square().mean()) for r in read for x in batches)


def test_nodes_with_the_same_lower_segment_are_mixed(server: Server) -> None:
    failures, mixture = server.round(1, same((0, 1)))
    assert failures == {}
    assert error_of_inversion(mixture) > 1e-3


def test_a_server_does_not_get_an_upload_by_silencing_the_other_node(server: Server) -> None:
    """With zeros for node 1, the mixture would be node 0's upload."""
    with pytest.raises(
        LinkError,
        match="1 node is left to be mixed: client 1 was given another lower segment than the "
        "others; an honest ServerApp gives all nodes the same, so either the ServerApp or this",
    ):
        server.round(1, {0: WEIGHTS_OF_RUN, 1: ZEROS})
    assert not server.has_uploaded(0)
    assert not server.has_uploaded(1)
    assert "another lower segment" in str(server.replies[1].config_records[RECORD]["error"])


def test_the_nodes_that_got_the_same_go_on_without_the_others(server: Server) -> None:
    failures, mixture = server.round(1, {0: ZEROS, 1: WEIGHTS_OF_RUN, 2: WEIGHTS_OF_RUN})
    assert failures.keys() == {"0"}
    assert mixture["labels"].sum(0)[0] == 0
    assert [server.has_uploaded(client) for client in (0, 1, 2)] == [False, True, True]


@pytest.mark.parametrize(
    "changes",
    [
        {"run_config": '{"lr": 1.0, "weight-decay": 1.0}'},
        {"wire_dtype": "int4"},
        {"num_rounds": 1},
        {"seed": 8},
        {"run": "another"},
        {"state_round": 1},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_server_cannot_tell_nodes_apart_by_their_orders(
    changes: dict[str, Any], server: Server
) -> None:
    """Rounded to 4 bits, a node's patches are known by their levels, and so is its mask."""
    with pytest.raises(LinkError, match="client 1 was given another configuration or ticket than"):
        server.round(1, same((0, 1)), {1: changes})


@dataclass(frozen=True)
class LaterTicket(Ticket):
    """A ticket as a later version could have it."""

    later: float = 1.0


def test_a_node_of_a_later_version_is_mixed_with_the_others(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the digest had defaults of the node's own version, an honest operator would be blamed."""
    read = Ticket.from_message

    def from_message(message: Message) -> Ticket:
        return read(message) if read(message).client else LaterTicket(**asdict(read(message)))

    monkeypatch.setattr(Ticket, "from_message", from_message)
    assert server.round(1, same((0, 1)))[0] == {}


def test_nodes_that_began_a_round_before_or_join_late_are_mixed(server: Server) -> None:
    """Differences in an honest run: attempts, tokens, and which clients have trained before."""
    config: dict[str, Any] = {"run_config": '{"lr": 0.01}'}
    assert (
        server.round(1, same((0, 1)), {1: {"attempt": 1, "earlier": [3]}}, gradient=1.0, **config)[
            0
        ]
        == {}
    )
    assert server.round(2, same((0, 1, 2)), gradient=1.0, **config)[0] == {}
    state = ClientStore(server.folder / "r").load(0)
    assert state is not None
    assert not torch.equal(state[1]["segment.weight"], WEIGHTS_OF_RUN["weight"])


def test_weights_of_an_earlier_round_are_not_forgotten(plain: MixerServer, tmp_path: Path) -> None:
    """A node that may be averaged takes other weights, and continues from them in later rounds."""
    server = Server(plain, tmp_path, **{"allow-averaging": True})
    assert server.round(1, {1: ZEROS, 2: ZEROS})[0] == {}
    with pytest.raises(LinkError, match="client 1 was given another lower segment than the others"):
        server.round(2, same((0, 1)))
    # A lower segment that all are given anew replaces what they had.
    failures, mixture = server.round(3, same((0, 1)), arrays="always")
    assert failures == {}
    assert error_of_inversion(mixture) > 1e-3


@pytest.mark.parametrize("allowed", [True, False])
def test_nodes_that_do_not_train_cannot_be_brought_apart_by_training(
    allowed: bool, plain: MixerServer, tmp_path: Path
) -> None:
    """docs/privacy.md: the run's learning rate and weight decay can make zeros of weights."""
    server = Server(plain, tmp_path, **{"allow-training": allowed})
    config: dict[str, Any] = {"run_config": '{"lr": 1.0, "weight-decay": 1.0}'}
    server.round(1, same((1, 2)), gradient=1e-30, **config)
    _, mixture = server.round(2, same((0, 1)), **config)
    assert (error_of_inversion(mixture) < 1e-6) == allowed


def test_a_node_that_does_not_train_is_not_mixed_with_one_that_does(server: Server) -> None:
    """A server could make zeros of the other node's lower segment, and read this one's upload."""
    server.trains = {0: False}
    config: dict[str, Any] = {"run_config": '{"lr": 1.0, "weight-decay": 1.0}'}
    server.round(1, same((1, 2)), gradient=1e-30, **config)
    with pytest.raises(LinkError, match="client 1 has another allow-training than the others"):
        server.round(2, same((0, 1)), **config)
    assert not server.has_uploaded(0)


def test_nodes_that_do_not_train_go_on_without_the_others(server: Server) -> None:
    server.trains = {0: False, 2: False}
    failures, mixture = server.round(1, same((0, 1, 2)))
    assert failures.keys() == {"1"}
    assert "allow-training" in str(server.replies[1].config_records[RECORD]["error"])
    assert mixture["labels"].sum(0)[1] == 0


def test_a_node_that_has_trained_is_not_taken_for_one_that_never_did(server: Server) -> None:
    server.trains = {0: False}
    config: dict[str, Any] = {"run_config": '{"lr": 1.0, "weight-decay": 1.0}'}
    server.round(1, same((1, 2)), gradient=1e-30, **config)
    server.trains[1] = False
    with pytest.raises(LinkError, match=r"client 1 has another .*, or had earlier in this run"):
        server.round(2, same((0, 1)), **config)
    # Weights that replace its own are changed by no gradient.
    always: dict[str, Any] = {"arrays": "always"}
    server.node_config["allow-averaging"] = True
    failures, mixture = server.round(3, same((0, 1)), **always, **config)
    assert failures == {}
    assert error_of_inversion(mixture) > 1e-3


def test_one_that_lies_or_says_nothing_costs_its_own_contribution() -> None:

    def says(weights: str | None, orders: str | None, trains: bool | None) -> Description:
        node = NodeDescription(given_weights=weights, given_orders=orders, allow_training=trains)
        return Description(num_examples=8, node=node)

    descriptions = {client: says("w", "o", False) for client in range(4)}
    assert unlike(descriptions) == {}
    apart = unlike({**descriptions, 0: says("x", "y", True), 2: says("w", "o", None)})
    assert apart.keys() == {0, 2}
    assert "another lower segment and another configuration or ticket than the others" in apart[0]
    assert "; it has another allow-training than the others" in apart[0]
    assert "install the same flwr-splitmix" in apart[2]
    assert unlike({}) == {}
    assert unlike(dict.fromkeys(range(2), says(None, None, None))).keys() == {0, 1}
    assert unlike({0: descriptions[0], 1: says("x", "o", False)}).keys() == {1}
    (why,) = unlike({0: descriptions[0], 1: says("w", "o", True), 2: descriptions[2]}).values()
    assert why.startswith("has another allow-training than the others")


@pytest.fixture
def store(tmp_path: Path) -> Callable[..., OriginStore]:
    def make(
        weights: Mapping[str, Tensor] | None, when: Any = "initial", trains: bool = False
    ) -> OriginStore:
        ticket = Ticket(0, 7, 1, 9, arrays=when)
        return OriginStore(ClientStore(tmp_path), weights, ticket, trains=trains)

    return make


def test_the_origin_of_a_state_is_kept_with_it(
    store: Callable[..., OriginStore], tmp_path: Path
) -> None:
    first = store(WEIGHTS_OF_RUN)
    first.save(0, 1, {}, {"drawn": 3})
    for arrays, when, origin in [
        (None, "initial", first.origin),
        (ZEROS, "initial", first.origin),
        (ZEROS, "always", store(ZEROS).origin),
        ({}, "always", first.origin),  # nothing replaces the client's own
    ]:
        later = store(arrays, when)
        assert later.load(0) == (1, {}, {"drawn": 3})
        assert later.origin == origin
    same_bytes = {"weight": WEIGHTS_OF_RUN["weight"].view(torch.int32)}
    assert store(same_bytes).origin != first.origin


def test_a_state_that_does_not_say_where_it_began_is_refused(
    store: Callable[..., OriginStore], tmp_path: Path
) -> None:
    """It must not pass for one that begins from the weights of the round's message."""
    ClientStore(tmp_path).save(0, 2, {}, {"drawn": 4})
    with pytest.raises(OtherFormError, match=f"client 0 after round 2 does not say {WEIGHTS} and"):
        store(WEIGHTS_OF_RUN).load(0)
