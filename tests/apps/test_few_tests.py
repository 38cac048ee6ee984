"""A run with fewer test examples than clients: some clients have none to be tested on."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from flwr_splitmix.apps.checking.app import check_app
from tests.apps import language_app, vision_fit
from tests.apps.app_config import APPS


@pytest.fixture
def pictures(tmp_path: Path) -> str:
    """Return a folder of eight training pictures and two test pictures."""
    for split, number in (("train", 4), ("test", 1)):
        for name in ("red", "blue"):
            folder = tmp_path / "pictures" / split / name
            folder.mkdir(parents=True)
            for picture in range(number):
                Image.new("RGB", (8, 8), name).save(folder / f"{picture}.png")
    return str(tmp_path / "pictures")


@pytest.mark.parametrize("evaluation", ["none", "federated"])
@pytest.mark.parametrize("strategy", ["PSL", "USplitFL"])
def test_the_check_allows_fewer_test_pictures_than_clients(
    evaluation: str, strategy: str, pictures: str
) -> None:
    keys = f"dataset='{pictures}' evaluation='{evaluation}' strategy='{strategy}' image-size=8"
    overrides = [f"{keys} patch-size=4"]
    assert check_app(APPS / "vision", overrides, here=Path.cwd(), nodes=3).problems == []


def test_clients_with_test_pictures_are_evaluated(pictures: str, tmp_path: Path) -> None:
    fitted = vision_fit.fit(
        tmp_path, 3, strategy="PSL", dataset=pictures, evaluation="federated", image_size=8,
        patch_size=4, samples_per_client=2,
    )  # fmt: skip
    assert fitted.row["accuracy_kind"] == "federated"
    assert fitted.row["accuracy"] in (0.0, 0.5, 1.0)


def test_clients_with_test_rows_are_evaluated(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(
        "sentence,label\n" + "\n".join(f"some words,{row % 2}" for row in range(20))
    )
    fitted = language_app.fit(
        tmp_path, 3, task="classification", strategy="USplitSL", evaluation="federated",
        dataset=str(tmp_path / "rows.csv"), samples_per_client=2, test_samples_per_client=0,
    )  # fmt: skip
    assert fitted.rows[-1]["accuracy"] in (0.0, 0.5, 1.0)
