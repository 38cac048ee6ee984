"""load_images: which source a string means, idx folders, the cache, and what is not needed."""

from __future__ import annotations

import errno
import gzip
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flwr_splitmix.data import DataError, load_images
from flwr_splitmix.data.images.idx import read_idx_split

IdxWriter = Callable[..., Path]


def test_the_shipped_set_is_normalised_to_about_0_and_1() -> None:
    sets = load_images("fashion-mnist-small", image_size=28)
    images, _ = sets.train.batch(np.arange(6000))
    assert images.shape == (6000, 1, 28, 28)
    assert abs(images.mean().item()) < 0.02
    assert abs(images.std().item() - 1) < 0.02
    assert sets.classes[9] == "Ankle boot"
    assert sets.name == "fashion-mnist-small"


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_are_read_packed_or_plain(write_idx_set: IdxWriter, packed: bool) -> None:
    folder = write_idx_set([0, 1, 2, 1], [2, 0])
    expected = read_idx_split(folder, "test").images
    if not packed:
        for path in list(folder.iterdir()):
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()
    sets = load_images(str(folder))
    assert sets.classes == ("0", "1", "2")
    assert sets.train.labels.tolist() == [0, 1, 2, 1]
    assert sets.train.mean == (0.2860,)
    assert sets.train.std == (0.3530,)
    pixels = (sets.test.batch(np.arange(2))[0] * 0.3530 + 0.2860)[..., 2:30, 2:30] * 255
    np.testing.assert_allclose(pixels.numpy(), expected, atol=1e-3)


def test_classes_have_their_names_if_the_folder_says_fashion(write_idx_set: IdxWriter) -> None:
    labels = list(range(10))
    assert load_images(str(write_idx_set(labels, labels, name="FashionMNIST"))).classes[8] == "Bag"
    assert load_images(str(write_idx_set(labels, labels, name="kmnist"))).classes[8] == "8"


def test_large_idx_images_are_shrunk_as_pillow_would(write_idx_set: IdxWriter) -> None:
    folder = write_idx_set([0], [0], size=40)
    shrunk = load_images(str(folder), image_size=16).train[0][0][0] * 0.3530 + 0.2860
    original = Image.fromarray(read_idx_split(folder, "train").images[0, 0])
    pillow = np.asarray(original.resize((16, 16), Image.Resampling.BILINEAR))
    assert np.abs(shrunk.numpy() * 255 - pillow).max() <= 1.01


def test_grey_images_are_repeated_for_three_channels() -> None:
    image = load_images("fashion-mnist-small", channels=3).train[5][0]
    assert image.shape == (3, 32, 32)
    assert image[0].equal(image[1])
    assert image[0].equal(image[2])


def test_the_same_request_is_read_once(write_idx_set: IdxWriter) -> None:
    source = str(write_idx_set([0], [0]))
    assert load_images(source) is load_images(source, image_size=32, channels=None)
    assert load_images(source) is not load_images(source, image_size=40)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([0, 1], [0, 7], "test split of .* has the class '7', of which the training split has no"),
        ([], [0], "training split of .* holds no image"),
        ([0], [], "test split of .* holds no image"),
    ],
)
def test_idx_splits_must_fit_together(
    write_idx_set: IdxWriter, train: list[int], test: list[int], message: str
) -> None:
    source = str(write_idx_set(train, test))
    with pytest.raises(DataError, match=message):
        load_images(source)


def test_a_missing_idx_file_is_named(write_idx_set: IdxWriter) -> None:
    folder = write_idx_set([0], [0])
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="has neither t10k-labels-idx1-ubyte nor"):
        load_images(str(folder))


@pytest.mark.parametrize(
    "source", ["", "fashion-mnist-smal", "/no/such/folder", "./absent/set", "a/b/c", "x" * 5000]
)
def test_any_other_string_is_refused_with_what_is_allowed(source: str) -> None:
    with pytest.raises(DataError, match="there is no image dataset") as caught:
        load_images(source)
    for allowed in ("fashion-mnist-small", "idx files", "train/<class>/", "save_to_disk", "hub"):
        assert allowed in str(caught.value)


def test_an_empty_folder_and_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no image dataset: use"):
        load_images(str(tmp_path))
    (tmp_path / "a.png").touch()
    with pytest.raises(DataError, match="is a file, not a folder"):
        load_images(str(tmp_path / "a.png"))


def test_class_folders_without_a_split_are_named(tmp_path: Path) -> None:
    for name in ("cat", "dog", "notes"):
        (tmp_path / name).mkdir()
    for picture in ("cat/1.png", "dog/2.JPG", "notes/read.me"):
        (tmp_path / picture).touch()
    message = r"has pictures in cat/ and dog/, but no split: put these into train/, .* into test/$"
    with pytest.raises(DataError, match=message):
        load_images(str(tmp_path))


def test_a_folder_of_somebody_else_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the key, not just the first file that is looked for."""

    def denied(path: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(DataError, match=f"{tmp_path} cannot be read .Permission denied.: the user"):
        load_images(str(tmp_path))


def test_sizes_and_channels_out_of_range_are_refused() -> None:
    with pytest.raises(DataError, match="image_size is 0"):
        load_images("fashion-mnist-small", image_size=0)
    with pytest.raises(DataError, match="channels is 4; it must be 1, 3 or None"):
        load_images("fashion-mnist-small", channels=4)


def test_the_shipped_set_and_idx_files_need_only_numpy_and_torch(
    write_idx_set: IdxWriter, tmp_path: Path
) -> None:
    program = """
import sys
for name in ("datasets", "flwr_datasets", "PIL", "torchvision", "timm"):
    sys.modules[name] = None
import numpy as np
from flwr_splitmix.data import DataError, load_images, partition_indices
assert load_images("fashion-mnist-small", image_size=16).train[0][0].shape == (1, 16, 16)
assert len(load_images(sys.argv[1]).test) == 1
assert len(partition_indices(np.zeros(4, int), 2)) == 2
for call in (
    lambda: load_images("owner/set"),
    lambda: load_images(sys.argv[2]),
    lambda: partition_indices(np.zeros(4, int), 2, scheme="dirichlet"),
):
    try:
        call()
    except DataError as error:
        print(error)
"""
    pictures = tmp_path / "pictures"
    for split in ("train", "test"):
        (pictures / split / "a").mkdir(parents=True)
        Image.new("L", (4, 4)).save(pictures / split / "a" / "0.png")
    process = subprocess.run(
        [sys.executable, "-c", program, str(write_idx_set([0], [0])), str(pictures)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    assert len(lines) == 3
    for line, package in zip(lines, ("flwr_datasets", "PIL", "datasets"), strict=True):
        assert f"needs the package '{package}'" in line
        assert "pip install '.[vision]'" in line
