"""A node operator's policy on averaging, evaluation and plain uploads overrides any run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context

from flwr_splitmix.clients import Client, ClientError, PrivacyBudget
from flwr_splitmix.links import LinkError
from flwr_splitmix.mixers import FullShare
from flwr_splitmix.testing.toy import Toy
from flwr_splitmix.testing.toy_texts import text_toy
from tests.links.node.worst_server import TOY, Node, noisy, refused


@pytest.mark.parametrize(
    ("run_limit", "node_limit", "expected"),
    [(0.5, 1.0, 0.5), (50.0, 1.0, 1.0), (None, 1.0, 1.0), (2.0, None, 2.0)],
)
def test_the_stricter_of_node_and_run_holds(
    tmp_path: Path, run_limit: float | None, node_limit: float | None, expected: float
) -> None:
    node = Node(tmp_path, {} if node_limit is None else {"max-epsilon": node_limit, "delta": 1e-6})
    budget = PrivacyBudget(
        max_epsilon=run_limit, relation="add-remove", public_evaluation=True, allow_averaging=True
    )
    node.options = {"privacy": None if run_limit is None else budget}
    node.begin()
    assert node.client.privacy is not None
    assert node.client.privacy.max_epsilon == expected
    assert node.client.privacy.delta == (1e-5 if node_limit is None else 1e-6)
    assert node.client.privacy.relation == "replace"
    assert not node.client.privacy.allow_averaging
    node.end(finish=False)


def test_a_run_cannot_loosen_a_nodes_limit_by_its_delta(tmp_path: Path) -> None:
    """At a delta of 0.999999, a node with max-epsilon 1 would send without end, at epsilon 0."""
    node = Node(tmp_path, {"max-epsilon": 1.0})
    node.options = {"privacy": PrivacyBudget(delta=0.999999)}
    node.begin()
    assert node.client.privacy is not None
    assert node.client.privacy.delta == 1e-5
    replies = [node.step([noisy()], number).reply for number in range(12)]
    assert replies[-1] == {"budget-spent": True}
    node.end(finish=False)


WEIGHTS = TOY.lower().state_dict()
OTHERS = {name: t + 1 if t.is_floating_point() else t for name, t in WEIGHTS.items()}
SAME_BYTES = {name: t.view(torch.int64) for name, t in WEIGHTS.items()}
"""Other numbers of the same bytes, which must not count as the same weights."""


def assert_keeps_to_its_weights(node: Node) -> None:
    """Assert that a node accepts the same lower segment twice in a run, but no other."""
    for _ in range(2):
        node.begin(arrays=WEIGHTS)
        node.end(finish=False)
    for others in (OTHERS, SAME_BYTES):
        with pytest.raises(ClientError, match="other weights within the run"):
            node.begin(arrays=others)
        node.end(finish=False)


def test_a_run_in_between_does_not_make_room_for_other_weights(tmp_path: Path) -> None:
    node = Node(tmp_path, {"allow-averaging": False})
    for run, arrays in [("r", WEIGHTS), ("q", OTHERS)]:
        node.begin(arrays=arrays, run=run)
        node.end(finish=False)
    with pytest.raises(ClientError, match="other weights within the run"):
        node.begin(arrays=OTHERS, run="r")
    node.end(finish=False)


def test_averaging_and_other_weights_within_a_run_need_the_nodes_word(tmp_path: Path) -> None:
    """Crafted gradients together with averaging can reveal raw pixels."""
    node = Node(tmp_path / "a", {"max-epsilon": 1.0})
    with pytest.raises(ClientError, match="averaging would send its lower segment, from which"):
        node.begin(returns_arrays=True)
    node.end(finish=False)
    assert_keeps_to_its_weights(node)
    trusting = Node(tmp_path / "b", {"max-epsilon": 1.0, "allow-averaging": True})
    for arrays in (WEIGHTS, OTHERS):
        trusting.begin(arrays=arrays, returns_arrays=True)
        trusting.end(finish=False)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"allow-averaging": False}, "allow-averaging = false"),
        ({"allow-plain": False}, "allow_plain = false"),
        ({"link-via": "mixer.example:9444"}, "link-via is set, and allow-averaging is not true"),
    ],
)
def test_what_is_not_to_be_averaged_stays_without_a_limit_too(
    tmp_path: Path, config: dict[str, Any], why: str
) -> None:
    """These options alone, without `max-epsilon`, keep the lower segment on the node."""
    node = Node(tmp_path, config)
    with pytest.raises((ClientError, LinkError), match=why):
        node.begin(returns_arrays=True)
    node.end(finish=False)
    assert_keeps_to_its_weights(node)
    trusting = Node(tmp_path / "trusting", {**config, "allow-averaging": True})
    trusting.begin(arrays=WEIGHTS, returns_arrays=True)
    trusting.end(finish=False)


def test_a_run_cannot_allow_what_its_node_does_not(tmp_path: Path) -> None:
    node = Node(tmp_path, {"allow-plain": False})
    node.options = {"privacy": PrivacyBudget(allow_averaging=True)}
    with pytest.raises(ClientError, match="allow_plain = false, and averaging would send"):
        node.begin(returns_arrays=True)
    node.end(finish=False)
    strict = Node(tmp_path / "strict", {"allow-averaging": True})
    strict.options = {"privacy": PrivacyBudget(allow_averaging=False)}
    with pytest.raises(ClientError, match="allow_averaging = false, and averaging would send"):
        strict.begin(returns_arrays=True)
    strict.end(finish=False)


@pytest.mark.parametrize("limit", [{}, {"max-epsilon": 1.0}])
@pytest.mark.parametrize("allowed", [None, False, True])
def test_own_test_data_leave_only_where_the_node_allows_it(
    tmp_path: Path, allowed: bool | None, limit: dict[str, float]
) -> None:
    """A node's refusal holds without a limit, too."""
    config = {} if allowed is None else {"allow-evaluation": allowed}
    node = Node(tmp_path, {**limit, **config})
    node.begin()
    outcome = node.ask("encode_test", kind="federated", start=0, stop=2)
    assert (outcome.reply is not None) == (allowed is True or (allowed is None and not limit))
    assert node.audit()[-1].get("refused") == outcome.error
    node.end(finish=False)


