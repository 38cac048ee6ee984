"""Settings of single tables: a data set of some classes, and averaged gradients."""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from flwr_splitmix.attacks.base import View
from flwr_splitmix.attacks.case import Case
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.recording.vault import Truth
from flwr_splitmix.attacks.release import Origin, Release
from flwr_splitmix.data import DataError, load_images
from flwr_splitmix.data.images.idx import IMAGE_FILES, LABEL_FILES, write_idx


def some_classes(source: str, classes: tuple[int, ...], folder: Path, image_size: int) -> str:
    """Write the images of some classes of a grey data set to a folder, once, and return its path.

    The files appear whole and the last one last, so several processes may call this at a time, and
    a folder that one of them left unfinished is completed by the next.

    Raises
    ------
    DataError
        If the images are not grey.
    """
    place = folder / ("classes-" + "-".join(map(str, classes)))
    last = place / f"{LABEL_FILES['test']}.gz"
    if last.exists():
        return str(place)
    sets = load_images(source, image_size=image_size)
    if sets.train.shape[0] != 1:
        raise DataError(f"two classes are taken of grey images; those of {source!r} have colours")
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{place.name}-") as beside:
        files: list[Path] = []
        for split, data in (("train", sets.train), ("test", sets.test)):
            rows = np.flatnonzero(np.isin(data.labels, classes))
            pictures = Pictures.of(data, rows)
            pixels = (pictures.images[:, 0] * 255).round().to(torch.uint8).numpy()
            labels = pictures.labels.numpy().astype(np.uint8)
            for name, values in ((IMAGE_FILES[split], pixels), (LABEL_FILES[split], labels)):
                files.append(Path(beside) / f"{name}.gz")
                write_idx(files[-1], values)
        for file in files:
            os.replace(file, place / file.name)
    return str(place)


def averaged_case(case: Case, member: int = 0) -> Case:
    """Return the case of a client that receives the mean of all clients' gradients.

    Every step has one release, the row-wise mean of the clients' gradients; the origin of a row is
    the image of the first client other than the member.

    Parameters
    ----------
    case
        Case of the adversary "server".
    member
        Index of the attacking client.
    """
    by_step: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, release in enumerate(case.view.releases):
        if release.gradient is not None:
            by_step[release.server_round, release.step].append(number)
    releases: list[Release] = []
    origins: list[Origin] = []
    for (server_round, step), numbers in by_step.items():
        summands = [case.view.releases[number] for number in numbers]
        other = next((n for n in numbers if case.view.releases[n].client != member), None)
        if other is None:
            continue
        gradient = torch.stack([r.gradient for r in summands if r.gradient is not None]).mean(0)
        releases.append(
            Release(server_round, step, None, torch.zeros_like(gradient), gradient=gradient)
        )
        origins.append(case.truth.origins[other])
    knowledge = replace(case.view.knowledge, upper=None)
    view = View("member of the group", releases, knowledge)
    return Case(view, Truth(case.truth.pictures, case.truth.trained, origins))
