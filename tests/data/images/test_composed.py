"""The composed multi-label set: four images in one, with their four classes."""

from __future__ import annotations

import numpy as np
import pytest

from flwr_splitmix.data import DataError, load_images
from flwr_splitmix.data.images.composed import compose_sets
from flwr_splitmix.data.images.sets import RawSets, Split
from flwr_splitmix.data.images.sources import COMPOSED
from flwr_splitmix.experiments.experiment import paper_dataset
from flwr_splitmix.experiments.scales import COMPOSED as NAMED


def raw_sets(n: int = 12, side: int = 4, labels: np.ndarray | None = None) -> RawSets:
    """Image i is grey level i all over, and of class i."""
    images = np.tile(np.arange(n, dtype=np.uint8)[:, None, None, None], (1, 1, side, side))
    split = Split(images, np.arange(n) if labels is None else labels)
    return RawSets(split, split, tuple(map(str, range(n))))


def test_each_corner_shows_an_image_and_its_class_is_a_label() -> None:
    train, test, classes = compose_sets(raw_sets())
    assert train.images.shape == (12, 1, 4, 4)
    assert train.labels.shape == (12, 12) == (len(train.images), len(classes))
    corners = train.images[:, 0, ::2, ::2].reshape(12, 4)
    assert np.array_equal(corners.repeat(2, 1).reshape(12, 2, 4), train.images[:, 0, ::2])
    for shown, row in zip(corners, train.labels, strict=True):
        assert set(np.flatnonzero(row)) == set(shown)
    # Each image is once in each corner, in another order in the test set.
    assert (np.sort(corners, axis=0) == np.arange(12)[:, None]).all()
    assert not np.array_equal(train.images, test.images)


def test_pixels_are_means_of_four() -> None:
    pixels = np.array([[0, 1], [2, 3]], np.uint8)
    images = np.tile(np.kron(pixels, np.ones((2, 2), np.uint8)), (3, 1, 1, 1))
    images[:, :, 0, 0] = 200
    split = Split(images, np.zeros(3, np.int64))
    composed = compose_sets(RawSets(split, split, ("a",))).train.images
    assert composed[0, 0].tolist() == [[50, 1, 50, 1], [2, 3, 2, 3]] * 2


@pytest.mark.parametrize(
    "sets", [raw_sets(side=5), raw_sets(labels=np.eye(12, dtype=np.int64))], ids=["odd", "several"]
)
def test_what_cannot_be_composed_is_refused(sets: RawSets) -> None:
    with pytest.raises(DataError, match="cannot be composed; expected even sides and one class"):
        compose_sets(sets)


def test_it_is_a_data_set_by_name() -> None:
    sets = load_images(COMPOSED, image_size=28)
    assert sets.multi_label
    assert not load_images("fashion-mnist-small").multi_label
    assert len(sets.train) == 6000
    assert sets.classes[9] == "Ankle boot"
    assert set(sets.train.labels.sum(1)) == {1, 2, 3, 4}
    part = sets.train.subset(np.arange(5))
    images, labels = part.batch(np.arange(5))
    assert images.shape == (5, 1, 28, 28)
    assert abs(float(images.mean())) < 0.5
    assert np.array_equal(labels.numpy(), sets.train.labels[:5])
    assert np.array_equal(part.labels, sets.train.labels[:5])


def test_experiments_know_it_by_the_same_name_and_as_no_papers_set() -> None:
    assert NAMED == COMPOSED
    assert paper_dataset(COMPOSED) == COMPOSED
