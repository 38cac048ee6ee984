"""Paths in a run configuration: relative to where the command is typed, not to where apps run."""

from __future__ import annotations

from pathlib import Path

import pytest

from flwr_splitmix.apps.config_error import unknown_key
from flwr_splitmix.apps.language.config import LanguageConfig
from flwr_splitmix.apps.project import NO_PATHS, PATHS, absolute
from flwr_splitmix.apps.vision.config import VisionConfig


@pytest.mark.parametrize("key", sorted(PATHS))
def test_an_existing_relative_path_becomes_absolute(key: str, tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    assert absolute(key, "here", tmp_path) == str(tmp_path / "here")
    assert absolute(key, "/there", tmp_path) == "/there"
    assert absolute(key, "~/there", tmp_path) == "~/there"


@pytest.mark.parametrize("name", sorted(NO_PATHS))
def test_a_shipped_name_stays_one_even_beside_a_file_of_that_name(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / name).touch()
    assert absolute("dataset", name, tmp_path) == name


def test_every_key_that_names_a_file_is_known() -> None:
    """The token of a mixer was looked for in the app's working directory."""
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
    said = "run-config has an unknown key 'lr'; this app has no keys; leave it out"
    assert unknown_key("lr", {}) == said