@pytest.mark.parametrize("limit", [{}, {"max-epsilon": 1.0}, {"allow-plain": False}])
@pytest.mark.parametrize("allowed", [None, False, True])
def test_benchmark_data_leave_only_where_the_node_allows_it(
    tmp_path: Path, allowed: bool | None, limit: dict[str, float]
) -> None:
    """A run says which data are public: it could name this node's own, and no noise covers them."""
    config = {} if allowed is None else {"allow-benchmark": allowed}
    node = Node(tmp_path, {**limit, **config})
    node.options = {"benchmark_data": TOY.test_data(0)}
    node.begin()
    outcome = node.ask("encode_test", kind="benchmark", start=0, stop=2)
    assert (outcome.reply is not None) == (allowed is True or (allowed is None and not limit))
    assert outcome.reply or "allow-benchmark is not true" in str(outcome.error)
    node.end(finish=False)


@pytest.mark.parametrize("by", ["node", "run"])
def test_a_node_that_allows_nothing_plain_takes_noise_only(tmp_path: Path, by: str) -> None:
    node = Node(tmp_path, {"allow-plain": by == "run"})
    node.options = {"privacy": PrivacyBudget(allow_plain=by == "node")}
    node.begin()
    refused(node.step([FullShare().to_wire()]), "allow_plain = false")
    # Noise that hides nothing does not count as noise.
    refused(node.step([noisy(sigma_s=1e-30, sigma_y=1e-30)]), "below the resolution of float32")
    assert node.step([noisy()]).reply
    node.end(finish=False)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"max-epsilon": 0}, "max-epsilon is 0; it must be a number above 0"),
        ({"max-epsilon": "1"}, "max-epsilon is '1'"),
        ({"delta": 2.0}, "delta is 2.0"),
        ({"allow-averaging": "yes"}, "allow-averaging is 'yes'; it must be true or false"),
        ({"max-epsilon": 1.0, "allow-plain": True}, "only one of the two can hold"),
        ({"privacy-policy": "/nowhere.toml"}, "privacy-policy /nowhere.toml cannot be read"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_policy_names_its_key(tmp_path: Path, config: dict[str, Any], why: str) -> None:
    with pytest.raises(LinkError) as caught:
        Node(tmp_path, config).begin()
    assert why in str(caught.value)


def test_a_policy_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("max-epsilon = 0.25\nallow-averaging = true\n")
    node = Node(tmp_path / "node", {"privacy-policy": str(file), "allow-averaging": False})
    node.begin()
    assert node.client.privacy == PrivacyBudget(
        max_epsilon=0.25, allow_averaging=False, allow_plain=False
    )
    node.end(finish=False)
    file.write_text("max-epsilom = 0.25\n")
    with pytest.raises(LinkError, match="unknown key 'max-epsilom'; the keys are max-epsilon"):
        node.begin()


def test_without_training_the_lower_segment_stays_as_it_came(tmp_path: Path) -> None:
    """Gradients aimed at one record could otherwise reveal it through the uploads of the others."""
    moved = {}
    for allowed in (True, False):
        node = Node(tmp_path / str(allowed), {"max-epsilon": 8.0, "allow-training": allowed})
        node.begin(arrays=WEIGHTS)
        reply = node.step([noisy()]).reply
        assert reply is not None
        node.step([noisy()], 1, [torch.full_like(reply["smashed"][0], 1e3)])
        moved[allowed] = any(
            not torch.equal(t, WEIGHTS[name]) for name, t in node.client.weights().items()
        )
        assert node.client.guard is not None
        statement = str(node.client.guard.ledger.statement(1e-5))
        assert ("what a record did to the lower segment" in statement) == allowed
        node.end(finish=False)
    assert moved == {True: True, False: False}


@pytest.mark.parametrize("allowed", [True, False])
def test_without_training_the_buffers_stay_as_they_came(allowed: bool, tmp_path: Path) -> None:
    """The running means of private data would otherwise be averaged."""
    toy = Toy(clients=1, batch_norm=True, examples=12, tests=6)
    before = {name: value.clone() for name, value in toy.lower().state_dict().items()}
    node = Node(tmp_path, {"allow-training": allowed}, toy)
    node.begin(arrays=before, returns_arrays=True)
    for number in range(2):
        assert node.step([FullShare().to_wire()], number).reply is not None
    arrays, _, _ = node.host.finish(node.ticket)
    assert all(torch.equal(arrays[name], value) for name, value in before.items()) is not allowed
    node.end(finish=False)


@pytest.mark.parametrize("config", [{"max-epsilon": 8.0}, {"allow-plain": False}])
def test_noise_that_the_server_knows_is_none(tmp_path: Path, config: dict[str, Any]) -> None:
    node = Node(tmp_path, config)
    node.options = {"repeatable_secrets": True}
    with pytest.raises(
        ClientError, match="the run's seed, which the server knows: make it without"
    ):
        node.begin()
    node.end(finish=False)


class PublicNode(Node):
    """A node whose client has the hiding of a strategy of the U shape."""

    strategy = ""

    def _client(self, context: Context) -> Client:
        (client,) = text_toy(self.strategy, clients=1).clients_for()
        return client


@pytest.mark.parametrize("allowed", [None, False, True])
@pytest.mark.parametrize("strategy", ["SnDSL", "MixGuard", "NaiveMixSL"])
def test_what_a_run_calls_public_texts_leaves_only_where_the_node_allows_it(
    tmp_path: Path, strategy: str, allowed: bool | None
) -> None:
    """A run that names a file of the node as `public` would get its words, readable, at once."""
    node = PublicNode(tmp_path, {} if allowed is None else {"allow-benchmark": allowed})
    node.strategy = strategy
    if allowed is False and strategy != "NaiveMixSL":
        with pytest.raises(ClientError, match=r"no public texts .*\(allow-benchmark = false\)"):
            node.begin()
        return
    node.begin()
    outcome = node.ask("encode_public", number=0)
    assert (outcome.reply is not None) == (strategy != "NaiveMixSL")
    node.end(finish=False)
