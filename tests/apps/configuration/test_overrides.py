"""Values of `--run-config`; paths are relative to where it is typed, not to where apps run."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from flwr_splitmix.apps.configuration.error import ConfigError, unknown_key
from flwr_splitmix.apps.configuration.key_hints import MEANINGS
from flwr_splitmix.apps.configuration.overrides import (
    NO_PATHS,
    PATHS,
    absolute,
    read_overrides,
    run_values,
)
from flwr_splitmix.apps.configuration.project import open_project
from flwr_splitmix.apps.language.config import LanguageConfig
from flwr_splitmix.apps.vision.config import VisionConfig
from tests.apps.app_config import APPS


@pytest.mark.parametrize("key", sorted(PATHS))
def test_an_existing_relative_path_becomes_absolute(key: str, tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    assert absolute(key, "here", tmp_path, "language") == str(tmp_path / "here")
    assert absolute(key, "/there", tmp_path, "language") == "/there"
    assert absolute(key, "~/there", tmp_path, "language") == "~/there"


@pytest.mark.parametrize("name", sorted(NO_PATHS))
def test_a_shipped_name_stays_one_even_beside_a_file_of_that_name(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / name).touch()
    assert absolute("dataset", name, tmp_path, "vision") == name


def test_a_model_that_is_only_a_name_stays_one_even_beside_a_folder_of_that_name(
    tmp_path: Path,
) -> None:
    """With its path, the vision app would say that timm has no such model."""
    (tmp_path / "lenet5").mkdir()
    vision = run_values(open_project(APPS / "vision"), ["model='lenet5'"], tmp_path)
    assert vision["model"] == "lenet5"
    language = run_values(open_project(APPS / "language"), ["model='lenet5'"], tmp_path)
    assert language["model"] == str(tmp_path / "lenet5")


def test_a_model_of_an_own_app_is_a_path_if_it_is_written_as_one(tmp_path: Path) -> None:
    """Only the app knows whether it takes names or folders; Flower hands on what was written."""
    (tmp_path / "lenet5").mkdir()
    assert read_overrides(["model='lenet5'"], tmp_path, "own") == {"model": "lenet5"}
    of_path = read_overrides(["model='./lenet5'"], tmp_path, "own")
    assert of_path == {"model": str(tmp_path / "lenet5")}


def test_every_key_that_names_a_file_is_known() -> None:
    """Or the token of a mixer, say, would be looked for in the app's working directory."""
    keys = {
        name.replace("_", "-")
        for config in (VisionConfig, LanguageConfig)
        for name in config.model_fields
    }
    of_files = {
        key for key in keys if key.endswith(("file", "-ca", "via-token", "-dir", "dataset"))
    }
    assert of_files <= PATHS
    assert keys >= PATHS


def test_an_app_without_keys_says_so() -> None:
    message = "run-config has an unknown key 'lr'; this app has no keys; leave it out"
    assert unknown_key("lr", {}) == message


@pytest.mark.parametrize("app", ["vision", "language"])
@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("learning-rate", "lr"),
        ("leraning_rate", "lr"),
        ("rounds", "num-server-rounds"),
        ("epochs", "epochs-per-round"),
        ("batch", "batch-size"),
        ("batchsize", "batch-size"),
        ("Weight_Decay", "weight-decay"),
        ("method", "strategy"),
        ("data", "dataset"),
        ("random-seed", "seed"),
    ],
)
def test_a_key_of_other_programs_is_taken_for_ours(app: str, key: str, meant: str) -> None:
    keys = open_project(APPS / app).config
    assert unknown_key(key, keys).endswith(f"unknown key {key!r}; did you mean {meant!r}?")


def test_no_key_is_suggested_that_the_app_has_not() -> None:
    for key in ("learning-rate", "rounds", "num-classes"):
        assert "did you mean" not in unknown_key(key, ["colour", "size-of-hat"])
    assert "'num-labels'" not in unknown_key("num-classes", open_project(APPS / "vision").config)
    own = ["num-clients", "num-workers", "epoch", "local-epoch"]
    for key, meant in (
        ("num_clients", "num-clients"),
        ("workers", "num-workers"),
        ("epochs", "epoch"),
        ("local-epochs", "local-epoch"),
    ):
        assert f"did you mean '{meant}'" in unknown_key(key, own)


def test_every_key_with_other_names_is_one_of_an_app_and_no_other_name_is() -> None:
    keys = {key for app in ("vision", "language") for key in open_project(APPS / app).config}
    assert set(MEANINGS) <= keys
    assert not keys & {other for others in MEANINGS.values() for other in others}


