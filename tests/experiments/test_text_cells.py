"""Cells of texts: interrupted and resumed, their results, and errors for impossible ones."""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import matthews_corrcoef

from flwr_splitmix.clients import TextSet, UShapeClient
from flwr_splitmix.data import DataError
from flwr_splitmix.experiments import (
    EXPERIMENTS,
    SCALES,
    Cell,
    ExperimentError,
    variant,
)
from flwr_splitmix.experiments.baselines import WholeClient
from flwr_splitmix.experiments.scales import ENCODER
from flwr_splitmix.experiments.texts import running as text_running
from flwr_splitmix.experiments.texts.recipes import TextTrack
from flwr_splitmix.experiments.texts.whole_models import WholeTextClient, WholeTexts
from flwr_splitmix.segments.language import LanguageCut, build_language_parts
from tests.experiments.text_cells import run, save_tiny_encoder

SMOKE = SCALES["smoke"]
TIMES = {"seconds", "steps_per_second", "slowest_node"}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a package with a tiny encoder, laid out like the pretrained one's."""
    home = tmp_path_factory.mktemp("site")
    folder = home / "tiny_encoder" / "model"
    folder.mkdir(parents=True)
    (home / "tiny_encoder" / "__init__.py").touch()
    save_tiny_encoder(folder)
    return home


