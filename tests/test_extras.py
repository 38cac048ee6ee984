"""A package that is missing is named with the extra that installs it; lazy names are listed."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

import flwr_splitmix
from flwr_splitmix import cli, runs, strategies
from flwr_splitmix.extras import EXTRAS, MissingExtraError, how_to_install, needed_for
from flwr_splitmix.sandbox.flower import LocalFlower
from flwr_splitmix.scoring.answers import bleu, meteor, rouge_l
from flwr_splitmix.segments import split_vision_model

ROOT = Path(__file__).parents[1]


def extras() -> dict[str, set[str]]:
    loaded = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    declared: dict[str, list[str]] = loaded["project"]["optional-dependencies"]
    return {
        extra: {_plain(Requirement(line).name) for line in lines}
        for extra, lines in declared.items()
    }


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_each_extra_has_the_packages_that_it_is_named_for() -> None:
    declared, installed = extras(), packages_distributions()
    for package, extra in EXTRAS.items():
        if package == "ray":
            continue  # flwr[simulation] brings it
        names = {_plain(name) for name in installed.get(package, [package])}
        if package == "datasets":
            names.add("flwr-datasets")
        assert names & declared[extra], package


CASES: list[tuple[str, str, Callable[[], Any]]] = [
    ("timm", "vision", lambda: split_vision_model("vit_tiny_patch16_224")),
    ("rouge_score.rouge_scorer", "language", lambda: rouge_l(["a"], ["a"])),
    ("nltk.translate.meteor_score", "language", lambda: meteor(["a"], ["a"])),
    ("sacrebleu", "language", lambda: bleu(["a"], ["a"])),
    ("psutil", "simulation", LocalFlower),
]


@pytest.mark.parametrize(("module", "extra", "call"), CASES, ids=[case[0] for case in CASES])
def test_a_missing_package_is_said_with_its_extra(
    module: str, extra: str, call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError) as caught:
        call()
    assert str(caught.value).endswith(f": {how_to_install(extra)}")


def test_language_models_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("flwr_splitmix.segments.lang")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"'transformers': pip install '\.\[la"):
        importlib.import_module("flwr_splitmix.segments.language")


def test_another_missing_module_is_no_matter_of_extras() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), needed_for("this"):
        importlib.import_module("no_such_module")


def test_the_command_line_says_it_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def listing(home: Any) -> None:
        raise ModuleNotFoundError("No module named 'timm'", name="timm")

    monkeypatch.setattr(runs.Run, "all", listing)
    invocation = CliRunner().invoke(cli.app, ["runs"])
    assert invocation.exit_code == 1
    assert invocation.stderr == (
        "this command needs the package 'timm': "
        "pip install '.[vision]' in a checkout of flwr-splitmix\n"
    )


def test_the_version_is_that_of_the_distribution() -> None:
    assert flwr_splitmix.__version__ == version("flwr-splitmix")


@pytest.mark.parametrize("module", [flwr_splitmix, strategies, runs], ids=lambda m: m.__name__)
def test_lazy_names_are_listed(module: Any) -> None:
    assert set(module.__all__) <= set(dir(module))
    assert all(getattr(module, name) is not None for name in module.__all__)
