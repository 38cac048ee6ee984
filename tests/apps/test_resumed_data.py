"""A run is resumed only with the classes and the preprocessing that it began with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from flwr.serverapp import Grid
from PIL import Image

from flwr_splitmix.apps.checking.app import check_app
from flwr_splitmix.apps.language import inputs as of_texts
from flwr_splitmix.apps.language.config import LanguageConfig
from flwr_splitmix.apps.language.server import train as train_language
from flwr_splitmix.apps.vision.data import images_of
from flwr_splitmix.apps.vision.inputs import record_inputs
from flwr_splitmix.apps.vision.server import train as train_vision
from flwr_splitmix.data.texts.sets import _load
from flwr_splitmix.links import LinkError
from flwr_splitmix.runs import Run, RunError
from tests.apps import language_app, vision_app
from tests.apps.app_config import APPS
from tests.apps.vision_fit import read

GRID = cast(Grid, vision_app.Nodes(2))


class Nobody:
    """A grid whose nodes cannot be asked."""

    def get_node_ids(self) -> list[int]:
        raise LinkError("nobody is there")


def pictures(folder: Path, classes: Mapping[str, str], size: int = 8) -> str:
    """Write pictures, each class of one colour; return their folder."""
    for split in ("train", "test"):
        for name, colour in classes.items():
            of_class = folder / split / name
            of_class.mkdir(parents=True)
            for number in range(4):
                Image.new("RGB", (size, size), colour).save(of_class / f"{number}.png")
    return str(folder)


def rows(folder: Path, *labels: str) -> str:
    """Write a file of rows with these labels; return its name."""
    folder.mkdir()
    lines = [f"some words,{label}" for label in labels for _ in range(10)]
    (folder / "rows.csv").write_text("\n".join(["sentence,label", *lines]), encoding="utf-8")
    return str(folder / "rows.csv")


WAS = {"hund": "red", "katze": "blue", "maus": "green"}
RENAMED = {"zhund": "red", "katze": "blue", "maus": "green"}


@pytest.mark.parametrize(
    ("classes", "size", "strategy", "message"),
    [
        (RENAMED, 8, "PSL", "classes from number 0 on are now 'katze', 'maus', 'zhund', and were"),
        (RENAMED, 8, "USplitFL", "classes from number 0 on are now 'katze', 'maus', 'zhund', and"),
        ({**WAS, "ratte": "black"}, 8, "PSL", "from number 3 on are now 'ratte', and were none"),
        (WAS, 4, "PSL", "preprocessing is now {'channels': 3, 'stored_size': (4, 4), 'image_size'"),
    ],
)
def test_other_classes_or_sizes_of_pictures_are_refused(
    classes: Mapping[str, str], size: int, strategy: str, message: str, tmp_path: Path
) -> None:
    """A renamed folder puts the classes in another order: the run would learn permuted labels."""
    keys: dict[str, Any] = {"strategy": strategy, "image_size": 8, "patch_size": 4}
    dataset = pictures(tmp_path / "now", classes, size)
    config = vision_app.run_config(dataset=dataset, run_dir=str(tmp_path), **keys)
    run = Run.create(config, name="x", home=tmp_path)
    began = read(dataset=pictures(tmp_path / "was", WAS), **keys)
    record_inputs(run, images_of(began))
    with pytest.raises(RunError) as raised:
        train_vision(GRID, vision_app.context(0, 2, {**config, "resume": run.id}))
    assert f"run {run.id} began with other data: dataset is {dataset!r}, of which" in str(
        raised.value
    )
    assert message in str(raised.value)
    assert "restore the data as they were, or begin a new run" in str(raised.value)
    overrides = f"resume='latest' run-dir='{tmp_path}'"
    report = check_app(APPS / "vision", [overrides], here=Path.cwd())
    assert [message in problem for problem in report.problems] == [True]


def test_the_same_pictures_pass_the_check(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"strategy": "PSL", "image_size": 8, "patch_size": 4}
    config = vision_app.run_config(dataset=pictures(tmp_path / "was", WAS), **keys)
    run = Run.create(config, name="x", home=tmp_path)
    record_inputs(run, images_of(read(dataset=config["dataset"], **keys)))
    overrides = f"resume='latest' run-dir='{tmp_path}'"
    assert check_app(APPS / "vision", [overrides], here=Path.cwd()).problems == []


def texts(dataset: str, run_dir: Path) -> dict[str, Any]:
    return language_app.run_config(
        **language_app.TINY,
        task="classification",
        strategy="USplitSL",
        dataset=dataset,
        run_dir=str(run_dir),
        num_labels=3,
        attach_timeout=0.1,
    )


@pytest.mark.parametrize("labels", [("pos", "neg"), ("neg", "0pos"), ("a", "neg", "pos")])
def test_other_words_as_labels_are_refused(labels: tuple[str, ...], tmp_path: Path) -> None:
    began = texts(rows(tmp_path / "was", "neg", "pos"), tmp_path)
    config = texts(rows(tmp_path / "now", *labels), tmp_path)
    run = Run.create(config, name="x", home=tmp_path)
    of_texts.record_inputs(run, LanguageConfig.read(began))
    report = check_app(
        APPS / "language", [f"resume='latest' run-dir='{tmp_path}'"], here=Path.cwd()
    )
    if sorted(labels) == ["neg", "pos"]:
        assert report.problems == []
        return
    with pytest.raises(RunError, match=r"the classes from number 0 on are now .*, and were 'neg'"):
        train_language(GRID, vision_app.context(0, 2, {**config, "resume": run.id}))
    assert ["began with other data" in problem for problem in report.problems] == [True]


def test_a_run_of_texts_records_its_classes(tmp_path: Path) -> None:
    config = texts(rows(tmp_path / "rows", "neg", "pos"), tmp_path)
    with pytest.raises(LinkError, match="nobody is there"):
        train_language(cast(Grid, Nobody()), vision_app.context(0, 2, config))
    recorded = Run.open("latest", home=tmp_path).path / "inputs.json"
    assert json.loads(recorded.read_text()) == {"classes": ["neg", "pos", "class 2"]}


def test_texts_that_only_nodes_have_are_not_compared(tmp_path: Path) -> None:
    config = texts(rows(tmp_path / "was", "neg", "pos"), tmp_path)
    run = Run.create(config, name="x", home=tmp_path)
    of_texts.record_inputs(run, LanguageConfig.read(config))
    elsewhere = texts(str(tmp_path / "elsewhere.csv"), tmp_path)
    of_texts.check_inputs(run, LanguageConfig.read(elsewhere))


def test_the_texts_are_not_kept_for_their_classes(tmp_path: Path) -> None:
    """All texts of the clients would otherwise stay in the ServerApp's memory for the whole run."""
    config = language_app.read(
        task="classification", dataset=rows(tmp_path / "data", "yes", "no"), num_labels=2
    )
    run = Run.create({}, name="x", home=tmp_path)
    before = _load.cache_info().misses
    of_texts.record_inputs(run, config)
    assert _load.cache_info().misses == before
    assert json.loads((run.path / "inputs.json").read_text()) == {"classes": ["no", "yes"]}


@pytest.mark.parametrize("wrong", ["neg", ["neg", None], [1, 2]])
def test_a_damaged_record_of_the_classes_is_named(wrong: Any, tmp_path: Path) -> None:
    config = language_app.read(
        task="classification", dataset=rows(tmp_path / "data", "yes", "no"), num_labels=2
    )
    run = Run.create({}, name="x", home=tmp_path)
    (run.path / "inputs.json").write_text(json.dumps({"classes": wrong}))
    with pytest.raises(RunError, match=r"inputs.json.* which is not a list of names"):
        of_texts.check_inputs(run, config)
