"""Values on the command line of `flwr`, as Flower and `splitmix check` read them; its errors."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import parse_config_args

from flwr_splitmix.apps.configuration.overrides import read_overrides
from flwr_splitmix.flwr_command import Flwr, FlwrError, config_text

VALUES: dict[str, Any] = {
    "plain": "vit_tiny",
    "empty": "",
    "blanks": " two  words ",
    "equals": "a=b c='d'",
    "one": "it's",
    "two": 'a "quoted" word',
    "both": """it's a "quoted" word""",
    "backslash": r"C:\new\table",
    "backslashes": "it's C:\\new\\",
    "escaped": r"it's \" and \u0022",
    "lines": "one\ntwo\r\n\tthree",
    "control": "\x00\x1b\x7f",
    "unicode": "Zürich \u2028 数据 🎲\u00a0",
    "file": "keys.toml",
    "yes": True,
    "no": False,
    "whole": -3,
    "float": 1e-9,
    "infinite": float("inf"),
}


@pytest.mark.parametrize("key", VALUES)
def test_a_value_is_read_as_it_was_written(key: str) -> None:
    written = config_text({key: VALUES[key]})
    assert parse_config_args([written]) == {key: VALUES[key]}
    assert read_overrides([written], Path("/"), "own") == {key: VALUES[key]}


def test_values_stay_apart() -> None:
    assert parse_config_args([config_text(VALUES)]) == VALUES


def test_a_text_that_is_no_unicode_is_refused() -> None:
    """The name of a folder may be in any encoding; Flower's messages are Unicode."""
    with pytest.raises(FlwrError, match="which is not Unicode text"):
        config_text({"run-dir": os.fsdecode(b"caf\xe9")})


def test_what_flwr_says_of_a_failure_becomes_a_sentence(tmp_path: Path) -> None:
    flwr = Flwr(None, {**os.environ, "FLWR_HOME": str(tmp_path / "flwr")})
    missing = tmp_path / "missing"
    with pytest.raises(FlwrError) as caught:
        flwr.start(missing, "", [])
    sentence = str(caught.value)
    assert sentence.startswith("flwr run: ")
    assert str(missing) in sentence.replace(" ", "")
    assert "\n" not in sentence
    assert "│" not in sentence


def test_flwr_must_be_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FlwrError, match="there is no flwr in this environment"):
        Flwr(None)
