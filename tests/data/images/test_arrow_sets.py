"""Sets of the `datasets` library, saved to disk or from a hub that is stood in for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import flwr_datasets
import pytest

from flwr_splitmix.data import DataError, load_images
from tests.data.images.arrow import CLASS_LABEL, grey_levels, save, split


@pytest.mark.parametrize(
    ("image", "label", "test_name"),
    [("image", "label", "test"), ("img", "fine_label", "validation"), ("x", "y", "test")],
)
def test_a_saved_set_is_read_back(tmp_path: Path, image: str, label: str, test_name: str) -> None:
    columns = {"image": image, "label": label}
    source = save(
        tmp_path,
        train=split([10, 20, 30], [0, 1, 1], **columns),
        **{test_name: split([40], [1], **columns)},
    )
    sets = load_images(source, image_size=8)
    assert sets.classes == ("cat", "dog")
    assert sets.train.shape == (1, 8, 8)
    assert grey_levels(sets.train) == [10, 20, 30]
    assert grey_levels(sets.test) == [40]
    assert sets.train.labels.tolist() == [0, 1, 1]


def test_the_well_known_one_of_two_label_columns_is_taken(tmp_path: Path) -> None:
    def both(labels: list[int]) -> Any:
        coarse = split([1] * len(labels), [0] * len(labels), label="coarse_label")
        return coarse.add_column("fine_label", labels).cast_column("fine_label", CLASS_LABEL)

    sets = load_images(save(tmp_path, train=both([0, 1]), test=both([1])))
    assert sets.train.labels.tolist() == [0, 1]


def two_pictures(first: str, second: str) -> Any:
    """Return a split whose first column of pictures is black, the second white."""
    black, white = split([0, 0], [0, 1], image=first), split([255, 255], [0, 1], image=second)
    return datasets.concatenate_datasets([black, white.select_columns(second)], axis=1)


@pytest.mark.parametrize(("first", "second"), [("mask", "picture"), ("img", "image")])
def test_the_well_known_one_of_two_picture_columns_is_taken(
    first: str, second: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first one may be another, such as the masks of pictures."""
    both = two_pictures(first, second)
    sets = load_images(save(tmp_path, train=both, test=both), image_size=8)
    assert grey_levels(sets.train) == [255, 255]
    assert f"has several image columns: {second!r} is used, and not {first!r}" in caplog.text


def test_columns_between_which_nothing_decides_are_refused(tmp_path: Path) -> None:
    pictures = two_pictures("before", "after")
    with pytest.raises(
        DataError, match=r"several image columns: before, after; rename the one .* to 'image'"
    ):
        load_images(save(tmp_path / "pictures", train=pictures, test=pictures))
    labels = split([1, 2], [0, 1], label="coarse").add_column("fine", [0, 1], feature=CLASS_LABEL)
    with pytest.raises(
        DataError, match=r"several label columns: coarse, fine; rename the one .* to 'label'"
    ):
        load_images(save(tmp_path / "labels", train=labels, test=labels))
    kind = datasets.List(CLASS_LABEL)
    lists = split([1, 2], [[0], [1]], label="seen", label_type=kind)
    lists = lists.add_column("heard", [[0], [1]], feature=kind)
    with pytest.raises(DataError, match="several label columns: seen, heard; rename"):
        load_images(save(tmp_path / "lists", train=lists, test=lists))


def test_plain_labels_count_the_sorted_training_values(tmp_path: Path) -> None:
    kind = datasets.Value("string")
    source = save(
        tmp_path,
        train=split([1, 2, 3], ["pike", "eel", "pike"], label_type=kind),
        test=split([4], ["pike"], label_type=kind),
    )
    sets = load_images(source)
    assert sets.classes == ("eel", "pike")
    assert sets.train.labels.tolist() == [1, 0, 1]
    assert sets.test.labels.tolist() == [1]


def test_targets_of_a_regression_are_no_classes(tmp_path: Path) -> None:
    for number, labels in enumerate(([0.0, 1.0], [0.37, 1.0])):
        part = split([1, 2], labels, label_type=datasets.Value("float32"))
        source = save(tmp_path / str(number), train=part, test=part)
        if number == 0:
            assert load_images(source).train.labels.tolist() == [0, 1]
            continue
        with pytest.raises(DataError, match=r"are numbers such as 0\.37, not classes; needed"):
            load_images(source)


