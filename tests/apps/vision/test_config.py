"""A wrong hyper-parameter is named before anything starts: key, value, and what is allowed."""

from __future__ import annotations

import re
from collections import deque
from typing import Any

import pytest

from flwr_splitmix.apps.vision import first_round
from flwr_splitmix.apps.vision.client import client_fn
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.model import segments_of
from flwr_splitmix.apps.vision.server import make_strategy
from flwr_splitmix.apps.vision.ushape_keys import IMAGE_USHAPE
from flwr_splitmix.clients import ClientError
from flwr_splitmix.links import LinkError
from flwr_splitmix.strategies import STRATEGIES
from tests.apps.vision_app import Nodes, context, run_config, split_client

NOISE = {"sigma_s": 0.5, "sigma_y": 0.5}

VIA = {
    "strategy": "CutMixSL",
    "min_patches": 1,
    "link_via": "mixer.example:9444",
    "link_via_token": "/no/token",
}

ALLOWED = len(STRATEGIES) + len(IMAGE_USHAPE)

CASES: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"strategy": "CutMix"},
        [
            "strategy is 'CutMix'; did you mean 'CutMixSL', 'CutMixSFL' or ",
            f"lists all {ALLOWED}",
        ],
    ),
    ({"strategy": "cutmixsl"}, ["strategy is 'cutmixsl'; did you mean 'CutMixSL'"]),
    (
        {"strategy": "nothing"},
        ["strategy is 'nothing'", f"docs/configuration.md lists the {ALLOWED}"],
    ),
    ({"strategy": "MixGuard"}, ["strategy is 'MixGuard'", "language models", "apps/language"]),
    ({"stratgy": "PSL"}, ["unknown key 'stratgy'; did you mean 'strategy'"]),
    (
        {"cutting_edge_of_all": 1},
        [
            "unknown key 'cutting-edge-of-all'; available: num-server-rounds",
            "; for keys of your own begin with `splitmix new own NAME`",
        ],
    ),
    ({"aggregator": "FedProx"}, ["aggregator", "'FedProx'", "'FedAvg'"]),
    ({"k": 1}, ["k is 1", "greater than or equal to 2"]),
    ({"k": 2.5}, ["k is 2.5", "integer"]),
    ({"k": "two"}, ["k is 'two'", "integer"]),
    ({"alpha": 0.0}, ["alpha is 0.0", "greater than 0"]),
    ({"alpha": -6.0}, ["alpha is -6.0", "greater than 0"]),
    ({"alpha": float("nan")}, ["alpha is nan", "greater than 0"]),
    ({"strategy": "PSL", "evaluation": "central"}, ["'central'", "PSL", "'benchmark'"]),
    ({"strategy": "CutMixSL", "evaluation": "central"}, ["'central'", "CutMixSL", "'federated'"]),
    ({"evaluation": "global"}, ["evaluation is 'global'", "'benchmark'"]),
    ({"evaluate_every": 0}, ["evaluate-every is 0", "greater than or equal to 1"]),
    ({"checkpoint_every": 0}, ["checkpoint-every is 0", "greater than or equal to 1"]),
    ({"num_server_rounds": 0}, ["num-server-rounds is 0", "greater than or equal to 1"]),
    ({"steps_per_round": -1}, ["steps-per-round is -1", "greater than or equal to 0"]),
    ({"batch_size": 0}, ["batch-size is 0", "greater than or equal to 1"]),
    ({"batch_size": "x"}, ["batch-size is 'x'", "integer"]),
    ({"batch_size": "32"}, ["batch-size is '32'", "an integer, written without quotes"]),
    ({"batch_size": True}, ["batch-size is True", "an integer"]),
    ({"lr": "1e-3"}, ["lr is '1e-3'", "a number, written without quotes"]),
    ({"wire_feedback": True}, ["as 'int8', not as 'keep'", "wire-dtype-down to 'int8', or"]),
    ({"fraction_train": 0.0}, ["fraction-train is 0.0", "greater than 0"]),
    ({"fraction_train": 1.5}, ["fraction-train is 1.5", "less than or equal to 1"]),
    ({"lr": 0.0}, ["lr is 0.0", "greater than 0"]),
    ({"lr": float("inf")}, ["lr is inf", "less than or equal to 1000"]),
    ({"lr": "fast"}, ["lr is 'fast'", "number"]),
    ({"weight_decay": -0.1}, ["weight-decay is -0.1", "greater than or equal to 0"]),
    ({"seed": -1}, ["seed is -1", "greater than or equal to 0"]),
    ({"seed": 1.5}, ["seed is 1.5", "integer"]),
    ({"server_update": "avg"}, ["server-update is 'avg'", "'sequential'"]),
    ({"straggler": "hurry"}, ["straggler is 'hurry'", "'skip'"]),
    ({"straggler_factor": 1.0}, ["straggler-factor is 1.0", "greater than 1"]),
    ({"group_order": "size"}, ["group-order is 'size'", "'arrival'"]),
    ({"grouping": "age"}, ["grouping is 'age'", "'speed'"]),
    (
        {"group_order": "arrival", "server_update": "sum"},
        ["group-order is 'arrival', but server-update is 'sum'", "server-update 'sequential'"],
    ),
    (
        {"strategy": "CutMixSL", "group_order": "arrival", "k_times": True},
        ["group-order is 'arrival', but with k-times a client", "group-order 'random'"],
    ),
    (
        {"strategy": "PSL", "grouping": "speed"},
        ["grouping is 'speed', but NoMixing forms no groups", "grouping 'random'"],
    ),
    (
        {"straggler": "skip", "link": "ray"},
        ["straggler is 'skip'", "in a simulation", "straggler 'wait'"],
    ),
    ({"micro_batches": 0}, ["micro-batches is 0; it must be an integer from 1 to 64, or 'auto'"]),
    ({"micro_batches": "many"}, ["micro-batches is 'many'; it must be"]),
    ({"micro_batches": 1.5}, ["micro-batches is 1.5; it must be"]),
    (
        {"micro_batches": 2},
        ["micro-batches is 2, but server-update is 'sequential'", "micro-batches 1", "'mean'"],
    ),
    (
        {"micro_batches": "auto", "server_update": "sum", "straggler": "skip"},
        ["micro-batches is 'auto', but straggler is 'skip'", "straggler 'wait'"],
    ),
    (
        {"micro_batches": 2, "server_update": "sum", "strategy": "BatchShuffleSL"},
        ["micro-batches is 2, but FrozenEdge needs a whole batch", "micro-batches 1"],
    ),
    (
        {"micro_batches": 2, "server_update": "sum", "model": "resnet18"},
        ["micro-batches is 2, but the lower segment of resnet18 has BatchNorm", "without BatchNo"],
    ),
    (
        {"wire_dtype": "int4"},
        ["wire-dtype-down is '', so", "as 'int4', which is for smashed", "e.g. 'int8'"],
    ),
    ({"wire_dtype_down": "int4"}, ["wire-dtype-down is 'int4', so that", "is for smashed data"]),
    ({"wire_dtype_down": "int4-stochastic"}, ["as 'int4-stochastic', which is for smashed data"]),
    (
        {"wire_dtype": "int8-stochastic", "wire_feedback": True},
        ["wire-feedback is for", "not as 'int8-stochastic'", "wire-dtype-down", "to false"],
    ),
    (
        {"wire_dtype_down": "int8", "link": "ray"},
        ["run-config: wire-dtype-down is 'int8', but in a simulation"],
    ),
    (
        {"wire_dtype": "int8", "wire_dtype_down": "float16", "link": "ray"},
        ["wire-dtype is 'int8' and wire-dtype-down is 'float16', but in a simulation"],
    ),
    ({"rounding": "floor"}, ["rounding is 'floor'", "'multinomial'"]),
    ({"gradient": "both"}, ["gradient is 'both'", "'unicast'"]),
    ({"regroup": "never"}, ["regroup is 'never'", "'epoch'"]),
    ({"k_times": "often"}, ["k-times is 'often'", "boolean"]),
    ({"partition": "dir"}, ["partition is 'dir'", "'dirichlet'"]),
    ({"partition_alpha": 0.0}, ["partition-alpha is 0.0", "greater than 0"]),
    ({"partition_alpha": 1e12}, ["partition-alpha is 1000000000000.0", "less than or equal to"]),
    ({"precision": "fp8"}, ["precision is 'fp8'", "'bfloat16'"]),
    ({"host_gpus": -1.0}, ["host-gpus is -1.0", "greater than or equal to 0"]),
    ({"attach_timeout": 0.0}, ["attach-timeout is 0.0", "greater than 0"]),
    ({"run_dir": 3}, ["run-dir is 3", "string"]),
    ({"patch_size": 0}, ["patch-size is 0", "greater than or equal to 1"]),
    ({"cell": 0}, ["cell is 0", "greater than or equal to 1"]),
    ({"pretrained": "yes"}, ["pretrained is 'yes'", "boolean"]),
    ({"pretrained": True}, ["depth is 6", "pretrained", "depth 0"]),
    # What a strategy does not let its own options be.
    ({"beta": 0.0}, ["beta is 0.0", "greater than 0"]),
    ({"ratio": -0.5}, ["ratio is -0.5", "greater than or equal to 0"]),
    ({"ratio": 1.5}, ["ratio is 1.5", "less than or equal to 1"]),
    ({"kappa": 0.0}, ["kappa is 0.0", "greater than 0"]),
    ({"kappa": 1.5}, ["kappa is 1.5", "less than or equal to 1"]),
    ({"across": "nodes"}, ["across is 'nodes'", "'batch'"]),
    ({"strategy": "VanillaCutMixSL", "k": 3}, ["k is 3", "pairs"]),
    (
        {"strategy": "InputMixupSL", "across": "clients"},
        ["InputMixupSL mixes raw inputs across clients", "across='batch'"],
    ),
    ({"strategy": "BatchShuffleSL", "evaluation": "central"}, ["'central'", "BatchShuffleSL"]),
    (
        {"strategy": "PatchShuffleSL", "cut_at": "blocks.0"},
        ["cut-at is 'blocks.0'", "PatchShuffleSL", "use '' with it"],
    ),
    (
        {"strategy": "CutMixSL", "embedding": "tokens-to-token"},
        ["embedding is 'tokens-to-token'", "use 'patch' with CutMixSL"],
    ),
    # Noise, and what of it can be promised.
    ({"lr": 1e300}, ["lr is 1e+300", "less than or equal to 1000"]),
    ({"weight_decay": 1e300}, ["weight-decay is 1e+300", "less than or equal to 1000"]),
    ({"server_threads": 10**5}, ["server-threads is 100000", "less than or equal to 1024"]),
    ({"host_threads": 10**5}, ["host-threads is 100000", "less than or equal to 1024"]),
    # The link's keys, whichever link it will be.
    ({"link_address": "nowhere"}, ["link-address is 'nowhere'; it must be host:port, e.g. 0.0"]),
    ({"link_address": "a:99999"}, ["link-address is 'a:99999'; a port is a number in 0..65535"]),
    ({"link_advertise": "a:b"}, ["link-advertise is 'a:b'; a port is a number in 0..65535"]),
    ({"ssl_certfile": "/c"}, ["ssl-certfile is '/c', but ssl-keyfile is ''", "set both, or nei"]),
    ({"ssl_keyfile": "/k"}, ["ssl-keyfile is '/k', but ssl-certfile is ''", "set both, or nei"]),
    ({"sigma_s": -1.0}, ["sigma-s is -1.0", "greater than or equal to 0"]),
    ({"sigma_s": float("inf")}, ["sigma-s is inf", "less than or equal to 100000"]),
    ({"sigma_y": 1e300}, ["sigma-y is 1e+300", "less than or equal to 100000"]),
    ({**NOISE, "clip_norm": 1e300}, ["clip-norm is 1e+300", "less than or equal to 1000000"]),
    ({"sigma_y": -0.5}, ["sigma-y is -0.5", "greater than or equal to 0"]),
    ({"clip": "l2"}, ["clip is 'l2'", "'patch', 'range', 'sample' or 'none'"]),
    ({"clip_norm": 0.0}, ["clip-norm is 0.0", "greater than 0"]),
    ({"smashed_noise": "some"}, ["smashed-noise is 'some'", "'kept' or 'all'"]),
    ({"label_noise": "during"}, ["label-noise is 'during'", "'after' or 'before'"]),
    ({"clamp_labels": 1}, ["clamp-labels is 1", "boolean"]),
    ({"delta": 0.0}, ["delta is 0.0", "greater than 0"]),
    ({"delta": 1.0}, ["delta is 1.0", "less than 1"]),
    ({"delta": float("nan")}, ["delta is nan"]),
    ({"max_epsilon": -8.0}, ["max-epsilon is -8.0", "greater than or equal to 0"]),
    ({"max_epsilon": float("inf")}, ["max-epsilon is inf", "finite"]),
    ({"relation": "swap"}, ["relation is 'swap'", "'replace' or 'add-remove'"]),
    ({"trusted_mixer": "yes"}, ["trusted-mixer is 'yes'", "boolean"]),
    ({"strategy": "DPSL"}, ["sigma-s and sigma-y are both 0.0", "DPSL needs noise", "above 0"]),
    (
        {"strategy": "DPCutMixSFL", "max_epsilon": 8.0},
        ["sigma-s and sigma-y are both 0.0", "DPCutMixSFL needs noise"],
    ),
    (
        {"max_epsilon": 8.0},
        ["max-epsilon is 8.0", "sigma-s 0.0 and sigma-y 0.0", "sigma-s and sigma-y above 0"],
    ),
    (
        {**NOISE, "sigma_y": 0.0, "max_epsilon": 8.0},
        ["max-epsilon is 8.0", "no epsilon with sigma-y 0.0;"],
    ),
    (
        {**NOISE, "clip": "none", "max_epsilon": 8.0},
        ["max-epsilon is 8.0", "no epsilon with clip 'none';", "'patch', 'range' or 'sample'"],
    ),
    (
        {**NOISE, "max_epsilon": 8.0},
        ["max-epsilon is 8.0", "CutMixSFL averages lower segments", "allow-averaging true"],
    ),
    (
        {**NOISE, "max_epsilon": 8.0, "allow_averaging": True, "evaluation": "federated"},
        ["max-epsilon is 8.0", "'federated'", "without noise", "'central', 'benchmark'"],
    ),
    (
        {**NOISE, "strategy": "DPSL", "max_epsilon": 8.0, "evaluation": "federated"},
        ["max-epsilon is 8.0", "'federated'", "use 'benchmark'"],
    ),
    (
        {**NOISE, "max_epsilon": 8.0, "allow_averaging": True, "model": "resnet18"},
        ["max-epsilon is 8.0", "resnet18 has BatchNorm", "without BatchNorm before the cut"],
    ),
    ({**NOISE, "strategy": "InputMixupSL"}, ["InputLevel(Mixup) takes no noise", "sigma-s 0.0"]),
    ({**NOISE, "strategy": "SpectralShuffleSL"}, ["FrozenEdge takes no noise", "no labels"]),
    # A mixer elsewhere.
    ({"link_via_token": "/t"}, ["link-via-token is '/t', but link-via is ''", "set link-via to"]),
    ({"link_via": "m:1"}, ["link-via-token is ''", "a file with the mixer's token"]),
    ({**VIA, "link": "ray"}, ["link is 'ray'", "set link to 'stream'"]),
    ({**VIA, "link_advertise": "a:1"}, ["link-advertise is 'a:1'", "splitmix mixer --help"]),
    ({**VIA, "link_client_ca": "/ca"}, ["link-client-ca is '/ca'", "set link-client-ca to ''"]),
    ({**VIA, "strategy": "CutMixSFL"}, ["averages lower segments", "CutMixSL for CutMixSFL"]),
    ({**VIA, "evaluation": "federated"}, ["evaluation is 'federated'", "set evaluation to 'none'"]),
    ({**VIA, "evaluation": "benchmark"}, ["evaluation is 'benchmark'", "come to the server"]),
    ({**VIA, **NOISE, "strategy": "DPSL"}, ["cannot be NoMixing", "with or without noise"]),
    ({**VIA, "straggler": "skip"}, ["straggler is 'skip'", "set straggler to 'wait'"]),
    (
        {**VIA, "strategy": "MixupSL", "wire_dtype": "float16"},
        ["wire-dtype is 'float16', and this mixer adds uploads up", "set wire-dtype to 'keep'"],
    ),
    (
        {**VIA, "cut_at": "blocks.0", "wire_dtype": "int8"},
        [
            "run-config: cut-at 'blocks.0' has prefix tokens, a third party mixes (link-via), but "
            "wire-dtype is 'int8', and this mixer adds uploads up",
            "set wire-dtype to 'keep' (wire-dtype-down may be any)",
        ],
    ),
    (
        {**VIA, "group_order": "arrival"},
        ["group-order is 'arrival'", "set group-order to 'random'"],
    ),
    ({**VIA, "grouping": "speed"}, ["grouping is 'speed'", "set grouping to 'random'"]),
    (
        {**VIA, "micro_batches": 2, "server_update": "sum"},
        ["micro-batches is 2", "set micro-batches to 1"],
    ),
    ({**VIA, "min_patches": 0}, ["min-patches is 0", "set min-patches to at least 1"]),
    ({**VIA, "k_times": True}, ["with k-times a group's", "leave k-times out"]),
    ({**VIA, "strategy": "PSL"}, ["cannot be NoMixing", "use PatchCutMix or Mixup"]),
    ({**VIA, "strategy": "MixupSL", "micro_batches": 2}, ["set micro-batches to 1, or mix in"]),
    ({**VIA, "strategy": "ShuffledCutMixSL"}, ["cannot be Shuffled(PatchCutMix)", "link-via ''"]),
    ({**VIA, "strategy": "PatchShuffleSL"}, ["a mixer elsewhere cannot be FrozenEdge"]),
    # What the model and the data say.
    ({"patch_size": 7}, ["patch-size 7", "divide image-size 32"]),
    (
        {"model": "mixer_s32_224", "strategy": "ShuffledPSL"},
        ["ShuffledPSL needs the cut at 'stem' (cut-at='stem')", "no position embeddings"],
    ),
    (
        {"cut_at": "blocks.0", "strategy": "ShuffledPSL"},
        ["ShuffledPSL needs the cut at 'embedding', not at 'blocks.0'"],
    ),
    ({"model": "vit_tyny_patch16_224"}, ["'vit_tyny_patch16_224'", "vit_tiny_patch16_224"]),
    ({"model": "crossvit_tiny_240"}, ["CrossVit", "use a model such as", "pit_ti_224"]),
    ({"model": "vgg16", "cell": 3}, ["cell 3", "16 x 16 map", "it must be one of 1, 2, 4, 8, 16"]),
    ({"model": "lenet5", "cut_at": "conv3"}, ["lenet5 has no cut 'conv3'", "conv2"]),
    (
        {"model": "lenet5", "pretrained": True, "depth": 0},
        ["lenet5", "takes no option pretrained"],
    ),
    ({"strategy": "PatchShuffleSL", "model": "vgg16"}, ["vgg16 cannot be shuffled", "deit_"]),
    ({"strategy": "PatchShuffleSL", "depth": 1}, ["depth 1", "is not enough"]),
    (
        {"strategy": "SpectralShuffleSL", "embedding": "tokens-to-token"},
        ["'tokens-to-token' is for the methods 'patch' and 'batch' only"],
    ),
    ({"strategy": "ShuffledPSL", "cut_at": "blocks.0"}, ["'embedding'", "'blocks.0'"]),
    ({"cut_at": "blocks.1", "depth": 1}, ["'blocks.1'", "available: embedding, blocks.0"]),
    ({"dataset": "minst"}, ["'minst'", "'fashion-mnist-small'"]),
    # What the strategy says, once it knows the model and the nodes.
    ({"device": "tpu"}, ["'tpu'", "'cpu'"]),
    ({"device": "meta"}, ["'meta'", "'cpu'"]),
    ({"strategy": "InputCutMixSL", "model": "lenet5"}, ["(1, 32, 32)", "5 x 5 equal cells"]),
    (
        {"min_patches": 9},
        [
            "min_patches (min-patches) is 9, but a group's 2 members share 16 patches",
            "use 0 to 8",
        ],
    ),
    ({"k": 5}, ["k is 5", "only 4 clients take part in a round", "2 to 4"]),
    ({"fraction_train": 0.5, "k": 3}, ["k is 3", "only 2 clients take part in a round"]),
]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_round, "SETTLED_SECONDS", 0.3)


