"""Images in the U shape as a choice of apps/vision: keys, cuts, runs, refusals."""

from __future__ import annotations

import inspect
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flwr_splitmix import Run
from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.vision import ushape
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.data import images_of
from flwr_splitmix.apps.vision.ushape_keys import IMAGE_USHAPE
from flwr_splitmix.hiding.making import hiding_options
from flwr_splitmix.links.arrays import to_tensors
from flwr_splitmix.segments import split_vision_parts
from tests.apps.ushape_fit import continued, fit, read, values_of

BATCH_NORM = "xcit_nano_12_p8_224"
REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    # Keys of the L shape.
    ({"sigma_s": 1.0}, ["sigma-s is 1.0", "of the L shape", "use 0.0 with USplitFL"]),
    ({"sigma_y": 1.0}, ["sigma-y is 1.0", "labels stay with the client"]),
    ({"max_epsilon": 8.0}, ["max-epsilon is 8.0", "use 0.0 with USplitFL"]),
    ({"server_update": "sum"}, ["server-update is 'sum'", "use 'sequential'"]),
    ({"straggler": "skip"}, ["straggler is 'skip'", "use 'wait'"]),
    ({"group_order": "arrival"}, ["group-order is 'arrival'", "use 'random'"]),
    ({"grouping": "speed"}, ["grouping is 'speed'", "use 'random'"]),
    ({"micro_batches": 2}, ["micro-batches is 2", "use 1 with USplitFL"]),
    ({"cut_at": "blocks.0"}, ["cut-at is 'blocks.0'", "head-layers and tail-layers say where"]),
    ({"embedding": "tokens-to-token"}, ["embedding is 'tokens-to-token'", "use 'patch'"]),
    ({"keep_mixtures": 1}, ["keep-mixtures is 1", "use 0 with USplitFL"]),
    ({"link_via": "m:1", "link_via_token": "/t"}, ["link-via is 'm:1'", "use '' with USplitFL"]),
    ({"link_via_token": "/t"}, ["link-via-token is '/t'", "use '' with USplitFL"]),
    (
        {"wire_dtype": "int4", "wire_dtype_down": "int8"},
        ["wire-dtype is 'int4', but clients of USplitFL send gradients", "'int8' or a wider"],
    ),
    ({"strategy": "USplitSL", "evaluation": "central"}, ["'central'", "USplitSL", "'benchmark'"]),
    ({"strategy": "SnDSL"}, ["strategy is 'SnDSL'; it is for language models, in apps/language"]),
    ({"strategy": "DPForwardSL", "epsilon": 0.0}, ["epsilon is 0.0", "greater than or equal to"]),
    (
        {"strategy": "DPForwardSL", "clip_norm": 1e6},
        ["clip-norm is 1e+06, epsilon 8 and releases 1", "at most 100000", "a smaller clip-norm"],
    ),
    ({"strategy": "NaiveMixSL", "lam": 0.0}, ["lam is 0.0", "greater than or equal to 0.001"]),
    ({"learns": "head"}, ["learns is 'head'", "'all' or 'tail'"]),
    (
        {"strategy": "CutMixSFL", "learns": "tail"},
        ["learns is 'tail'", "of the U shape", "use 'all' with CutMixSFL"],
    ),
    (
        {"strategy": "NoPeekSL", "learns": "tail"},
        [
            "learns is 'tail', but strategy is 'NoPeekSL', which",
            "training heads",
            "use 'all' with it",
        ],
    ),
    (
        {"strategy": "NaiveMixSL", "batch_size": 1},
        ["batch-size is 1, but strategy is 'NaiveMixSL'", "it must be at least 2"],
    ),
    ({"strategy": "NoPeekSL", "batch_size": 1}, ["batch-size is 1", "be at least 2"]),
    # What cannot be cut.
    ({"model": "resnet18"}, ["model is 'resnet18'", "cannot be cut in three", "or a strategy of"]),
    ({"model": "vit_tyny_patch16_224"}, ["'vit_tyny_patch16_224'", "vit_tiny_patch16_224"]),
    ({"patch_size": 7}, ["patch-size 7", "divide image-size 32"]),
    ({"head_layers": 0}, ["head-layers is 0", "other tokens", "it must be at least 1"]),
    (
        {"head_layers": 2, "tail_layers": 1},
        [
            "head-layers is 2 and tail-layers 1, but vit_tiny_patch16_224 has 3 layers",
            "a larger depth",
        ],
    ),
    ({"model": BATCH_NORM}, ["strategy is 'USplitFL', but the head of xcit", "or USplitSL"]),
    ({"dataset": "fashion-mnist-multi"}, ["several labels", "one class of each", "the L shape"]),
]


def everything(**values: Any) -> None:
    """Do what a run does before it gets a directory."""
    config = read(**values)
    ushape.make_strategy(config, None)
    ushape.try_client(config)