GOOD = split([1, 2], [0, 1])
INTS = datasets.Value("int64")


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"train": GOOD}, "has no test split; one named test, validation"),
        ({"test": GOOD}, "has the splits test; one named train is needed"),
        (
            {"train": split([1, 2], [0, 0]), "test": GOOD},
            "test split of .* has the class 'dog', of which the training split has no image",
        ),
        (
            {"train": GOOD, "test": split([1], [-1])},
            r"test split of .* has the label -1, which is none of .* \(cat and dog\)",
        ),
        (
            {
                "train": split([1], [3], label_type=INTS),
                "test": split([1], [4], label_type=INTS),
            },
            r"test split of .* has the label 4, which is none of the training classes \(3\)",
        ),
        (
            {
                "train": GOOD,
                "test": split([1], [0], label_type=datasets.ClassLabel(names=["dog", "cat"])),
            },
            "both must name the same classes in the same order",
        ),
        ({"train": GOOD.remove_columns("label"), "test": GOOD}, "has no label column among id, "),
        ({"train": GOOD.remove_columns("image"), "test": GOOD}, "has no image column among id, "),
        ({"train": GOOD, "test": GOOD.remove_columns("label")}, "lacks the column 'label'"),
        (
            {"train": split([1], [[0, 1]], label_type=datasets.List(INTS)), "test": GOOD},
            "expected one value for each image, or, for several labels, a list of ClassLabel",
        ),
    ],
)
def test_what_is_wrong_with_a_set_is_said(
    tmp_path: Path, splits: dict[str, Any], message: str
) -> None:
    source = save(tmp_path, **splits)
    with pytest.raises(DataError, match=message):
        load_images(source)


def test_a_single_split_or_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    GOOD.save_to_disk(str(tmp_path / "single"))
    with pytest.raises(DataError, match="holds a single split; save a DatasetDict"):
        load_images(str(tmp_path / "single"))
    source = Path(save(tmp_path, train=GOOD, test=GOOD))
    for file in (source / "train").glob("*.arrow"):
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DataError, match="cannot be read as a dataset saved by save_to_disk"):
        load_images(str(source))


def test_a_damaged_picture_is_named_by_its_row(tmp_path: Path) -> None:
    broken = split([1, 2], [0, 1]).cast_column("image", datasets.Image(decode=False))
    rows = [
        dict(row, image={"bytes": b"junk", "path": None}) if row["id"] else row for row in broken
    ]
    bad = datasets.Dataset.from_list(rows, features=GOOD.features)
    with pytest.raises(DataError, match=r"image 1 of .* cannot be read as a picture: its format"):
        load_images(save(tmp_path, train=bad, test=GOOD))


def test_a_row_without_a_picture_is_named_and_can_be_left_out(tmp_path: Path) -> None:
    whole = split([1, 2, 3], [0, 1, 1]).cast_column("image", datasets.Image(decode=False))
    rows = [dict(row, image=None) if row["id"] == 1 else row for row in whole]
    bad = datasets.Dataset.from_list(rows, features=GOOD.features)
    source = save(tmp_path, train=bad, test=GOOD)
    with pytest.raises(DataError) as raised:
        load_images(source)
    assert str(raised.value) == (
        f"image 1 of {source!r} is missing; repair it, or leave it out with skip-corrupt=true"
    )
    assert load_images(source, skip_corrupt=True).train.labels.tolist() == [0, 1]


def test_a_hub_name_is_loaded_through_flower_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []

    def load(path: str, **_: Any) -> Any:
        paths.append(path)
        return datasets.DatasetDict(train=split([9, 8], [0, 1]), test=split([7], [0]))

    monkeypatch.setattr(datasets, "load_dataset", load)
    sets = load_images("owner/pets")
    assert load_images("owner/pets") is sets
    assert paths == ["owner/pets"]
    assert grey_levels(sets.train) == [9, 8]  # unshuffled


def test_a_hub_set_without_a_test_split_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", lambda **_: datasets.DatasetDict(train=GOOD))
    with pytest.raises(DataError, match="'owner/one-split' has no test split"):
        load_images("owner/one-split")