@pytest.mark.parametrize(("wrong", "phrases"), CASES, ids=[str(wrong) for wrong, _ in CASES])
def test_a_wrong_value_is_named(wrong: dict[str, Any], phrases: list[str]) -> None:
    with pytest.raises((ValueError, ClientError), match=re.escape(phrases[0])) as caught:
        start(run_config(**wrong), Nodes(4))
    sentence = str(caught.value)
    assert "\n" not in sentence
    for part in phrases:
        assert part in sentence


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"link_via": "mixer"}, r"via \(link-via\) is 'mixer'; it must be host:port"),
        ({}, r"token_file \(link-via-token\): /no/token cannot be read: No such file"),
        # It rounds nothing of float32 uploads.
        ({"strategy": "MixupSL", "wire_dtype": "float32"}, r"link-via-token\): /no/token cannot"),
        # Noise goes with a mixer, whatever is said of trust in it.
        ({**NOISE, "strategy": "DPCutMixSL"}, r"link-via-token\): /no/token cannot be read"),
        ({**NOISE, "strategy": "DPMixSL", "trusted_mixer": True}, r"link-via-token\): /no/token"),
    ],
)
def test_a_mixer_that_cannot_be_dialled_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(LinkError, match=message):
        start(run_config(**{**VIA, "depth": 1, **wrong}), Nodes(4))