@pytest.mark.parametrize(("values", "phrases"), REFUSED, ids=str)
def test_what_the_u_shape_does_not_have_is_named_with_a_remedy(
    values: dict[str, Any], phrases: list[str]
) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the texts are compared
        everything(**values)
    message = str(raised.value)
    assert message.startswith("run-config: ")
    assert [part for part in phrases if part not in message] == [], message


def test_no_epsilon_is_promised_for_a_head_across_the_batch() -> None:
    with pytest.raises(ConfigError, match=r"run-config: strategy is .*has BatchNorm.* no epsilon"):
        everything(strategy="DPForwardSL", model=BATCH_NORM)
    everything(strategy="NoPeekSL", model=BATCH_NORM)


def test_a_model_without_a_gradient_for_each_image_is_refused_before_the_run() -> None:
    """Only a step shows it; otherwise every client would be left out in round 1."""
    cait = {"model": "cait_xxs24_224", "head_layers": 0}
    message = (
        r"'cait_xxs24_224' cannot be .*USplitSL: DP-.*another model, or adapters if it is a lang"
    )
    with pytest.raises(ConfigError, match=message):
        everything(strategy="DPSGDSL", **cait)
    everything(strategy="DPForwardSL", **cait)


def test_a_trial_leaves_the_run_its_model() -> None:
    """Otherwise the trunk's BatchNorm would measure two images before the first round."""
    config = read(strategy="USplitSL", model=BATCH_NORM)
    before = {name: t.clone() for name, t in ushape.parts_of(config).trunk.state_dict().items()}
    ushape.try_client(config)
    after = ushape.parts_of(config).trunk.state_dict()
    assert [name for name, tensor in before.items() if not torch.equal(tensor, after[name])] == []


def test_a_server_needs_no_device_of_its_clients() -> None:
    config = read(device="cpu", client_device="cuda:99")
    trunk = ushape.make_strategy(config, None).trunk.module
    ushape.try_client(config)
    assert {parameter.device.type for parameter in trunk.parameters()} == {"cpu"}