@pytest.mark.parametrize("empty", ["training", "test"])
def test_an_empty_split_is_refused(monkeypatch: pytest.MonkeyPatch, empty: str) -> None:
    # save_to_disk of datasets 4 divides by zero here, so such a set can come only from the hub.
    splits = {name: GOOD.select([]) if name == empty else GOOD for name in ("training", "test")}
    loaded = datasets.DatasetDict(train=splits["training"], test=splits["test"])
    monkeypatch.setattr(datasets, "load_dataset", lambda **_: loaded)
    with pytest.raises(DataError, match=f"the {empty} split of 'owner/no-{empty}' holds no image"):
        load_images(f"owner/no-{empty}")


def test_a_hub_that_cannot_be_reached_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: Any) -> Any:
        raise ConnectionError("Couldn't reach the Hub\nand a long trace")

    monkeypatch.setattr(flwr_datasets.federated_dataset.datasets, "load_dataset", fail)
    with pytest.raises(DataError) as caught:
        load_images("owner/far-away")
    message = str(caught.value)
    assert "'owner/far-away' could not be loaded from the Hugging Face hub" in message
    assert "Couldn't reach the Hub" in message
    assert "long trace" not in message
    assert "it must be the name of an image dataset there" in message


SEVERAL_NAMES = ["hat", "tie", "shoe"]


def listed(rows: list[Any]) -> Any:
    kind = datasets.Sequence(datasets.ClassLabel(names=SEVERAL_NAMES))
    return split([1] * len(rows), rows, label="labels", label_type=kind)


def truths(**columns: list[Any]) -> Any:
    """As CelebA: a column of truth values for each label, an image and a number."""
    dataset = split([1] * len(columns["hat"]), [0] * len(columns["hat"]), label="celeb_id",
                 label_type=datasets.Value("int64"))  # fmt: skip
    for name, values in columns.items():
        dataset = dataset.add_column(name, values, feature=datasets.Value("bool"))
    return dataset


def test_lists_of_classes_are_several_labels(tmp_path: Path) -> None:
    sets = load_images(save(tmp_path, train=listed([[0], [], [2, 0]]), test=listed([[1]])))
    assert sets.multi_label
    assert sets.classes == ("hat", "tie", "shoe")
    assert sets.train.labels.tolist() == [[1, 0, 0], [0, 0, 0], [1, 0, 1]]
    assert sets.test.labels.tolist() == [[0, 1, 0]]


def test_columns_of_truth_values_are_labels(tmp_path: Path) -> None:
    train = truths(hat=[True, False], tie=[True, True])
    sets = load_images(save(tmp_path, train=train, test=truths(hat=[False], tie=[True])))
    assert sets.multi_label
    assert sets.classes == ("hat", "tie")
    assert sets.train.labels.tolist() == [[1, 1], [0, 1]]
    assert sets.test.labels.tolist() == [[0, 1]]


def test_a_class_is_preferred_to_truth_values(tmp_path: Path) -> None:
    def both(labels: list[int]) -> Any:
        dataset = split([1] * len(labels), labels)
        for name in ("hat", "tie"):
            dataset = dataset.add_column(name, [True] * len(labels), feature=datasets.Value("bool"))
        return dataset

    sets = load_images(save(tmp_path, train=both([0, 1]), test=both([1])))
    assert not sets.multi_label
    assert sets.train.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("train", "test", "sentence"),
    [
        (listed([[0], None]), listed([[1]]), r"labels of an image of .* are None; expected"),
        (
            truths(hat=[True, None], tie=[True, True]),
            truths(hat=[True], tie=[True]),
            "the label 'hat' of .* is missing for an image",
        ),
        (
            truths(hat=[True], tie=[True]),
            truths(hat=[True]),
            "the test split of .* lacks the column 'tie' of training",
        ),
        (
            truths(hat=[True]),
            truths(hat=[True]),
            "has no label column among id, image, celeb_id, hat",
        ),
    ],
)
def test_several_labels_that_are_wrong_are_refused(
    tmp_path: Path, train: Any, test: Any, sentence: str
) -> None:
    with pytest.raises(DataError, match=sentence):
        load_images(save(tmp_path, train=train, test=test))
