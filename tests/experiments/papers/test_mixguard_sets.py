"""MixGuard's tables of utility: the printed numbers, and the claims about them."""

from __future__ import annotations

import pytest

from flwr_splitmix.experiments import EXPERIMENTS, SCALES
from flwr_splitmix.experiments.papers.mixguard_sets import MODELS, SETS

# As printed: for each row Qwen3-1.7B, then Llama 3.2-1B.
ROWS = ("unsplit", "DP-SGD", "DP-Forward", "SnD", "Naive Mix", "MixGuard")
PRINTED = {
    "table2-sst2": "0.956 0.963 0.958 0.960 0.971 0.953 0.491 0.509 0.796 0.964 0.952 0.953",
    "table2-mrpc": "0.863 0.860 0.831 0.860 0.794 0.853 0.684 0.684 0.748 0.831 0.880 0.836",
    "table2-rte": "0.870 0.783 0.610 0.779 0.585 0.740 0.529 0.471 0.715 0.726 0.866 0.783",
    "table3-gsm8k": "0.469 0.254 0.461 0.187 0.467 0.232 - - 0.461 0.225 0.455 0.236",
    "table3-webnlg": "43.22 42.84 41.17 0.000 43.11 41.49 - - 42.25 40.76 39.65 41.66",
    "table3-samsum": "0.534 0.524 0.528 0.000 0.536 0.524 - - 0.539 0.519 0.532 0.517",
    "table3-codealpaca": "0.536 0.514 0.536 0.401 0.530 0.514 - - 0.534 0.518 0.543 0.502",
}


@pytest.mark.parametrize("name", PRINTED)
def test_the_papers_numbers_are_those_that_it_prints(name: str) -> None:
    numbers = PRINTED[name].split()
    unit = 1 if name.endswith("webnlg") else 100
    shown = {
        entry.row: list(entry.paper.values()) for entry in EXPERIMENTS[f"mixguard-{name}"].entries
    }
    for row, pair in zip(ROWS, zip(numbers[::2], numbers[1::2], strict=True), strict=True):
        if "-" in pair:
            assert row not in shown
            continue
        assert shown[row] == pytest.approx([float(number) * unit for number in pair]), row
    for entry in EXPERIMENTS[f"mixguard-{name}"].entries:
        assert [column.split(", ")[1] for column in entry.paper] in ([], list(MODELS))


def test_every_set_of_both_tables_is_there_once() -> None:
    assert [experiment.name for experiment in SETS] == [f"mixguard-{name}" for name in PRINTED]


def test_cola_has_the_papers_rows() -> None:
    entries = EXPERIMENTS["mixguard-cola"].entries
    printed = {e.row: e.paper["CoLA accuracy"] for e in entries if e.paper}
    assert tuple(sorted(printed)) == tuple(sorted(ROWS))
    paper = (83.8, 84.5, 78.6, 30.9, 49.8, 84.6)
    assert tuple(printed[row] for row in ROWS) == paper


def test_mixguard_may_be_five_points_below_the_unsplit_model() -> None:
    for experiment in SETS:
        claims = [str(o) for o in experiment.orderings if o.low[0] == "unsplit"]
        claimed = [] if experiment.name.endswith("codealpaca") else ["unsplit < MixGuard + 5"]
        assert [claim.split(" (")[0] for claim in claims] == claimed


@pytest.mark.parametrize(("name", "tokens"), [("table2-rte", 20), ("table3-samsum", 40)])
def test_texts_have_the_papers_secret_tokens(name: str, tokens: int) -> None:
    """MixGuard, appendix A.2: 20 for classification, 40 for generation."""
    cells = [cell for _, cell in EXPERIMENTS[f"mixguard-{name}"].cells(SCALES["paper"])]
    counts = {dict(c.options)["secret_tokens"] for c in cells if c.method == "MixGuard"}
    assert counts == {tokens}


def test_a_paper_sized_mixture_has_512_tokens() -> None:
    for name in ("gsm8k", "webnlg", "samsum", "codealpaca"):
        recipes = {
            cell.recipe for _, cell in EXPERIMENTS[f"mixguard-table3-{name}"].cells(SCALES["paper"])
        }
        assert {r.texts.max_length + 40 for r in recipes if r.texts is not None} == {512}


@pytest.mark.parametrize(
    ("name", "texts", "gigabytes"),
    [("mixguard-cola", 8551, 1001), ("mixguard-table8-gsm8k", 7473, 875)],
)
def test_a_paper_sized_run_has_the_papers_traffic(name: str, texts: int, gigabytes: int) -> None:
    """MixGuard, section 5.3; 40 MB a sample (Table VI)."""
    (epochs,) = {cell.recipe.epochs for _, cell in EXPERIMENTS[name].cells(SCALES["paper"])}
    assert epochs * texts * 40 / 1024 == pytest.approx(gigabytes, rel=2e-3)
