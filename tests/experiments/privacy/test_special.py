"""Settings of single tables: images of two classes, and gradients that are averaged."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flwr_splitmix.attacks.base import View
from flwr_splitmix.attacks.case import Case
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.recording.vault import Truth
from flwr_splitmix.attacks.release import Origin, Release
from flwr_splitmix.data import load_images
from flwr_splitmix.data.images.idx import write_idx
from flwr_splitmix.experiments.privacy import special
from flwr_splitmix.experiments.privacy.special import averaged_case, some_classes
from flwr_splitmix.mixers import NoMixing
from tests.attacks.images.conftest import Bench


def test_a_data_set_of_two_classes_has_their_images(tmp_path: Path) -> None:
    name = some_classes("fashion-mnist-small", (0, 4), tmp_path, 32)
    sets = load_images(name)
    assert set(sets.train.labels) == {0, 4}
    assert len(sets.train) == 1200
    whole = load_images("fashion-mnist-small").train
    first = int((whole.labels == sets.train.labels[0]).argmax())
    assert torch.equal(Pictures.of(sets.train, [0]).images, Pictures.of(whole, [first]).images)
    assert some_classes("fashion-mnist-small", (0, 4), tmp_path, 32) == name


@pytest.mark.parametrize("file", [0, 3])
def test_a_data_set_that_was_left_unfinished_is_not_taken_for_a_whole_one(
    file: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []

    def cut(path: Path, values: np.ndarray) -> None:
        write_idx(path, values)
        written.append(path)
        if len(written) == file + 1:
            path.write_bytes(path.read_bytes()[:20])
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(special, "write_idx", cut)
        with pytest.raises(OSError, match="No space"):
            some_classes("fashion-mnist-small", (0, 4), tmp_path, 32)
    name = some_classes("fashion-mnist-small", (0, 4), tmp_path, 32)
    assert len(load_images(name).train) == 1200
    assert [entry.name for entry in tmp_path.iterdir()] == ["classes-0-4"]


def test_two_tasks_may_write_a_data_set_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[Path] = []

    def interrupted(path: Path, values: np.ndarray) -> None:
        began.append(path)
        if len(began) == 2:  # the other one begins and ends in the middle of this one
            some_classes("fashion-mnist-small", (0, 4), tmp_path, 32)
        write_idx(path, values)

    monkeypatch.setattr(special, "write_idx", interrupted)
    name = some_classes("fashion-mnist-small", (0, 4), tmp_path, 32)
    assert len(began) == 8
    assert len(load_images(name).train) == 1200
    assert [entry.name for entry in tmp_path.iterdir()] == ["classes-0-4"]


def test_a_member_gets_the_mean_gradient_of_each_step_and_the_other_is_behind_it() -> None:
    images = load_images("fashion-mnist-small", image_size=16)
    pictures = Pictures.of(images.test, list(range(4)))
    view = Bench(pictures, pictures).view(NoMixing(), batch_size=2, knows_lowers=False)
    gradients = [torch.full((2, 3, 5), float(client)) for client in (1, 5)]
    releases = [
        Release(1, 0, client, torch.ones(2, 3, 5), gradient=gradients[client], labels=torch.ones(2))
        for client in (0, 1)
    ]
    origins = [Origin(torch.tensor([[2 * c], [2 * c + 1]]), (c,)) for c in (0, 1)]
    case = Case(
        View("server", releases, replace(view.knowledge, upper=torch.nn.Identity())),
        Truth(pictures, torch.ones(4, dtype=torch.bool), origins),
    )
    averaged = averaged_case(case)
    (release,) = averaged.view.releases
    assert release.gradient is not None
    assert torch.equal(release.gradient, torch.full((2, 3, 5), 3.0))
    assert not release.smashed.any()
    assert (release.labels, release.client, averaged.view.knowledge.upper) == (
        None,
        None,
        None,
    )
    assert averaged.truth.origins[0].sources.tolist() == [[2], [3]]
