"""`splitmix privacy` prints what the library computes, and a clear error where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from inspect import signature

import pytest
from click.testing import Result

from flwr_splitmix.apps.configuration.project import open_project
from flwr_splitmix.cli.privacy.commands import epsilon, sigma
from flwr_splitmix.cli.privacy.plan import PlanOptions
from flwr_splitmix.segments import split_vision_model
from tests.apps.app_config import APPS

Splitmix = Callable[..., Result]

PAPER = [
    "--clip",
    "range",
    "--clip-norm",
    "0.15",
    "--patches",
    "10",
    "--width",
    "1",
    "--alpha",
    "inf",
    "--delta",
    "2e-4",
]
VARIANCE = ["--sigma-s", "0.50874", "--sigma-y", "0.50874"]  # 66/255


def value(result: Result, name: str) -> float:
    """Return the number in the line of that name."""
    assert result.exit_code == 0, result.output
    line = next(line for line in result.stdout.splitlines() if line.startswith(name))
    return float(line.removeprefix(name).split()[0])


@pytest.mark.parametrize(
    ("options", "tight", "papers"),
    [
        ("--passes 1", 6.71, 7.53),
        ("--passes 600", 862.2, 865.5),
        ("--rounds 100 --steps 234 --records 5000 --batch-size 128", 862.2, 865.5),
        ("--passes 1 --label-noise before", 14.71, 15.87),
        ("--passes 1 --trusted-mixer --no-clamp", 4.88, 5.58),
        ("--passes 600 --trusted-mixer --no-clamp --smashed-noise all", 462.0, 464.9),
        ("--passes 1 --kept 0.5 --k 2 --alpha 1", 6.71, 7.53),
    ],
)
def test_epsilon_gives_the_specs_figures(
    splitmix: Splitmix, options: str, tight: float, papers: float
) -> None:
    result = splitmix("privacy", "epsilon", *VARIANCE, *PAPER, *options.split())
    assert value(result, "epsilon") == pytest.approx(tight, abs=0.006 if tight < 20 else 0.06)
    assert value(result, "papers' conversion") == pytest.approx(
        papers, abs=0.006 if tight < 20 else 0.06
    )
    assert "Not covered, where they occur: gradients sent to clients;" in result.stdout


def test_what_the_papers_noise_costs_at_a_real_dimension(splitmix: Splitmix) -> None:
    real = [*VARIANCE, *PAPER, "--patches", "64", "--width", "192"]
    one = splitmix("privacy", "epsilon", *real, "--passes", "1")
    assert value(one, "epsilon") == pytest.approx(361, abs=0.5)
    many = splitmix("privacy", "epsilon", *real, "--passes", "600")
    assert value(many, "epsilon") == pytest.approx(1.6e5, rel=0.03)


def test_one_order_is_never_better_than_the_best(splitmix: Splitmix) -> None:
    command = ("privacy", "epsilon", *VARIANCE, *PAPER, "--passes", "1")
    best = value(splitmix(*command), "epsilon")
    at_two = splitmix(*command, "--order", "2")
    # Theorem 1's CutMix at order 2, with the paper's conversion: 0.6125 / sigma^2 + 8.5172.
    assert value(at_two, "papers' conversion") == pytest.approx(
        0.6125 / 0.50874**2 + 8.5172, abs=1e-3
    )
    assert best < value(at_two, "epsilon")


@pytest.mark.parametrize("command", [epsilon, sigma])
def test_the_defaults_are_those_of_the_vision_app(command: Callable[..., None]) -> None:
    """A plan with others would say less than the ledger of the run that it is made for."""
    defaults = {
        name: parameter.default for name, parameter in signature(command).parameters.items()
    }
    app = open_project(APPS / "vision").config
    same = ("k", "alpha", "clip", "delta", "relation", "smashed_noise", "label_noise")
    assert [defaults[name] for name in same] == [app[name.replace("_", "-")] for name in same]
    assert defaults["method"] == "cutmix"
    lower, _ = split_vision_model(
        str(app["model"]), patch_size=app["patch-size"], depth=1, channels=1, seed=0
    )
    assert (lower.geometry.patches, lower.geometry.width) == (
        defaults["patches"],
        defaults["width"],
    )


@pytest.mark.parametrize("command", [epsilon, sigma])
def test_every_option_of_a_plan_has_a_typed_field(command: Callable[..., None]) -> None:
    """So nothing reaches the plan by an unchecked name."""
    of_the_command = {"epsilon", "label_ratio", "order"}
    noise = {"sigma_s", "sigma_y"}
    options = set(signature(command).parameters) - of_the_command
    assert options | noise == {field.name for field in fields(PlanOptions)}


def test_any_number_of_passes_takes_no_memory(splitmix: Splitmix) -> None:
    most, half = (
        splitmix("privacy", "epsilon", *VARIANCE, *PAPER, "--passes", passes)
        for passes in ("1000000000", "500000000")
    )
    assert value(most, "epsilon") == pytest.approx(2 * value(half, "epsilon"), rel=1e-3)


WORST = "the whole sample in every pass, the worst case"


@pytest.mark.parametrize(
    ("options", "ratio"),
    [
        ("--passes 1", WORST),  # half of the sample would be exceeded too often
        ("--passes 1 --alpha inf --clients 3", WORST),
        ("--passes 30", "drawn with alpha 6; more with probability 1e-06, within delta"),
        ("--passes 30 --alpha inf --clients 3", "even; more with probability 1e-06, within delta"),
        ("--passes 30 --alpha inf", "0.5 of the sample in every pass"),
        ("--passes 1 --kept 1", "1 of the sample in every pass"),
    ],
)
def test_which_masks_an_epsilon_is_of_is_said(splitmix: Splitmix, options: str, ratio: str) -> None:
    """Where the worst case is the least bound, no masks are said to be drawn."""
    shared = ["--clip-norm", "1", *options.split()]
    noise = ["--sigma-s", "5", "--sigma-y", "5"]
    one = splitmix("privacy", "epsilon", *noise, *shared)
    (line,) = (line for line in one.stdout.splitlines() if line.startswith("ratio"))
    assert line.removeprefix("ratio").strip() == ratio
    if ratio == WORST:
        worst = splitmix("privacy", "epsilon", *noise, "--clip-norm", "1", "--passes", "1",
                         "--kept", "1")  # fmt: skip
        assert value(one, "epsilon") == value(worst, "epsilon")
    other = splitmix("privacy", "sigma", "--epsilon", str(value(one, "epsilon")), *shared)
    assert f" {ratio} " in f" {' '.join(other.stdout.split())} "


@pytest.mark.parametrize("method", ["sl", "mix", "cutmix"])
@pytest.mark.parametrize("alpha", ["inf", "2"])
def test_the_sigma_for_an_epsilon_costs_that_epsilon(
    splitmix: Splitmix, method: str, alpha: str
) -> None:
    shared = f"--method {method} --clip-norm 1 --passes 20".split()
    if method != "sl":
        shared += f"--alpha {alpha} --k 3".split()
    answer = splitmix("privacy", "sigma", "--epsilon", "8", "--label-ratio", "0.1", *shared)
    sigmas = [str(value(answer, name)) for name in ("sigma_s", "sigma_y")]
    back = splitmix("privacy", "epsilon", "--sigma-s", sigmas[0], "--sigma-y", sigmas[1], *shared)
    assert value(back, "epsilon") == pytest.approx(8, rel=1e-4)


@pytest.mark.parametrize("epsilon", ["8", "3", "1"])
@pytest.mark.parametrize("passes", ["7", "30", "100"])
def test_the_sigma_that_is_shown_keeps_to_the_epsilon(
    splitmix: Splitmix, passes: str, epsilon: str
) -> None:
    """It is rounded up: the nearest number of six digits is too small for half of them."""
    shared = ("--clip-norm", "1", "--passes", passes)
    answer = splitmix("privacy", "sigma", "--epsilon", epsilon, *shared)
    noise = [str(value(answer, name)) for name in ("sigma_s", "sigma_y")]
    back = splitmix("privacy", "epsilon", "--sigma-s", noise[0], "--sigma-y", noise[1], *shared)
    assert value(back, "epsilon") <= float(epsilon)


@pytest.mark.parametrize(
    ("options", "least", "most"),
    [
        ("", 3.86, 3.86),
        ("--clients 4", 3.86, 3.86),
        ("--clients 3", 4.80, 5.10),  # the epsilon in the ledger of such a run is 4.80
        ("--clients 3 --alpha 6", 4.82, 5.15),
        ("--k-times", 5.76, 5.76),
        ("--clients 3 --k-times", 5.87, 5.95),
        ("--clients 3 --method mix", 3.4, 4.9),
    ],
)
def test_clients_left_over_and_k_times_cost_what_a_ledger_charges(
    splitmix: Splitmix, options: str, least: float, most: float
) -> None:
    run = "--sigma-s 200 --sigma-y 40 --clip-norm 1 --passes 200 --patches 64 --alpha inf"
    result = splitmix("privacy", "epsilon", *run.split(), *options.split())
    assert least - 0.005 <= value(result, "epsilon") <= most + 0.005
    assert ("give --clients" in result.stdout) == ("--clients" not in options)


WRONG = [
    (
        "--sigma-s 0",
        "there is no epsilon: no noise on the smashed data (sigma_s = 0); give --sigma-s above 0\n",
    ),
    (
        "--sigma-y 0",
        "there is no epsilon: no noise on the labels (sigma_y = 0); give --sigma-y above 0\n",
    ),
    ("--sigma-s -1", "--sigma-s is -1.0"),
    (
        "--clip none",
        "there is no epsilon: no clipping of the smashed data; choose --clip patch, range or "
        "sample\n",
    ),
    ("--delta 0", "--delta is 0.0; it must lie strictly between 0 and 1"),
    ("--delta 1", "--delta is 1.0"),
    ("--delta 1 --alpha 2", "--delta is 1.0"),
    ("--order 1", "--order is 1; a Rényi order must be greater than 1"),
    ("--order 0.5", "--order is 0.5"),
    ("--alpha 0", "--alpha is 0.0"),
    ("--alpha nan", "--alpha is nan"),
    ("--k 0", "--k is 0"),
    ("--kept 1.5", "--kept is 1.5; it is a share of the client's data, 0 to 1, and 1 the worst"),
    ("--kept nan", "--kept is nan; it is a share of the client's data, 0 to 1, and 1 the worst"),
    ("--method sl --k 3", "--k is for methods that mix, and the method is sl; leave it out"),
    ("--method sl --clients 2", "--clients is for methods that mix"),
    ("--method sl --alpha 6", "--alpha is for methods that mix"),
    ("--method sl --kept 0.5", "--kept is for methods that mix"),
    ("--method sl --trusted-mixer", "--trusted-mixer is for methods that mix"),
    ("--method sl --label-noise before", "--label-noise is for methods that mix"),
    ("--method mix --smashed-noise all", "--smashed-noise is for cutmix, and the method is mix"),
    ("--passes 0", "--passes is 0"),
    ("--passes 100000000000000", "--passes is above 1,000,000,000, which is beyond any run"),
    (
        "--batch-size 5 --steps 1",
        "--passes and --steps are given; use either --passes, or --rounds",
    ),
    ("--k 3 --clients 2", "--k is 3 for 2 clients; a group has at most all"),
    ("--kept 0.5 --clients 3", "--kept is 0.5, but groups of 2 of 3 clients leave some over"),
    ("--k-times --method mix", "--k-times is for cutmix, and the method is mix; leave it out"),
    ("--patches 0", "--patches is 0"),
    ("--patches 65537", "--patches is above 65,536, which is beyond any run"),
    ("--k 10001", "--k is above 10,000, which is beyond any run"),
    ("--k 5000 --patches 4096 --trusted-mixer", "k times patches is above 10,000,000"),
    ("--clip-norm 0", "--clip-norm is 0.0"),
    ("--clip-norm 1e-200", "--clip-norm is 1e-200, but smashed data are clipped in float32"),
    (
        "--sigma-s 1e40",
        "--sigma-s is 1e+40, but noise is added in float32, where such noise is inf",
    ),
    ("--sigma-s 1e-20", "the epsilon is beyond all numbers: --sigma-s 1e-20 and --sigma-y 1 are"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_what_is_wrong_is_one_clear_error(splitmix: Splitmix, options: str, message: str) -> None:
    good = ["--sigma-s", "1", "--sigma-y", "1", "--clip-norm", "1", "--passes", "1"]
    result = splitmix("privacy", "epsilon", *good, *options.split())
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("sigma --epsilon 0 --clip-norm 1 --passes 1", "--epsilon is 0.0"),
        (
            "sigma --epsilon 8 --clip none --clip-norm 1 --passes 1",
            "no sigma gives an epsilon: no clipping "
            "of the smashed data; choose --clip patch, range or sample",
        ),
        ("sigma --epsilon 8 --label-ratio -1 --clip-norm 1 --passes 1", "--label-ratio is -1; it"),
        (
            "sigma --epsilon 8 --label-ratio nan --clip-norm 1 --passes 1",
            "--label-ratio is nan; it",
        ),
        ("sigma --epsilon 8 --label-ratio 0 --clip-norm 1 --passes 1", "--label-ratio is 0; it"),
        (
            "sigma --epsilon 8 --method sl --kept 1 --clip-norm 1 --passes 1",
            "--kept is for methods",
        ),
        ("sigma --epsilon 8 --clip-norm 1", "give --passes, or --rounds"),
        (
            "sigma --epsilon 8 --clip-norm 1 --rounds 1 --steps 1 --records 5 --batch-size 6",
            "--batch-size is 6 for 5 records",
        ),
        (
            "sigma --epsilon 8 --clip-norm 1 --rounds 0 --steps 1 --records 5 --batch-size 5",
            "--rounds is 0",
        ),
        ("compare --sigma-s 0", "--sigma-s is 0.0; an epsilon needs noise above 0"),
        ("compare --range 1e-200", "--range is 1e-200, but smashed data are clipped in float32"),
        ("compare --sigma-y 1e100", "--sigma-y is 1e+100, but noise is added in float32"),
        ("compare --order 1", "--order is 1.0"),
        ("compare --delta 2", "--delta is 2.0"),
        ("compare --clients 0", "--clients is 0"),
        ("compare --clients 1001", "--clients is above 1,000, which is beyond any run"),
        ("compare --left-over --dimension 65537", "--dimension is above 65,536"),
        (
            "compare --left-over --dimension 65536 --clients 200 --trusted-mixer",
            "clients times dimension is above 10,000,000",
        ),
        ("compare -o picture.xyz", "cannot write picture.xyz"),
        ("compare -o missing/picture.png", "cannot write missing/picture.png"),
    ],
)
def test_the_other_commands_say_it_too(splitmix: Splitmix, command: str, message: str) -> None:
    result = splitmix("privacy", *command.split())
    assert result.exit_code == 1
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["epsilon", "sigma"])
def test_the_help_names_the_options_of_which_one_is_needed(
    splitmix: Splitmix, command: str
) -> None:
    page = " ".join(splitmix("privacy", command, "--help").stdout.split())
    assert "Give --passes, or --rounds, --steps, --records and --batch-size." in page


def test_a_missing_or_unknown_option_is_a_usage_error(splitmix: Splitmix) -> None:
    for arguments in (["--sigma-s", "1"], ["--clip", "norm"]):
        result = splitmix("privacy", "epsilon", *arguments)
        assert result.exit_code == 2
        assert "Traceback" not in result.output
