"""Models that DP-SGD must refuse are refused before a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig

from flwr_splitmix.apps.checking.parts import Checks
from flwr_splitmix.apps.checking.report import Report
from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.configuration.project import open_project
from flwr_splitmix.apps.language.check import check
from flwr_splitmix.apps.language.trial import try_layers
from tests.apps.language_app import APP, read, run_config
from tests.segments.language.tiny_models import CONFIGS, ENCODERS, GROUPED, whole_model

WIDE: dict[str, Any] = {
    **CONFIGS,
    "gemma3": AutoConfig.for_model(
        "gemma3_text", **{**GROUPED, "num_hidden_layers": 4}, head_dim=8, sliding_window=3
    ),
    "deberta-v3": AutoConfig.for_model(
        "deberta-v2", relative_attention=True, pos_att_type="p2c|c2p", share_att_key=True
    ),
}


def trained_by_dp_sgd(folder: Path, name: str, **values: Any) -> dict[str, Any]:
    """Return the keys of a run whose model is a folder with a configuration of that name."""
    WIDE[name].save_pretrained(folder)
    save_file({"none": torch.zeros(1)}, folder / "model.safetensors")
    encoder = name in (*ENCODERS, "deberta-v3")
    return {
        "strategy": "DPSGDSL",
        "model": str(folder),
        "task": "classification" if encoder else "generation",
        "max_length": 32,
        "device": "cpu",
        "client_device": "cpu",
        **values,
    }


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("opt", {}, r"not compute for head\.embedding\.embed_positions \(OPTLearned"),
        ("gemma3", {}, r"for head\.embedding\.embed_tokens \(Gemma3TextScaledWordEmbedding\)"),
        ("falcon", {}, "hooks fail where head or tail changes in place .* or adapters"),
        ("falcon", {"learns": "tail"}, "hooks fail where head or tail changes in place"),
        ("deberta-v3", {}, r"query_proj \(Linear\) is called with 1 row for 2 examples"),
        ("deberta-v3", {"lora_rank": 4}, r"query_proj\.lora_A.* is called with 1 row for 2"),
    ],
)
def test_a_model_without_a_gradient_for_each_text_is_refused_before_the_run(
    name: str, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Otherwise its clients would be left out in round 1."""
    config = read(**trained_by_dp_sgd(tmp_path, name, **values))
    with pytest.raises(ConfigError, match=rf"^run-config: strategy is 'DPSGDSL', but .*{message}"):
        try_layers(config)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *((name, {"lora_rank": 4}) for name in ("opt", "gemma3", "falcon")),
        *((name, {}) for name in ("gpt2", "qwen3", "falcon_alibi", "bert", "mpnet")),
        ("gemma3", {"learns": "tail"}),
        ("opt", {"strategy": "DPForwardSL"}),
    ],
)
def test_what_its_clients_can_train_is_let_through(
    name: str, values: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG", "flwr.splitmix"):
        try_layers(read(**trained_by_dp_sgd(tmp_path, name, **values)))
    assert "was tried and failed" not in caplog.text


def test_a_server_without_the_package_leaves_the_trial_to_its_clients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("opacus", "opacus.accountants"):
        monkeypatch.setitem(sys.modules, name, None)
    with caplog.at_level("DEBUG", "flwr.splitmix"):
        try_layers(read(**trained_by_dp_sgd(tmp_path, "opt")))
    assert not caplog.text


def test_a_check_plans_no_epsilon_of_a_model_that_dp_sgd_refuses(tmp_path: Path) -> None:
    report = Report("app", 2, nodes_known=True)
    values = trained_by_dp_sgd(tmp_path, "opt")
    whole_model(WIDE["opt"]).save_pretrained(tmp_path)
    check(Checks(open_project(APP), run_config(**values), report))
    assert any("cannot be trained by it" in problem for problem in report.problems)
    assert not any("planned privacy" in remark for remark in report.remarks)
