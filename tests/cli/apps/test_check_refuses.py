"""`splitmix check` refuses what no run could begin with, whatever its file holds."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.configuration.project import open_project
from flwr_splitmix.cli import app
from flwr_splitmix.cli.apps.new import renamed
from flwr_splitmix.flwr_command import Flwr
from flwr_splitmix.sandbox.certificates import make_certificates
from tests.apps.app_config import APPS
from tests.segments.language.tiny_models import config_of, whole_model


def check(*typed: object) -> Result:
    return CliRunner().invoke(app, ["check", *map(str, typed)])


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ("tool = 3", "has tool = 3; it must be a table, [tool.flwr.app.components]"),
        ("tool.flwr = 3", "has tool.flwr = 3; it must be a table, [tool.flwr.app.components]"),
        ("tool.flwr.app.components = 3",
         "has tool.flwr.app.components = 3; it must be a table, [tool.flwr.app.components]"),
        ("tool.flwr.app.config = 3",
         "has tool.flwr.app.config = 3; it must be a table, [tool.flwr.app.config]"),
        ('project = 3\n[tool.flwr.app.components]\nserverapp = "a:b"\nclientapp = "a:b"',
         "has project = 3; it must be a table, [project]"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["check", "run"])
def test_what_must_be_a_table_is_one(
    command: str, described: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text(described, encoding="utf-8")
    result = CliRunner().invoke(app, [command, str(tmp_path)])
    assert (result.exit_code, result.stderr) == (1, f"{tmp_path / 'pyproject.toml'} {message}\n")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("name = ", "#", 'has no name in [project], .*; write there name = "my-app"'),
        ("version = ", "#", 'has no version in [project], .*; write there version = "1.0.0"'),
        ("publisher = ", "#", "has no publisher in [tool.flwr.app], .*; write there publisher ="),
        ('name = "', 'name = "3', "has name = '3.*', which Flower refuses; it must be up to 32"),
        ('name = "', 'name = "' + 32 * "x", "has name = 'xxx.*', which Flower refuses"),
        ('name = "', 'name = "a_b', "has name = 'a_b.*', which Flower refuses"),
        ("k = ", "k = [1]#", "has k = [1] in [tool.flwr.app.config], which Flower refuses; a"),
        ("k = ", "k.x = 2026-01-01#", "has k.x = datetime.* in [tool.flwr.app.config], which"),
    ],
)
@pytest.mark.parametrize("command", ["check", "run"])
def test_what_flower_does_not_run_is_refused(
    command: str,
    before: str,
    after: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(Flwr, "start")  # a test that fails must leave no SuperLink behind
    shutil.copytree(APPS / "vision", tmp_path / "own")
    file = tmp_path / "own" / "pyproject.toml"
    described = file.read_text(encoding="utf-8")
    assert f"\n{before}" in described
    file.write_text(described.replace(f"\n{before}", f"\n{after}", 1), encoding="utf-8")
    result = CliRunner().invoke(app, [command, str(tmp_path / "own")])
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert re.match(re.escape(f"{file} {message}").replace(r"\.\*", ".*"), result.stderr)


def test_what_flower_wants_of_an_app_of_format_1_is_asked_for(tmp_path: Path) -> None:
    """Each of these is refused by `flwr run`."""
    project = shutil.copytree(APPS.parent / "examples/other_project", tmp_path / "own")
    file = project / "pyproject.toml"
    described = file.read_text(encoding="utf-8")
    for before, after, message in (
        ("publisher = ", "fab-format-version = 1\npublisher = ",
         'in [tool.flwr.app], .*; write there flwr-version-target = "1.32.0"'),
        ("publisher = ", 'flwr-version-target = "1.32.0"\npublisher = ',
         'in [project], .*; write there license = { file = "LICENSE" }'),
        ("project = { ", 'project = { license = { file = "LICENSE" }, ',
         "has fab-format-version = 1, and no lowest version of flwr among the dependencies in"),
        ("project = { ", 'project = { dependencies = ["numpy", "flwr"], ',
         '; write there dependencies = ["flwr>=1.32"]'),
    ):  # fmt: skip
        described = described.replace(before, after)
        file.write_text(described, encoding="utf-8")
        with pytest.raises(ConfigError, match=re.escape(message).replace(r"\.\*", ".*")):
            open_project(project)
    file.write_text(described.replace('"flwr"', '"flwr>=1.32"'), encoding="utf-8")
    assert open_project(project).dependencies == ["numpy"]


def test_letters_of_any_alphabet_make_a_name(tmp_path: Path) -> None:
    shutil.copytree(APPS / "vision", tmp_path / "own")
    file = tmp_path / "own" / "pyproject.toml"
    described = file.read_text(encoding="utf-8")
    file.write_text(renamed(described, "größe-2"), encoding="utf-8")
    assert open_project(tmp_path / "own").name == "größe-2"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("label='a\nb'", r"""label is "'a\nb'", which has a line break or another control"""),
        ("label=\"a\x1bb\"", "control character; write it in one line, without"),
        ("batch-size=1" + 40 * "0", "; input should be less than or equal to 65536"),
        ("model='resnet18' batch-size=1",
         "batch-size is 1, but batch normalisation in the upper segment needs more than one value"),
        ("resume='../x'", "resume is '../x', but '../x' is not a run's id: an id is a name"),
        ("resume='latest' run-dir='/nonexistent'",
         "resume is 'latest', but there are no runs in /nonexistent/runs"),
        ("tracker='foo'", "tracker is 'foo'; 'foo' is not a tracker; use csv, tensorboard"),
        ("tracker='csv,'", "tracker is 'csv,'; '' is not a tracker; use csv, tensorboard"),
        ("resume='latest' run-dir='~nobody-here/x'",
         "resume is 'latest', but cannot find the folder '~nobody-here/x'"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_found(keys: str, message: str) -> None:
    result = check(APPS / "vision", "--no-cuts", "--run-config", keys)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1), result.exception
    assert message in result.stderr


@pytest.mark.parametrize("command", ["check", "run"])
def test_the_name_of_a_file_cannot_command_the_terminal(command: str, tmp_path: Path) -> None:
    """Printed as they are, a data set could move the cursor and hide what was said."""
    for split in ("train", "test"):
        (tmp_path / split / "a").mkdir(parents=True)
        (tmp_path / split / "a" / "\x1b[31mx\u202e.png").write_bytes(b"no picture")
    typed = [command, str(APPS / "vision"), "--run-config", f"dataset='{tmp_path}'"]
    result = CliRunner().invoke(app, typed)
    assert result.exit_code == 1
    assert r"/train/a/\x1b[31mx\u202e.png cannot be read as a picture" in result.stderr


def test_a_certificate_for_another_host_than_nodes_dial_is_found(tmp_path: Path) -> None:
    """Otherwise the check would pass, and the run end when its link opens."""
    files = make_certificates(tmp_path, ("localhost",))
    keys = (
        f"link='stream' ssl-certfile='{files.certificate}' ssl-keyfile='{files.key}' "
        f"ssl-ca-certfile='{files.ca}' link-advertise="
    )
    message = "nodes would dial x.example, but the link's certificate is made for localhost"
    result = check(APPS / "vision", "--no-cuts", "--run-config", keys + "'x.example:9443'")
    assert (result.exit_code, message in result.stderr) == (1, True), result.output
    result = check(APPS / "vision", "--no-cuts", "--run-config", keys + "'localhost:9443'")
    assert result.exit_code == 0, result.output


def test_smashed_data_larger_than_the_memory_are_remarked(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.sysconf
    monkeypatch.setattr(os, "sysconf", lambda key: 1 if key == "SC_PHYS_PAGES" else real(key))
    result = check(APPS / "vision", "--no-cuts", "--run-config", "batch-size=65536")
    assert "alone take 1.5 GiB at the server, and this machine has" in result.stdout
    assert "a smaller batch-size or image-size needs less" in result.stdout
    monkeypatch.undo()
    result = check(APPS / "vision", "--no-cuts")
    assert "GiB" not in result.stdout


def test_a_batch_that_no_server_takes_is_found() -> None:
    keys = "batch-size=65536 image-size=256"
    result = check(APPS / "vision", "--no-cuts", "--nodes", "2", "--run-config", keys)
    assert result.exit_code == 1
    assert (
        "have 12,884,901,888 numbers; at most 1,073,741,824 can travel: a smaller" in result.stderr
    )


@pytest.mark.parametrize(
    ("option", "typed"),
    [("--uplink", "fast"), ("--uplink", "nanmbit"), ("--uplink", "-1mbit"), ("--rtt", "nanms")],
)
@pytest.mark.parametrize("cuts", ["--cuts", "--no-cuts"])
def test_what_is_no_speed_is_refused(cuts: str, option: str, typed: str) -> None:
    result = check(APPS / "vision", cuts, option, typed)
    assert result.exit_code == 2
    assert option in result.output


@pytest.mark.parametrize("damage", ["truncated", "of another size"])
def test_a_model_whose_weights_do_not_fit(damage: str, tmp_path: Path) -> None:
    """The check says what the run would end with."""
    whole_model(config_of("llama"), dtype="float32").save_pretrained(
        tmp_path, max_shard_size="20KB"
    )
    file = sorted(tmp_path.glob("*.safetensors"))[-1]
    message = f"cannot be used: {file.name} of '{tmp_path}' cannot be read (SafetensorError"
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        larger = config_of("llama")
        larger.intermediate_size = 48
        larger.save_pretrained(tmp_path)
        message = "in the model that was asked for"
    keys = f"model='{tmp_path}' max-length=48 strategy='USplitSL' head-layers=1 tail-layers=1"
    result = check(APPS / "language", "--no-cuts", "--run-config", keys)
    assert (result.exit_code, message in result.stderr) == (1, True), result.output
