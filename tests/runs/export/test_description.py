"""Descriptions of exported models that are damaged, or made to do harm."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from flwr_splitmix.cli import app
from tests.apps.language_app import fit
from tests.runs.export.conftest import Exported

Make = Callable[..., Exported]
Splitmix = Callable[..., Result]

HUGE = 10**12
ARGUMENTS = "segments.arguments"


def changed(facts: Any, changes: Mapping[str, Any]) -> Any:
    """Return JSON values with some changed, by their path; with None, those are left out."""
    for path, value in changes.items():
        *parents, last = path.split(".")
        entry = facts
        for name in parents:
            entry = entry[name]
        entry[last] = value
        if value is None:
            del entry[last]
    return facts


def predict(folder: Path, file: str, changes: Mapping[str, Any], *arguments: str | Path) -> Result:
    described = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(changed(described, changes)))
    words = ["predict", str(folder), *map(str, arguments)]
    return CliRunner().invoke(app, words)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": ["vision"]}, "Input tag '['vision']' found using 'kind'"),
        *(({name: None}, f"{name}: ") for name in ("classes", "preprocessing", "segments")),
        ({"segments": {}}, "segments: Unable to extract tag using discriminator 'made_by'"),
        ({"segments.made_by": "x"}, "segments: Input tag 'x'"),
        ({f"{ARGUMENTS}.name": 5}, "segments.arguments.name: Input should be a valid string"),
        ({f"{ARGUMENTS}.x": 1}, "segments.arguments.x: Extra inputs are not permitted"),
        # An option of timm's, which would read a pickle.
        ({f"{ARGUMENTS}.checkpoint_path": "x.pth"}, "segments.arguments.checkpoint_path: Extra"),
        ({f"{ARGUMENTS}.channels": -1}, "segments.arguments.channels is -1, but preprocessing"),
        ({f"{ARGUMENTS}.num_classes": HUGE}, f"num_classes is {HUGE}, but classes has 10"),
        ({f"{ARGUMENTS}.image_size": HUGE}, "image_size: Input should be less than or equal to"),
        ({f"{ARGUMENTS}.depth": HUGE}, f"depth is {HUGE}, but there are "),
        (
            {f"{ARGUMENTS}.name": "vit_giant_patch14_224", f"{ARGUMENTS}.depth": 9},
            "its sizes are those of a model of 0.8 GiB, but the weights beside it have 0.0 GiB",
        ),
        ({f"{ARGUMENTS}.patch_size": 5}, "segments.arguments: patch_size 5 does not divide"),
        ({"classes": [["a"], ["b"]]}, "classes.0: Input should be a valid string"),
        ({"multi_label": "no"}, "multi_label: Input should be a valid boolean"),
        ({"preprocessing.stored_size": [HUGE, HUGE]}, "preprocessing.stored_size is larger"),
        ({"preprocessing.mean": {}}, "preprocessing: this is not a description of a preprocessing"),
    ],
    ids=str,
)
def test_a_vision_model(
    changes: dict[str, Any], message: str, vision: Path, pictures: list[Path]
) -> None:
    refused = predict(vision, "splitmix.json", changes, pictures[0])
    assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1), refused.exception
    assert refused.stderr.startswith(f"cannot read {vision / 'splitmix.json'}: ")
    assert message in refused.stderr
    assert refused.stderr.endswith("; export the run again\n")


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        *(("splitmix.json", {name: None}, f"{name}: Field required")
          for name in ("classes", "task", "max_length", "max_new_tokens")),
        *(("splitmix.json", {"prompt": prompt}, "prompt has no place for a question")
          for prompt in (None, "Answer:", "{0:>1000000000}", "{}{}")),
        ("splitmix.json", {"max_length": HUGE}, "max_length: Input should be less than"),
        ("splitmix.json", {"max_new_tokens": -1}, "max_new_tokens: Input should be greater than"),
        ("config.json", {"num_hidden_layers": HUGE, "layer_types": None}, "is 1000000000000"),
        ("config.json", {"num_labels": HUGE}, "num_labels is 1000000000000, but 0 classes have"),
        ("config.json", {"vocab_size": HUGE}, "its sizes are those of a model of 59,604.6 GiB"),
    ],
    ids=str,
)  # fmt: skip
def test_a_language_model(file: str, changes: dict[str, Any], message: str, language: Path) -> None:
    refused = predict(language, file, changes, "--text", "Who sees?")
    assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1), refused.exception
    assert refused.stderr.startswith(f"cannot read {language / file}: ")
    assert message in refused.stderr
    assert refused.stderr.endswith("; export the run again\n")


def test_a_tokenizer_that_fails_at_the_question_is_told(language: Path) -> None:
    changes = {"model_max_length": "x"}
    refused = predict(language, "tokenizer_config.json", changes, "--text", "Who sees?")
    assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1), refused.exception
    assert refused.stderr.startswith(
        "the tokenizer fails at a text, so its files may be damaged (TypeError: "
    )


@pytest.mark.parametrize(
    "settings", [{"num_beams": "x"}, {"num_beams": 1000}, {"max_length": 2}], ids=str
)
def test_settings_for_generation_change_no_answer(settings: dict[str, Any], language: Path) -> None:
    arguments = ("--text", "Who sees?")
    answer = predict(language, "splitmix.json", {}, *arguments).stdout
    completed = predict(language, "generation_config.json", settings, *arguments)
    assert (completed.exit_code, completed.stdout, completed.stderr) == (0, answer, "")


def test_question_and_answer_are_no_longer_than_the_model_allows(language: Path) -> None:
    refused = predict(language, "splitmix.json", {"max_new_tokens": 2**20}, "--text", "Who " * 500)
    assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1), refused.exception
    assert (
        "the model takes 512 tokens, question and answer together; the question has"
        in refused.stderr
    )
    arguments = ("--text", "Who sees?", "--max-new-tokens", str(HUGE))
    refused = predict(language, "splitmix.json", {}, *arguments)
    assert f"and {HUGE} may follow: make it shorter, or lower --max-new-tokens\n" in refused.stderr
    assert predict(language, "splitmix.json", {}, *arguments[:2]).exit_code == 0


@pytest.fixture
def vision(make: Make, splitmix: Splitmix, tmp_path: Path) -> Path:
    assert splitmix("export", make("CutMixSFL").run.id, tmp_path / "model").exit_code == 0
    return tmp_path / "model"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("language")
    run = fit(home, strategy="USplitFL", task="generation").strategy.recorder.run
    assert run is not None
    words = ["export", run.id, str(home / "model"), "--run-dir", str(run.path.parents[1])]
    assert CliRunner().invoke(app, words).exit_code == 0
    return home / "model"


@pytest.fixture
def language(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "model"))
