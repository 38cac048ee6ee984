"""A continued run has the configuration that it had, and says which given keys it ignores."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flwr_splitmix.apps.checking.app import check_app
from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.runs import Run
from flwr_splitmix.server.record.flower_grid import given_to
from tests.apps.app_config import APPS
from tests.apps.vision_app import Nodes, run_config


def continued(home: Path, overrides: dict[str, Any], **original: Any) -> tuple[VisionConfig, Run]:
    Run.create(run_config(**original), name="x", home=home)
    values = {**run_config(), **overrides, "resume": "latest", "run-dir": str(home)}
    config, run = VisionConfig.of_run(
        values, {**overrides, "resume": "latest", "run-dir": str(home)}
    )
    assert run is not None
    return config, run


def test_ignored_keys_are_named_with_both_values(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    overrides = {"lr": 0.5, "strategy": "PSL", "batch-size": 32}
    with caplog.at_level(logging.INFO, logger="flwr.splitmix"):
        config, _ = continued(tmp_path, overrides, strategy="CutMixSL", num_server_rounds=3)
    assert (config.lr, config.strategy, config.num_server_rounds) == (0.001, "CutMixSL", 3)
    (record,) = caplog.records
    message = record.getMessage()
    assert "ignores what is given now: lr is 0.001, not 0.5, strategy is 'CutMixSL'" in message
    assert "batch-size" not in message, "it is what the run has"
    assert "run-dir" not in message


def test_what_is_ignored_need_not_be_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A value given now is not used, so neither the run nor `splitmix check` refuses it."""
    overrides = {"lr": -1.0, "strategy": "Nope", "batch-size": 0}
    config, _ = continued(tmp_path, overrides, strategy="CutMixSL")
    assert (config.lr, config.strategy) == (0.001, "CutMixSL")
    assert "ignores what is given now: lr is 0.001, not -1.0, strategy is 'CutMixSL'" in caplog.text
    with pytest.raises(ConfigError, match="link-address is 5"):
        continued(tmp_path, {"link-address": 5})


def test_a_run_that_was_labelled_latest_by_hand_goes_on(tmp_path: Path) -> None:
    """No new run may have this label, and the label of a run cannot be changed."""
    run = Run.create(run_config(label="first"), name="x", home=tmp_path)
    config_file = run.path / "config.json"
    config_file.write_text(
        config_file.read_text(encoding="utf-8").replace('"first"', '"latest"'), "utf-8"
    )
    values = {**run_config(), "resume": run.id, "run-dir": str(tmp_path)}
    config, resumed = VisionConfig.of_run(values)
    assert (config.label, resumed and resumed.id) == ("latest", run.id)


def test_a_run_of_another_app_is_refused_in_one_sentence(tmp_path: Path) -> None:
    run = Run.create({"strategy": "MixGuard", "pad-to": 9, "secret": 1}, name="x", home=tmp_path)
    values = {**run_config(), "resume": "latest", "run-dir": str(tmp_path)}
    message = (
        rf"run {run.id} has keys that this app does not know \(pad-to and secret\): resume it with"
    )
    with pytest.raises(ConfigError, match=message):
        VisionConfig.of_run(values)


def test_addresses_and_time_limits_may_be_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Or a run that ends since its server moves, or for a short limit, could never be resumed."""
    overrides = {"attach-timeout": 7.5, "link-address": "127.0.0.1:9443", "lr": 0.5}
    with caplog.at_level(logging.INFO, logger="flwr.splitmix"):
        config, run = continued(tmp_path, overrides)
    assert (config.attach_timeout, config.link_address, config.lr) == (7.5, "127.0.0.1:9443", 0.001)
    assert "continues with another attach-timeout, link-address" in caplog.text
    assert "ignores what is given now: lr is 0.001, not 0.5. Only" in caplog.text
    assert Run.open(run.id, home=tmp_path).config["attach-timeout"] != 7.5
    run.config_file.extend(1)
    assert Run.open(run.id, home=tmp_path).config["attach-timeout"] == 7.5


@pytest.mark.parametrize(("new_rounds", "rounds"), [(12, 12), (7, 7), (3, 5), (5, 5), (None, 5)])
def test_rounds_can_be_raised_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, new_rounds: int | None, rounds: int
) -> None:
    overrides = {} if new_rounds is None else {"num-server-rounds": new_rounds}
    with caplog.at_level(logging.INFO, logger="flwr.splitmix"):
        config, run = continued(tmp_path, overrides, num_server_rounds=5)
    assert config.num_server_rounds == rounds
    assert ("ignores" in caplog.text) == (new_rounds == 3)
    assert run.config["num-server-rounds"] == 5, "it is written down when the run begins"


def test_without_what_was_given_defaults_extend_nothing(tmp_path: Path) -> None:
    """The app's own number of rounds is not one that the user asked for."""
    Run.create(run_config(num_server_rounds=2), name="x", home=tmp_path)
    values = run_config(resume="latest", run_dir=str(tmp_path), num_server_rounds=9)
    config, _ = VisionConfig.of_run(values)
    assert config.num_server_rounds == 2


def test_what_is_given_is_what_flower_says() -> None:
    grid: Any = SimpleNamespace(run=SimpleNamespace(override_config={"lr": 0.5}))
    assert given_to(grid) == {"lr": 0.5}
    outside_of_a_run: Any = Nodes(2)
    assert given_to(outside_of_a_run) == {}


def test_a_wrong_number_of_rounds_is_refused_before(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="num-server-rounds is 'x'"):
        continued(tmp_path, {"num-server-rounds": "x"})


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("tensorbord", "'tensorbord' is not a tracker; use csv, tensorboard"),
        ("wandb,wandb-offline", "names a tracker twice"),
    ],
)
def test_a_wrong_tracker_is_named(names: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"tracker is '{names}'.*{message}"):
        VisionConfig.read(run_config(tracker=names))


def test_a_check_is_of_the_resumed_runs_own_configuration(tmp_path: Path) -> None:
    """A resumed run does not take the configuration of pyproject.toml."""
    original = run_config(strategy="DPSL", sigma_s=1.0, sigma_y=1.0, num_server_rounds=3, lr=0.5)
    Run.create(original, name="x", home=tmp_path)
    overrides = f"resume='latest' run-dir='{tmp_path}' batch-size=8 num-server-rounds=4"
    report = check_app(APPS / "vision", [overrides], here=Path.cwd())
    assert report.ok, report.problems
    assert report.facts["strategy"].startswith("DPSL"), report.facts
    remarks = "\n".join(report.remarks)
    assert "not with that of pyproject.toml: strategy is 'DPSL' (there 'CutMixSFL')" in remarks
    assert "lr is 0.5 (there 0.001)" in remarks
    assert f"ignores what is given now: batch-size is {original['batch-size']}, not 8" in remarks
    assert "num-server-rounds" not in remarks.split("Only")[0]


def test_of_many_wrong_keys_some_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        VisionConfig.read({**run_config(), **{f"wrong-{number}": 1 for number in range(30)}})
    assert str(caught.value).endswith("; and 20 more")
    assert "'wrong-9'" in str(caught.value)
