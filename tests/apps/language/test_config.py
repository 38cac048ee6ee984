"""A wrong key of apps/language is named before anything starts: key, value, what is allowed."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig

from flwr_splitmix import Run
from flwr_splitmix.apps.language import texts
from flwr_splitmix.apps.language.config import LanguageConfig
from flwr_splitmix.apps.language.server import build_trunk, initial_arrays, make_strategy
from flwr_splitmix.hiding import DPForward, MixGuard
from flwr_splitmix.hiding.making import hiding_options
from flwr_splitmix.hiding.mixguard import MixGuardOptions
from flwr_splitmix.strategies import USHAPE_STRATEGIES, UShapeStrategy
from flwr_splitmix.suggestions import allowed
from tests.apps.language_app import TINY, client, read, run_config
from tests.apps.minilm import MINILM

CASES: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"strategy": "MixGuardSL"},
        [
            "strategy is 'MixGuardSL'",
            allowed("MixGuardSL", USHAPE_STRATEGIES, "docs/configuration.md"),
        ],
    ),
    ({"strategy": "CutMixSL"}, ["strategy is 'CutMixSL'; it is for images, in apps/vision"]),
    ({"stratgy": "MixGuard"}, ["unknown key 'stratgy'", "strategy"]),
    ({"task": "translation"}, ["task is 'translation'", "'classification' or 'generation'"]),
    ({"aggregator": "none"}, ["aggregator is 'none'", "'auto'", "'FedAvg'"]),
    ({"num_server_rounds": 0}, ["num-server-rounds is 0", "greater than or equal to 1"]),
    ({"batch_size": 0}, ["batch-size is 0", "greater than or equal to 1"]),
    ({"epochs_per_round": 0}, ["epochs-per-round is 0", "greater than or equal to 1"]),
    ({"steps_per_round": -1}, ["steps-per-round is -1", "greater than or equal to 0"]),
    ({"lr": 0.0}, ["lr is 0.0", "greater than 0"]),
    ({"lr": 1e300}, ["lr is 1e+300", "less than or equal to 1000"]),
    ({"weight_decay": -1.0}, ["weight-decay is -1.0", "greater than or equal to 0"]),
    ({"warmup_epochs": -1.0}, ["warmup-epochs is -1.0", "greater than or equal to 0"]),
    ({"seed": -1}, ["seed is -1", "greater than or equal to 0"]),
    # The model and its cut.
    ({"model": ""}, ["model is ''", "at least 1 character"]),
    ({"model": "/nowhere"}, ["the model '/nowhere' cannot be used", "neither a folder"]),
    ({"head_layers": -1}, ["head-layers is -1", "greater than or equal to 0"]),
    (
        {"head_layers": 2, "tail_layers": 2},
        [
            "head-layers is 2 and tail-layers 2",
            "none for the trunk",
            "the model has 4",
            "at most 3",
        ],
    ),
    ({"head_layers": 3, "tail_layers": 2}, ["head-layers is 3 and tail-layers 2", "at most 3"]),
    ({"small_width": 20}, ["small-width is 20", "multiple of 8"]),
    ({"small_width": 80_000}, ["small-width is 80000", "less than or equal to 8192"]),
    ({"small_layers": 2000}, ["small-layers is 2000", "less than or equal to 1000"]),
    ({"small_vocabulary": 10**8}, ["small-vocabulary is 100000000", "equal to 1048576"]),
    ({"small_layers": 0}, ["small-layers is 0", "greater than or equal to 1"]),
    ({"small_vocabulary": 200}, ["small-vocabulary is 200", "greater than or equal to 258"]),
    ({"lora_rank": -1}, ["lora-rank is -1", "greater than or equal to 0"]),
    ({"lora_alpha": 0.0}, ["lora-alpha is 0.0", "greater than 0"]),
    ({"lora_parts": "head,neck"}, ["lora-parts is 'head,neck'", "head, trunk, tail"]),
    (
        {"lora_rank": 4, "head_layers": 0},
        ["lora-rank is 4 and lora-parts names 'head'", "head-layers is 0", "leave 'head' out"],
    ),
    (
        {"learns": "tail", "lora_rank": 4, "lora_parts": "trunk"},
        ["lora-parts is 'trunk', but learns is 'tail'", "lora-parts with 'tail', or lora-rank 0"],
    ),
    ({"lora_parts": "head,head"}, ["lora-parts is 'head,head'", "each once"]),
    (
        {"strategy": "NaiveMixSL", "batch_size": 1},
        ["batch-size is 1, but strategy is 'NaiveMixSL'", "it must be at least 2"],
    ),
    ({"learns": "head"}, ["learns is 'head'", "'all' or 'tail'"]),
    (
        {"learns": "tail", "strategy": "NoPeekSL"},
        [
            "learns is 'tail', but strategy is 'NoPeekSL', which",
            "training heads",
            "use 'all' with it",
        ],
    ),
    (
        {"head_layers": 0, "strategy": "NoPeekSL"},
        ["head-layers is 0, but strategy is 'NoPeekSL', which", "it must be at least 1"],
    ),
    ({"dtype": "float16"}, ["dtype is 'float16'", "'float32' or 'bfloat16'"]),
    ({"gradient_checkpointing": 1}, ["gradient-checkpointing is 1", "boolean"]),
    ({"max_length": 600, "model": MINILM, "task": "classification"}, ["max-length is 600", "512"]),
    ({"model": MINILM}, ["'bert' cannot be cut for generation", "llama", "qwen3"]),
    (
        {"model": MINILM, "task": "classification", "head_layers": 3, "tail_layers": 3},
        ["leaves none for the trunk", "the model has 6", "at most 5"],
    ),
    # The data.
    ({"dataset": ""}, ["dataset is ''", "at least 1 character"]),
    ({"text_column": ""}, ["text-column is ''", "at least 1 character"]),
    ({"num_labels": 10**6}, ["num-labels is 1000000", "less than or equal to 65536"]),
    ({"num_labels": 1}, ["num-labels is 1", "greater than or equal to 2"]),
    ({"partition": "natural"}, ["partition is 'natural'", "'iid', 'dirichlet' or 'column'"]),
    ({"partition_alpha": 0.0}, ["partition-alpha is 0.0", "greater than 0"]),
    ({"partition": "dirichlet"}, ["partition is 'dirichlet'", "'generation'", "'column'"]),
    (
        {"partition": "column", "dataset": "/data/train.tsv"},
        ["partition is 'column', but partition-column is ''"],
    ),
    ({"public_unit": "word"}, ["public-unit is 'word'", "'sentence' or 'paragraph'"]),
    ({"public_words": 3}, ["public-words is 3", "greater than or equal to 4"]),
    ({"public_samples": -1}, ["public-samples is -1", "greater than or equal to 0"]),
    ({"max_length": 0}, ["max-length is 0", "greater than or equal to 1"]),
    (
        {"max_length": 41},
        ["max-length is 41, of which 40 are secret tokens", "42 are needed", "of at most 39"],
    ),
    ({"pad_to": 41}, ["pad-to is 41, of which 40 are secret tokens", "42 are needed"]),
    ({"pad_to": 129}, ["pad-to is 129, but max-length 128", "at most that, or 0"]),
    ({"long_texts": "split"}, ["long-texts is 'split'", "'refuse', 'cut' or 'drop'"]),
    # MixGuard, and NaiveMixSL.
    ({"k": 1}, ["k is 1", "greater than or equal to 2"]),
    ({"k": 65}, ["k is 65", "less than or equal to 64"]),
    ({"m": 1}, ["m is 1", "greater than or equal to 2"]),
    ({"m": 65}, ["m is 65", "less than or equal to 64"]),
    ({"secret_tokens": -2}, ["secret-tokens is -2", "greater than or equal to -1"]),
    ({"calibration_epochs": -1}, ["calibration-epochs is -1", "greater than or equal to 0"]),
    ({"support_scale": 1e300}, ["support-scale is 1e+300; it must be from 1e-06 to 1e+06"]),
    ({"support_scale": 1e-300}, ["support-scale is 1e-300; it must be from 1e-06 to 1e+06"]),
    ({"strength": 1e300}, ["strength is 1e+300", "less than or equal to 1000000"]),
    ({"epsilon": 1e300}, ["epsilon is 1e+300", "less than or equal to 1000000"]),
    ({"noise_multiplier": 1e300}, ["noise-multiplier is 1e+300", "less than or equal to 1000000"]),
    ({"calibration_lr": 0.0}, ["calibration-lr is 0.0", "greater than 0"]),
    ({"refine_every": -1}, ["refine-every is -1", "greater than or equal to 0"]),
    ({"perturbation": "gaussian"}, ["perturbation is 'gaussian'", "'adaptive', 'constant' or"]),
    (
        {"calibration_epochs": 0},
        ["perturbation 'adaptive'", "calibration-epochs is 0", "'constant' and 'none'"],
    ),
    ({"max_leak": 1.5}, ["max-leak is 1.5", "less than 1"]),
    ({"strength": -0.1}, ["strength is -0.1", "greater than or equal to 0"]),
    ({"gradients": "all"}, ["gradients is 'all'", "'target', 'all-sources' or 'one-message'"]),
    ({"gradients": "all-sources", "k": 4}, ["'all-sources' needs m >= k", "m is 3 and k is 4"]),
    (
        {"gradients": "all-sources", "perturbation": "none", "calibration_epochs": 0},
        ["'all-sources'", "calibration-epochs is 0"],
    ),
    ({"secret_per_sample": "yes"}, ["secret-per-sample is 'yes'", "boolean"]),
    ({"lam": 0.0}, ["lam is 0.0", "greater than or equal to 0.001"]),
    ({"lam": 1.5}, ["lam is 1.5", "less than or equal to 1"]),
    # The field's other defences.
    ({"epsilon": 0.0}, ["epsilon is 0.0", "greater than or equal to 0.0001"]),
    ({"delta": 0.0}, ["delta is 0.0", "greater than 0"]),
    ({"delta": 1.0}, ["delta is 1.0", "less than 1"]),
    ({"clip_norm": 0.0}, ["clip-norm is 0.0", "greater than 0"]),
    ({"sensitivity": "C"}, ["sensitivity is 'C'", "'replace' or 'published'"]),
    ({"releases": 0}, ["releases is 0", "greater than or equal to 1"]),
    ({"dcor_weight": -1.0}, ["dcor-weight is -1.0", "greater than or equal to 0"]),
    ({"eta": 0.0}, ["eta is 0.0", "greater than or equal to 0.001"]),
    ({"noise_multiplier": 0.0}, ["noise-multiplier is 0.0", "greater than 0"]),
    (
        {"strategy": "SnDSL", "calibration_rank": 6},
        ["calibration-rank is 6", "SnD's denoiser needs a multiple of 4, or 0"],
    ),
    (
        {"strategy": "DPForwardSL", "clip_norm": 1e6, "epsilon": 1e-4},
        [
            "clip-norm is 1e+06, epsilon 0.0001 and releases 1",
            "servers refuse such",
            "smaller clip-n",
        ],
    ),
    (
        {"strategy": "DPSGDSL", "gradient_checkpointing": True},
        ["gradient-checkpointing is true", "'DPSGDSL'", "it must be false"],
    ),
    # Who takes part, what is measured, where it runs.
    ({"evaluation": "central"}, ["evaluation is 'central'", "'federated', 'benchmark' or 'none'"]),
    ({"generation_scores": True, "task": "classification"}, ["generation-scores is true"]),
    ({"max_new_tokens": 0}, ["max-new-tokens is 0", "greater than or equal to 1"]),
    ({"max_new_tokens": 4001}, ["max-new-tokens is 4001", "less than or equal to 4000"]),
    ({"device": "tpu"}, ["'tpu'", "'cpu'"]),
    ({"link": "ray", "wire_dtype": "int8"}, ["wire-dtype is 'int8'", "'keep'"]),
]


def start(values: dict[str, Any]) -> UShapeStrategy:
    """Do what the ServerApp does before its run has a directory."""
    config = LanguageConfig.read(values)
    strategy = make_strategy(config, build_trunk(config), None)
    initial_arrays(config)
    return strategy


@pytest.mark.parametrize(("wrong", "phrases"), CASES, ids=[str(wrong) for wrong, _ in CASES])
def test_a_wrong_value_is_named(wrong: dict[str, Any], phrases: list[str]) -> None:
    with pytest.raises(ValueError, match=re.escape(phrases[0])) as caught:
        start(run_config(**wrong))
    sentence = str(caught.value)
    assert "\n" not in sentence
    for part in phrases:
        assert part in sentence


def test_all_wrong_values_are_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"k is 1;.*lam is 0\.0;"):
        read(k=1, lam=0.0)


def test_a_missing_key_is_named() -> None:
    values = run_config()
    del values["m"]
    with pytest.raises(ValueError, match="run-config lacks 'm'"):
        LanguageConfig.read(values)


def test_the_apps_own_configuration_is_valid() -> None:
    values = run_config()
    assert type(start(values)).__name__ == values["strategy"]


def test_a_type_of_model_that_cannot_be_cut_is_answered_with_those_that_can(
    tmp_path: Path,
) -> None:
    AutoConfig.for_model("t5").save_pretrained(tmp_path)
    save_file({"weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    message = r"'t5' cannot be cut for generation: .* these types can: llama"
    with pytest.raises(ValueError, match=message):
        start(run_config(model=str(tmp_path)))


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    AutoConfig.for_model("qwen3").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"holds neither model\.safetensors nor"):
        start(run_config(model=str(tmp_path), head_layers=1))


def test_a_server_reads_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Mock()
    monkeypatch.setattr(texts, "load_text_sets", loader)
    monkeypatch.setattr(texts, "load_public_texts", loader)
    for strategy in USHAPE_STRATEGIES:
        start(run_config(**TINY, strategy=strategy, dataset="/nowhere.tsv", public="/nowhere"))
    loader.assert_not_called()


@pytest.mark.parametrize(
    ("task", "dataset", "strategy", "number"),
    [
        ("generation", "generated", "MixGuard", 40),
        ("classification", "/data/sst2.tsv", "MixGuard", 20),
        # As in CoLA, they would change the label.
        ("classification", "generated", "MixGuard", 0),
        ("generation", "generated", "NaiveMixSL", 0),
    ],
)
def test_secret_tokens_are_the_papers(task: str, dataset: str, strategy: str, number: int) -> None:
    config = read(task=task, dataset=dataset, strategy=strategy)
    assert config.secrets == number
    assert config.text_length == 128 - number
    assert read(task=task, strategy="MixGuard", secret_tokens=7).secrets == 7


def test_what_learns_reaches_the_client() -> None:
    alone = client(0, 2, **TINY, learns="tail")
    assert alone.learns == "tail"
    assert not any(parameter.requires_grad for parameter in alone.head.parameters())
    assert client(0, 2, **TINY).learns == "all"


def test_mixguards_keys_reach_its_client() -> None:
    keys = {
        "k": 4,
        "m": 5,
        "secret_tokens": 6,
        "calibration_epochs": 3,
        "calibration_rank": 7,
        "calibration_blocks": 2,
        "calibration_lr": 0.5,
        "refine_every": 8,
        "perturbation": "constant",
        "strength": 0.25,
        "gradients": "all-sources",
        "secret_per_sample": True,
        "calibrated_inference": False,
        "pad_to": 90,
        "max_length": 100,
    }
    hiding = client(0, 2, **{**TINY, **keys}).hiding
    assert isinstance(hiding, MixGuard)
    options = hiding.options
    assert {name: getattr(options, name) for name in keys} == keys
    nothing = read(calibration_rank=0, perturbation="none", pad_to=0).own_options()
    for name in ("calibration_rank", "perturbation", "pad_to"):
        assert nothing[name] is None


def test_the_defences_keys_reach_their_clients() -> None:
    keys: dict[str, Any] = {
        **TINY,
        "epsilon": 3.0,
        "delta": 1e-4,
        "clip_norm": 0.5,
        "sensitivity": "published",
        "releases": 4,
        "dcor_weight": 0.25,
        "eta": 7.0,
        "noise_multiplier": 0.6,
        "calibration_rank": 12,
        "calibration_blocks": 2,
        "calibration_lr": 0.5,
        "refine_every": 3,
    }

    def hiding(strategy: str, **values: Any) -> Any:
        return client(0, 2, **keys, strategy=strategy, **values).hiding

    forward = hiding("DPForwardSL")
    same = DPForward(3.0, 1e-4, 0.5, "published", 4)
    assert (forward.sigma, forward.delta, forward.noise) == (same.sigma, 1e-4, same.noise)
    assert hiding("NoPeekSL").dcor_weight == 0.25
    private = hiding("DPSGDSL")
    assert (private.noise_multiplier, private.clip_norm, private.delta) == (0.6, 0.5, 1e-4)
    for task in ("generation", "classification"):
        denoised = hiding("SnDSL", task=task)
        assert (denoised.eta, denoised.causal) == (7.0, task == "generation")
        assert len(denoised.public) == 8
        for name in ("rank", "blocks", "lr"):
            assert getattr(denoised, f"calibration_{name}") == keys[f"calibration_{name}"]
        assert (denoised.calibration_epochs, denoised.refine_every) == (1, 3)


def test_mixguards_defaults_are_the_packages() -> None:
    app_defaults = {"secret_tokens": 40, "max_length": 128}  # for generation; for the small model
    assert read().own_options() == {**vars(MixGuardOptions()), **app_defaults}


def test_every_option_of_a_hiding_is_a_key_with_its_default() -> None:
    for name, kind in USHAPE_STRATEGIES.items():
        options = read(strategy=name).own_options()
        assert options.keys() == hiding_options(kind.hiding)
        for option, parameter in inspect.signature(kind.hiding).parameters.items():
            if option in options:
                assert options[option] == parameter.default, option


def test_a_run_from_before_a_key_was_added_is_resumed(tmp_path: Path) -> None:
    values = run_config(strategy="USplitFL", run_dir=str(tmp_path))
    before = {name: value for name, value in values.items() if name != "support-scale"}
    run = Run.create({**before, "lr": 0.5}, name="before", home=tmp_path)
    config, resumed = LanguageConfig.of_run({**values, "support-scale": 0.5, "resume": run.id})
    assert resumed is not None
    assert resumed.id == run.id
    assert (config.lr, config.support_scale, config.resume) == (0.5, 0.5, "")
    assert LanguageConfig.read(resumed.config) == config  # which is what the clients are told
