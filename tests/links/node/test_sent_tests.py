"""A node sends its test texts once in a run under one head and tail, whatever the server writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from torch.utils.data import TensorDataset

from flwr_splitmix.clients import Client, UShapeClient
from flwr_splitmix.hiding import DPForward
from flwr_splitmix.links.link import Outcome
from flwr_splitmix.testing.laws import TextToy
from flwr_splitmix.testing.toy import sgd
from tests.clients.own_segments import INPUTS, Part, Steep
from tests.links.node.worst_server import Node, refused


class TextNode(Node):
    """A node whose client is U-shaped and has eight test texts."""

    def _client(self, context: Context) -> Client:
        (client,) = TextToy(clients=1, tests=8).clients_for()
        return client

    def ask_tests(self, start: int) -> Outcome:
        return self.ask("encode_test", kind="federated", start=start, stop=start + 4)

    def evaluate(self) -> None:
        """Have all test texts sent and scored."""
        for start in (0, 4):
            reply = self.ask_tests(start).reply
            assert reply is not None
            assert self.ask("decode_test", outputs=reply["messages"]).reply is not None
        assert self.ask("score", kind="federated").reply is not None


def test_another_configuration_gets_no_test_text_again(tmp_path: Path) -> None:
    """One more key of the configuration makes no other run, for which all are sent anew."""
    node = TextNode(tmp_path / "node", {"allow-averaging": False})
    node.begin()
    node.evaluate()
    node.end()
    again = "all 8 federated test examples were sent under this head and tail"
    for configuration in ({}, {"more": 1}, {"more": 2}):
        node.run_config = configuration
        node.begin(server_round=2, state_round=1)
        refused(node.ask_tests(0), again)
        node.end(finish=False)
    node.begin(run="another")
    node.evaluate()
    node.end()


def test_another_configuration_goes_on_with_the_next_test_text(tmp_path: Path) -> None:
    node = TextNode(tmp_path / "node", {"allow-averaging": False})
    node.begin()
    assert node.ask_tests(0).reply is not None
    node.end(finish=False)
    node.run_config = {"more": 1}
    node.begin()
    refused(node.ask_tests(0), "next is 4 of 8")
    assert node.ask_tests(4).reply is not None
    node.end(finish=False)


class NoisyNode(TextNode):
    """A node whose client keeps an epsilon, and whose tail learns nothing from label 1, or 0."""

    label = 0

    def _client(self, context: Context) -> Client:
        data: Any = TensorDataset(INPUTS, torch.full((8,), self.label))
        return UShapeClient(
            Part(), Steep(), data, batch_size=4, test_data=data, hiding=DPForward(), learns="tail",
            optimizer=sgd(0.1), device="cpu",
        )  # fmt: skip

    def train(self) -> None:
        """Have one step taken."""
        place = {"progress": 0.0, "gradient": None}
        reply = self.ask("encode", number=0, **place).reply
        assert reply is not None
        assert self.ask("decode", number=0, outputs=reply["messages"]).reply is not None
        assert self.ask("encode", number=1, **place, last=True).reply == {}


def test_whether_a_step_has_changed_the_tail_is_not_told_where_an_epsilon_is_kept(
    tmp_path: Path,
) -> None:
    """That of an example whose label the tail is sure of does not; then no test was sent again."""
    for label in (0, 1):
        node = NoisyNode(tmp_path / str(label))
        node.label = label
        for number in (1, 2):
            node.begin(server_round=number, state_round=number - 1)
            node.train()
            node.evaluate()
            node.end()
        node.begin(server_round=3, state_round=2)
        refused(node.ask_tests(0), "all 8 federated test examples were sent under this head")
        node.end(finish=False)