@pytest.mark.parametrize("key", ["clients", "num_clients", "num-supernodes", "nodes"])
@pytest.mark.parametrize("app", ["vision", "language"])
def test_the_number_of_clients_is_told_to_be_no_key(app: str, key: str) -> None:
    message = unknown_key(key, open_project(APPS / app).config)
    assert "--nodes" in message
    assert "num-supernodes=N" in message


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("lr=", "--run-config has 'lr=' without a value; write lr=VALUE"),
        ("k=2 lr= seed=1", "--run-config has 'lr=' without a value; write lr=VALUE"),
        ("lr =1", "--run-config has a blank beside the '=' at 'lr =1'; write key=value without"),
        ("lr= 1", "--run-config has a blank beside the '=' at 'lr= 1'; write key=value without"),
        ("lr=1e-3 k=2 lr=1e-4", "--run-config has lr twice; write it once"),
        (
            "lr=.01",
            "lr is .01, which is not a TOML number; write --run-config lr=0.01, "
            "or \"lr='.01'\" for a text",
        ),
        (
            "lr=5.",
            "lr is 5., which is not a TOML number; write --run-config lr=5.0, "
            "or \"lr='5.'\" for a text",
        ),
        (
            "k=02",
            "k is 02, which is not a TOML number; write --run-config k=2, or \"k='02'\" for a text",
        ),
        (
            "alpha=Inf",
            "alpha is Inf, which is not a TOML number; write --run-config alpha=inf, "
            "or \"alpha='Inf'\" for a text",
        ),
    ],
)
def test_what_is_wrong_with_a_pair_is_named(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        read_overrides([text], tmp_path, "own")
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("lr=1e-3, seed=1", "lr=1e-3 seed=1"),
        ("lr=1e-3; seed=1;", "lr=1e-3 seed=1"),
        ("lr=1e-3,seed=1", "lr=1e-3 seed=1"),
        ("strategy='PSL', k=2 , seed=1", "strategy='PSL' k=2 seed=1"),
        ('label="a, b=c",k=2', 'label="a, b=c" k=2'),
    ],
)
def test_keys_between_commas_are_told_to_be_between_blanks(
    text: str, remedy: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="blanks separate keys: write ") as refused:
        read_overrides([text], tmp_path, "own")
    (command,) = re.findall("write --run-config (.*)", str(refused.value))
    assert shlex.split(command) == [remedy]
    read_overrides([remedy], tmp_path, "own")  # a remedy that is not refused itself


@pytest.mark.parametrize("text", ["label='a, b=c'", 'label="a, b=c;"', "label='a,' k=2", "k=2 "])
def test_commas_within_quotes_are_the_texts_own(text: str, tmp_path: Path) -> None:
    assert read_overrides([text], tmp_path, "own")


@pytest.mark.parametrize(
    "value", ["9" * 5000, "[" * 3000 + "]" * 3000, "{a=" * 3000 + "1" + "}" * 3000],
    ids=["long number", "deep lists", "deep tables"],
)  # fmt: skip
@pytest.mark.parametrize("in_file", [False, True])
def test_what_toml_cannot_hold_is_told(value: str, in_file: bool, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(f"lr = {value}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"cannot be read: (it is nested too|Exceeds the limit)"):
        read_overrides(["mine.toml" if in_file else f"lr={value}"], tmp_path, "own")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("[1, 2]", "[1, 2]"),
        ("2020-01-01", "datetime.date(2020, 1, 1)"),
        ("[{k = 1}]", "[{'k': 1}]"),
    ],
)
def test_a_value_that_flower_does_not_take_is_refused(
    value: str, shown: str, tmp_path: Path
) -> None:
    allowed = "a value is a text, a number, true or false"
    (tmp_path / "mine.toml").write_text(f"lr = {value}\nk = 1\nseed = {value}", encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        read_overrides(["mine.toml"], tmp_path, "own")
    assert str(refused.value) == "; ".join(
        f"{key} is {shown} in mine.toml; {allowed}" for key in ("lr", "seed")
    )
    written = value.replace(" ", "")
    with pytest.raises(ConfigError) as refused:
        read_overrides([f"lr={written}"], tmp_path, "own")
    assert str(refused.value) == f"lr is {written}; {allowed}"


def test_a_key_of_very_many_parts_is_told(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("a." * 5000 + "a = 1", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be read: it is nested too deeply"):
        read_overrides(["mine.toml"], tmp_path, "own")


@pytest.mark.usefixtures("impatient")
def test_keys_are_read_from_regular_files_only(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(ConfigError, match=r"pipe\.toml, which cannot be read: it is not a regular"):
        read_overrides(["pipe.toml"], tmp_path, "own")


def test_pairs_change_what_a_file_before_them_has(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("lr = 1.0\nk = 3", encoding="utf-8")
    assert read_overrides(["mine.toml", "lr=2.0"], tmp_path, "own") == {"lr": 2.0, "k": 3}


@pytest.mark.parametrize(
    ("texts", "where"),
    [
        (["lr=2.0 k=2", "lr=3.0"], ""),
        (["mine.toml", "lr=2.0", "lr=2.0"], ""),
        (["lr=2.0", "mine.toml"], ", the second time in mine.toml"),
        (["mine.toml", "other.toml"], ", the second time in other.toml"),
    ],
)
def test_a_key_in_two_options_is_refused(texts: list[str], where: str, tmp_path: Path) -> None:
    """Flower takes the last value, without a word of the others."""
    for name in ("mine.toml", "other.toml"):
        (tmp_path / name).write_text("lr = 1.0", encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        read_overrides(texts, tmp_path, "own")
    assert str(refused.value) == f"--run-config has lr twice{where}; write it once"
