"""Folders of models that cannot be used: the reason is told, and nothing in them runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flwr_splitmix.segments.language.sources import open_source


def test_code_that_comes_with_a_model_never_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}
    (tmp_path / "config.json").write_text(json.dumps(asked))
    (tmp_path / "own.py").write_text("raise SystemExit('the code ran')\n")
    monkeypatch.setattr("builtins.input", lambda _: "y")  # transformers asks by default
    with pytest.raises(ValueError, match="custom code"):
        open_source(tmp_path)
