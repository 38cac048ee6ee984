"""Options of `splitmix privacy`, each declared once for the commands that share it."""

from __future__ import annotations

from typing import Annotated

import typer

from flwr_splitmix.cli.privacy.plan import ClipKind, Labels, Neighbours, NoiseMethod, Smashed

MethodOption = Annotated[NoiseMethod, typer.Option(help="DP-SL, DP-MixSL or DP-CutMixSL.")]
ClipOption = Annotated[ClipKind, typer.Option(help="What is bounded before noise is added.")]
ClipNorm = Annotated[float, typer.Option(help="The bound: L2 norm, or width of the range.")]
Patches = Annotated[int, typer.Option(help="Patches of a sample, N.")]
Width = Annotated[int, typer.Option(help="Numbers in a patch, d.")]
GroupSize = Annotated[int, typer.Option("--k", help="Clients per mixing group.")]
Clients = Annotated[
    int | None,
    typer.Option(
        help="Clients in a step, n: if k does not divide it, those left over send more.",
        show_default=False,
    ),
]
KTimes = Annotated[
    bool, typer.Option("--k-times", help="For CutMix: a batch is sent k times, with fresh masks.")
]
Alpha = Annotated[float, typer.Option(help="Dirichlet concentration of the ratios, or inf.")]
MaxRatio = Annotated[
    float | None,
    typer.Option(
        "--kept",
        help="The client's ratio in every pass (1: worst case); by default a bound that fails with "
        "a tenth of delta or, if less, the worst case; 1/k rounded up for alpha inf.",
        show_default=False,
    ),
]
Passes = Annotated[
    int | None,
    typer.Option(help="Passes over the data; or give the next four.", show_default=False),
]
Rounds = Annotated[int | None, typer.Option(help="Rounds, instead of passes.", show_default=False)]
Steps = Annotated[int | None, typer.Option(help="Steps per round.", show_default=False)]
Records = Annotated[int | None, typer.Option(help="A client's samples.", show_default=False)]
BatchSize = Annotated[int | None, typer.Option(help="Samples per batch.", show_default=False)]
Delta = Annotated[float, typer.Option(help="Failure probability of the guarantee.")]
RelationOption = Annotated[
    Neighbours, typer.Option(help="Neighbouring data: a record replaced, or by an empty one.")
]
SmashedNoiseOption = Annotated[Smashed, typer.Option(help="For CutMix: patches that get noise.")]
LabelNoiseOption = Annotated[Labels, typer.Option(help="Label noise after or before scaling.")]
Trusted = Annotated[
    bool, typer.Option("--trusted-mixer", help="Another party mixes: the server sees only sums.")
]
Unclamped = Annotated[
    bool, typer.Option("--no-clamp", help="Clients do not clamp noisy labels to 0..1.")
]
OrderOption = Annotated[
    float | None, typer.Option(help="One Rényi order; by default the best one.", show_default=False)
]