def start(values: dict[str, Any], nodes: Any) -> None:
    """Do what the ServerApp does before its run has a directory."""
    config = VisionConfig.read(values)
    segments = segments_of(config)
    strategy = make_strategy(config, segments.upper, None)
    first_round.check_first_round(strategy, config, segments.lower.geometry, nodes)


def test_all_wrong_values_are_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"k is 1;.*alpha is 0\.0;"):
        VisionConfig.read(run_config(k=1, alpha=0.0))


def test_a_missing_key_is_named() -> None:
    values = run_config()
    del values["k"]
    with pytest.raises(ValueError, match="run-config lacks 'k'"):
        VisionConfig.read(values)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of clients for which a first round was planned."""
    numbers: list[int] = []
    check_plan = first_round.check_plan

    def counted(strategy: Any, config: Any, geometry: Any, clients: int) -> None:
        numbers.append(clients)
        check_plan(strategy, config, geometry, clients)

    monkeypatch.setattr(first_round, "check_plan", counted)
    return numbers


def test_the_apps_own_configuration_is_valid(planned: list[int]) -> None:
    start(run_config(depth=1), Nodes(2))
    assert planned == [2]


def test_nodes_that_are_still_to_come_are_waited_for(planned: list[int]) -> None:
    start(run_config(depth=1, k=4), Nodes(4, at_first=0))
    assert planned == [4]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"samples_per_client": 700}, "client 0 of 10 has 600 training images of "),
        ({"client_device": "gpu"}, "device 'gpu' is not available here; it must be 'auto', 'cpu'"),
        ({"seed": 2**63}, "seed is 9223372036854775808; input should be less than"),
        ({"partition": "dirichlet", "partition_alpha": 0.01}, "this client has no training data"),
    ],
)
def test_a_client_says_what_it_lacks(wrong: dict[str, Any], message: str) -> None:
    values = run_config(depth=1, **wrong)
    with pytest.raises((ValueError, RuntimeError)) as caught:
        deque(client_fn(context(index, 10, values)) for index in range(10))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_client_is_what_the_configuration_says() -> None:
    values = run_config(depth=1, samples_per_client=70, batch_size=20)
    client = split_client(3, 10, values)
    assert client.batches.examples == 70
    assert client.batches.per_epoch == 3