def test_options_of_dp_sgd_are_read_without_opacus(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by an export, on a machine that does not train."""
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    assert read(strategy="DPSGDSL").noise_multiplier == 1.0


@pytest.mark.parametrize("name", IMAGE_USHAPE)
def test_every_strategy_trains(name: str, tmp_path: Path) -> None:
    fitted = fit(tmp_path, strategy=name)
    kind = IMAGE_USHAPE[name]
    assert type(fitted.strategy) is kind
    assert {type(client.hiding) for client in fitted.clients} == {kind.hiding}
    (row,) = fitted.rows
    assert (row["clients_alive"], row["clients_failed"], row["steps"]) == (2, 0, 1)
    assert math.isfinite(row["loss"])
    assert (row.get("train_epsilon") is not None) == kind.hiding.accounts


@pytest.mark.parametrize("name", IMAGE_USHAPE)
def test_a_warning_about_images_does_not_speak_of_texts(name: str) -> None:
    assert "text" not in IMAGE_USHAPE[name].hiding.warning


@pytest.mark.parametrize("name", [n for n in IMAGE_USHAPE if n != "NoPeekSL"])
def test_tails_alone_are_trained(name: str, tmp_path: Path) -> None:
    values: dict[str, Any] = {"strategy": name, "learns": "tail", "num_server_rounds": 2}
    everything(**values)
    fitted = fit(tmp_path, **values)
    assert [row["clients_alive"] for row in fitted.rows] == [2, 2]
    row = fitted.rows[-1]
    assert (row["loss"] is None) == IMAGE_USHAPE[name].hiding.accounts
    first = ushape.parts_of(read(strategy=name))
    assert same(fitted.strategy.trunk.module, first.trunk)
    for client in fitted.clients:
        assert same(client.head, first.head)
        assert not same(client.tail, first.tail)
    kinds = {array.split(".")[0] for array in fitted.result.arrays}
    assert kinds == ({"tail"} if fitted.config.averages else set())


def same(part: nn.Module, other: nn.Module) -> bool:
    weights = other.state_dict()
    return all(torch.equal(tensor, weights[name]) for name, tensor in part.state_dict().items())


def test_averaged_tails_are_evaluated_with_the_head_that_all_have(tmp_path: Path) -> None:
    fitted = fit(tmp_path, learns="tail", evaluation="auto")
    client = fitted.clients[0]
    client.ends.load(to_tensors(fitted.result.arrays))
    tests = images_of(fitted.config).test
    images, labels = tests.batch(list(range(len(tests))))  # type: ignore[arg-type]
    whole = nn.Sequential(client.head, fitted.strategy.trunk.module, client.tail).eval()
    with torch.no_grad():
        right = (whole(images).argmax(1) == labels).double().mean()
    assert fitted.rows[-1]["accuracy_kind"] == "central"
    assert fitted.rows[-1]["accuracy"] == pytest.approx(float(right))


@pytest.mark.parametrize("kind", ["federated", "benchmark"])
def test_clients_are_evaluated_where_nothing_is_averaged(kind: str, tmp_path: Path) -> None:
    values: dict[str, Any] = {"strategy": "NoPeekSL", "batch_size": 250, "samples_per_client": 0}
    (row,) = fit(tmp_path, **values, evaluation="auto" if kind == "benchmark" else kind).rows
    assert row["accuracy_kind"] == kind
    assert 0 < row["accuracy"] < 1


def test_every_option_of_a_hiding_is_a_key_with_its_default() -> None:
    for name, kind in IMAGE_USHAPE.items():
        parameters = inspect.signature(kind.hiding).parameters
        options = read(strategy=name).own_options()
        assert options == {
            option: parameters[option].default for option in hiding_options(kind.hiding)
        }
    penalised: Any = read(strategy="NoPeekSL", dcor_weight=3.0).hiding()
    assert penalised.dcor_weight == 3.0
    noisy: Any = read(strategy="DPForwardSL", clip_norm=2.0).hiding()
    plain: Any = read(strategy="DPForwardSL").hiding()
    assert noisy.sigma == pytest.approx(2 * plain.sigma)


def test_the_parts_are_those_of_an_app_of_ones_own() -> None:
    parts = ushape.parts_of(read(depth=6, head_layers=2, tail_layers=1, seed=4))
    expected_parts = split_vision_parts(
        head_to="blocks.1", trunk_to="blocks.4", depth=6, patch_size=8, seed=4
    )
    for part, expected in zip(parts, expected_parts, strict=True):
        assert part.state_dict().keys() == expected.state_dict().keys()
        for name, weight in expected.state_dict().items():
            assert torch.equal(part.state_dict()[name], weight)


def test_a_head_may_have_no_layer_where_the_class_token_comes_later() -> None:
    parts = ushape.parts_of(read(strategy="USplitSL", model="cait_xxs24_224", head_layers=0))
    assert [name for name, _ in parts.head.named_children() if "block" in name] == []


def test_central_evaluation_is_of_averaged_ends_and_the_trunk(tmp_path: Path) -> None:
    fitted = fit(tmp_path, num_server_rounds=2, evaluation="auto")
    parts = ushape.parts_of(fitted.config)
    ends = nn.ModuleDict({"head": parts.head, "tail": parts.tail})
    before = {name: weight.clone() for name, weight in ends.state_dict().items()}
    averaged = to_tensors(fitted.result.arrays)
    assert averaged.keys() == before.keys()
    assert any(not torch.equal(averaged[name], weight) for name, weight in before.items())
    ends.load_state_dict(averaged)
    whole = nn.Sequential(parts.head, fitted.strategy.trunk.module, parts.tail).eval()
    tests = images_of(fitted.config).test
    images, labels = tests.batch(list(range(len(tests))))  # type: ignore[arg-type]
    with torch.no_grad():
        logits = whole(images)
    ends.load_state_dict(before)  # parts are kept for the next test
    right = (logits.argmax(1) == labels).double().mean()
    assert fitted.rows[-1]["accuracy"] == pytest.approx(float(right))
    loss = nn.functional.cross_entropy(logits, labels)
    assert fitted.rows[-1]["eval_loss"] == pytest.approx(float(loss), rel=1e-4)


def test_a_resumed_run_goes_on_with_its_ledgers(tmp_path: Path) -> None:
    values: dict[str, Any] = {"strategy": "DPForwardSL", "steps_per_round": 2}
    begun = fit(tmp_path, **values)
    again = continued(Run.open(begun.run.id, home=tmp_path), **values, num_server_rounds=2)
    assert [row["round"] for row in again.rows] == [1, 2]
    assert again.rows[1]["train_epsilon"] > again.rows[0]["train_epsilon"]


@pytest.mark.parametrize("name", ["USplitSL", "USplitFL"])
def test_a_resumed_run_of_tails_equals_one_in_one_piece(name: str, tmp_path: Path) -> None:
    values: dict[str, Any] = {"strategy": name, "learns": "tail"}
    begun = fit(tmp_path / "two", **values, num_server_rounds=2)
    halted = fit(tmp_path / "one", **values, num_server_rounds=1)
    home = tmp_path / "one"
    again = continued(Run.open(halted.run.id, home=home), **values, num_server_rounds=2)
    assert [row["round"] for row in again.rows] == [1, 2]
    for client, expected in zip(again.clients, begun.clients, strict=True):
        assert same(client.segments, expected.segments)


def test_a_run_from_before_these_keys_has_their_defaults() -> None:
    values = values_of(strategy="CutMixSFL")
    expected = VisionConfig.read(values)
    for key in (
        "head-layers", "tail-layers", "learns", "lam", "epsilon", "releases", "sensitivity",
        "dcor-weight", "noise-multiplier",
    ):  # fmt: skip
        del values[key]
    assert VisionConfig.read(values) == expected
