"""Claims of the papers' texts, and the noise of their equations, in the named experiments."""

from __future__ import annotations

from flwr_splitmix.experiments import EXPERIMENTS
from flwr_splitmix.experiments.experiment import CIFAR, FASHION


def test_claims_of_the_texts_are_all_there() -> None:
    """CutMixSL, "scalability" and "noise injection"; DP-CutMixSL, appendix A."""

    def claims(name: str) -> set[str]:
        return {str(ordering) for ordering in EXPERIMENTS[name].orderings}

    rows = {entry.row for entry in EXPERIMENTS["cutmixsl-table2"].entries}
    assert {f"{row}: n = 2 < n = 10" for row in rows} <= claims("cutmixsl-table2")
    assert "Patch CutMix: sigma = 0.1 < sigma = 0" in claims("cutmixsl-fig9")
    for segments in ("SL", "SFL"):  # Figure 2: random positions improve "to a certain extent"
        assert f"{segments}, random positions: lam = 1 < lam = 0.8" in claims("cutmixsl-fig2")
    assert claims("dp-cutmixsl-fig10b") == {
        *(f"alpha = {alpha}: k = 3 < k = 2" for alpha in (2, 6, "inf")),
        *(f"alpha = {alpha}: k = 5 < k = 3" for alpha in (2, 6)),
        "alpha = inf: k = 4 < k = 3",
        "alpha = inf: k = 5 < k = 4",
    }


def test_the_proposed_method_is_best_but_for_mixup_at_vgg_on_cifar() -> None:
    """DP-CutMixSL, Table 4; the workshop paper prints the same numbers as its Table 1."""
    for name, mixup in (
        ("dp-cutmixsl-table4", "PSL w. Mixup"),
        ("dp-cutmix-workshop-table1", "SL w. Mixup"),
    ):
        experiment, proposed = EXPERIMENTS[name], "CutMixSL (proposed)"
        claimed = {
            (str(ordering), dataset)
            for ordering in experiment.orderings
            for dataset in ordering.datasets or (CIFAR, FASHION)
        }
        for entry in experiment.entries:
            for dataset in (CIFAR, FASHION):
                below = f"{entry.row} < {proposed} ({entry.column})"
                exception = (entry.row, entry.column, dataset) == (mixup, "VGG-16", CIFAR)
                expected = entry.row != proposed and not exception
                assert ((below, dataset) in claimed) == expected
        assert (f"{proposed} < {mixup} (VGG-16)", CIFAR) in claimed


def test_the_workshops_noise_is_where_its_equations_add_it() -> None:
    """Equation 1: M s + N_s, all of N_s; equation 3: lam (y + N_y)."""
    for figure in ("3a", "3b"):
        for entry in EXPERIMENTS[f"dp-cutmix-workshop-fig{figure}"].entries:
            assert entry.variant is not None
            options = dict(entry.variant.options)
            assert options.get("smashed_noise") == ("all" if "CutMix" in entry.row else None)
            assert options.get("label_noise") == (None if entry.row == "DP-SL" else "before")


def test_the_workshops_proposal_is_not_best_at_most_noise() -> None:
    """Section 4: best, "except when the noise variance is 16/255", and always above DP-MixSL."""
    claims = {str(ordering) for ordering in EXPERIMENTS["dp-cutmix-workshop-fig3a"].orderings}
    for variance in ("1", "2", "4", "8", "16"):
        assert f"DP-MixSL < DP-CutMixSL ({variance}/255)" in claims
        assert (f"DP-SL < DP-CutMixSL ({variance}/255)" in claims) == (variance != "16")
    assert "DP-CutMixSL < DP-SL (16/255)" in claims