@pytest.fixture
def encoder(package: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the pretrained encoder with the tiny one."""
    monkeypatch.syspath_prepend(package)
    monkeypatch.setitem(text_running.PACKAGES, "all-MiniLM-L6-v2", "tiny_encoder")
    return package / "tiny_encoder" / "model"


def cell_of(method: str, *, epochs: int = 2, track: TextTrack = "cola", **options: Any) -> Cell:
    chosen = variant(method, options, model=ENCODER, clients=1)
    return SMOKE.cell(chosen, track=track, epochs=epochs)


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


CELLS = [
    cell_of("MixGuard", epochs=4, secret_tokens=0, refine_every=1),
    cell_of("NaiveMixSL", epochs=4, lam=0.5),
    cell_of("Unsplit", epochs=4),
]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.method)
def test_an_interrupted_cell_goes_on_as_if_it_never_had_been(
    cell: Cell, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(cell, tmp_path / "whole")
    kind, method = (WholeClient, "train") if cell.method == "Unsplit" else (UShapeClient, "encode")
    original = getattr(kind, method)

    @wraps(original)
    def interrupted(self: Any, **arguments: Any) -> Any:
        reply = original(self, **arguments)
        if self.order.server_round == 3:
            raise KeyboardInterrupt
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(kind, method, interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(cell, tmp_path / "stopped")
    rounds: list[int] = []
    resumed = run(
        cell, tmp_path / "stopped", on_round=lambda event: rounds.append(event.server_round)
    )
    assert rounds == [3, 4]
    assert without_times(resumed.rows) == without_times(whole.rows)
    assert resumed.summary is not None
    assert resumed.summary["processor_s"] > 0


def test_every_cell_of_the_table_is_scored_by_the_matthews_correlation(
    encoder: Path, tmp_path: Path
) -> None:
    summaries = {}
    for entry, cell in EXPERIMENTS["mixguard-cola"].cells(SMOKE):
        summaries[entry.row] = run(cell, tmp_path).summary or {}
    for row, summary in summaries.items():
        assert -1 <= summary["eval_matthews"] <= 1, row
        assert 0 <= summary["top1"] <= 1, row
    # Without mixing, split inference equals local inference.
    assert summaries["U shape"]["local_matthews"] == pytest.approx(
        summaries["U shape"]["eval_matthews"]
    )
    assert -1 <= summaries["MixGuard"]["local_matthews"] <= 1
    assert "local_matthews" not in summaries["unsplit"]
    assert summaries["unsplit"]["uplink_bytes"] == 0
    # Three messages and three gradients where the U shape has one each; the mask, one byte per
    # token, is sent once. The public texts of a mixture can only make it longer.
    plain, mixed = (
        summaries[row]["uplink_bytes"]
        for row in ("U shape", "MixGuard, light secrets, not calibrated")
    )
    assert mixed > 2.95 * plain
    errors = [
        summaries["MixGuard"][name] for name in ("train_decode_error", "train_calibrated_error")
    ]
    assert min(errors) >= 0
    assert "train_decode_error" not in summaries["MixGuard, light secrets, not calibrated"]


def test_a_whole_model_is_its_parts_and_scored_over_all_texts(encoder: Path) -> None:
    parts = build_language_parts(
        str(encoder), LanguageCut(1, 1), task="classification", num_labels=2
    )
    rng = torch.Generator().manual_seed(0)
    drawn = [torch.randint(3, 200, (length,), generator=rng) for length in range(3, 13)]
    data = TextSet(drawn, [index % 2 for index in range(10)])
    client = WholeTextClient(
        WholeTexts(*parts.all_here()), data, batch_size=4, benchmark_data=data, device="cpu"
    )
    scores = client.score()
    whole = parts.model_class.from_pretrained(encoder).eval()
    predictions, right, loss = [], [], 0.0
    for index in range(len(data)):
        ids, label = data[index]
        with torch.no_grad():
            logits = whole(input_ids=ids[None]).logits
        predictions.append(int(logits.argmax()))
        right.append(int(label))
        loss += float(torch.nn.functional.cross_entropy(logits, label[None]))
    assert scores["examples"] == 10
    assert scores["correct"] == sum(a == b for a, b in zip(predictions, right, strict=True))
    assert scores["loss"] == pytest.approx(loss, rel=1e-4)
    assert scores["scores"]["matthews"] == pytest.approx(matthews_corrcoef(right, predictions))


def test_cola_is_read_from_its_folder_and_the_public_texts_from_beside_it(
    encoder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "cola"
    folder.mkdir()
    public = tmp_path / "public_text"
    public.mkdir()
    (public / "book.txt").write_text("It was late. The old dog sleeps near the boats today .\n" * 2)
    rows = [f"gj04\t{i % 2}\t\tthe old dog number {i} sleeps now ." for i in range(20)]
    (folder / "in_domain_train.tsv").write_text("\n".join(rows))
    with pytest.raises(
        DataError, match=r"does not hold CoLA: --dataset.*in_domain_dev.tsv"
    ) as caught:
        run(cell_of("USplitSL"), tmp_path / "home", str(folder))
    assert "\n" not in str(caught.value)
    (folder / "in_domain_dev.tsv").write_text("\n".join(rows[:6]))
    cell_run = run(
        cell_of("MixGuard", secret_tokens=0, calibration_epochs=0, perturbation=None),
        tmp_path / "home",
        str(folder),
    )
    assert cell_run.status == "finished"
    assert cell_run.rows[-1]["steps"] == 16 // 8


def test_every_row_of_table_2_is_scored_by_accuracy(encoder: Path, tmp_path: Path) -> None:
    experiment = EXPERIMENTS["mixguard-table2-mrpc"]
    for entry, cell in experiment.cells(SMOKE):
        summary = run(cell, tmp_path).summary or {}
        shown = {score.name: score.of(summary) for score in experiment.scores}
        assert shown["accuracy (%)"] == pytest.approx(100 * summary["top1"]), entry.row
        assert (shown["local"] is None) == (entry.row == "unsplit"), entry.row
        if entry.row == "U shape":
            assert shown["local"] == pytest.approx(shown["accuracy (%)"])
        assert (shown["epsilon"] is not None) == entry.row.startswith("DP-"), entry.row


@pytest.mark.parametrize("track", ["sst2", "rte"])
def test_mixguard_learns_the_texts_of_every_corpus(
    track: TextTrack, encoder: Path, tmp_path: Path
) -> None:
    experiment = EXPERIMENTS[f"mixguard-table2-{track}"]
    mixed = next(entry.variant for entry in experiment.entries if entry.row == "MixGuard")
    assert mixed is not None
    assert run(SMOKE.cell(mixed, track=track), tmp_path).status == "finished"


def test_both_sentences_of_a_pair_are_learned_from(encoder: Path, tmp_path: Path) -> None:
    """Pairs differ only in their second sentences: the first alone teaches nothing."""

    def summary(*words: str) -> dict[str, Any]:
        home = tmp_path / "-".join(words)
        folder, public = home / "mrpc", home / "public_text"
        folder.mkdir(parents=True)
        public.mkdir()
        (public / "book.txt").write_text("It was late. The old dog sleeps near the boats today .")
        rows = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
        rows += [f"{i % 2}\t1\t2\tthe dog sleeps\t{words[i % 2]}" for i in range(16)]
        for name in ("train", "dev"):
            (folder / f"{name}.tsv").write_text("\n".join(rows))
        cell = cell_of("USplitSL", track="mrpc", epochs=16)
        cell = replace(cell, recipe=replace(cell.recipe, lr=1e-2))
        return run(cell, home, str(folder)).summary or {}

    assert summary("now", "again")["top1"] == 1.0
    assert summary("now", "now")["top1"] == 0.5


@pytest.mark.parametrize(
    ("cell", "error", "sentence"),
    [
        (cell_of("PSL"), ExperimentError, "unknown method 'PSL' for texts.*Unsplit.*MixGuard"),
        (cell_of("MixGuard", sigma=1.0), ExperimentError, "MixGuard has no option 'sigma'"),
        (cell_of("NaiveMixSL", k=2), ExperimentError, "NaiveMixSL has no option 'k'; it has lam"),
        (cell_of("USplitSL", k=2), ExperimentError, "USplitSL has no option 'k'; it has none"),
        (cell_of("MixGuard", k=1), ValueError, "k is 1"),
        (replace(cell_of("USplitSL"), clients=500), DataError, "too few for 500 clients"),
    ],
    ids=["method", "option", "lam", "plain", "k", "data"],
)
def test_what_cannot_be_run_is_one_clear_error(
    cell: Cell, error: type[Exception], sentence: str, encoder: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=sentence) as caught:
        run(cell, tmp_path)
    assert "\n" not in str(caught.value)


def test_an_encoder_that_is_not_installed_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(text_running.PACKAGES, "all-MiniLM-L6-v2", "no_such_encoder")
    with pytest.raises(ExperimentError, match="pip install no-such-encoder"):
        run(cell_of("USplitSL"), tmp_path)
