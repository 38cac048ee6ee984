"""`splitmix privacy`: epsilon for given noise, noise for a given epsilon, comparison of methods.

Everything follows from the options, whose defaults are those of the vision app. No data, no model
and no run are needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer
from click.core import ParameterSource

from flwr_splitmix.cli.privacy.options import (
    Alpha,
    BatchSize,
    Clients,
    ClipNorm,
    ClipOption,
    Delta,
    GroupSize,
    KTimes,
    LabelNoiseOption,
    MaxRatio,
    MethodOption,
    OrderOption,
    Passes,
    Patches,
    Records,
    RelationOption,
    Rounds,
    SmashedNoiseOption,
    Steps,
    Trusted,
    Unclamped,
    Width,
)
from flwr_splitmix.cli.privacy.plan import (
    CLIPPED,
    ClipKind,
    Labels,
    Neighbours,
    NoiseMethod,
    PlanOptions,
    Smashed,
    check_method_takes,
    make_plan,
)
from flwr_splitmix.cli.terminal import console, table
from flwr_splitmix.runs import RunError
from flwr_splitmix.words import epsilon_text, rounded_up

if TYPE_CHECKING:
    from flwr_splitmix.privacy import ReleasePlan

privacy = typer.Typer(
    name="privacy",
    help="Differential privacy: the epsilon of a run, the noise for an epsilon, a comparison.",
    no_args_is_help=True,
)


@contextmanager
def library_errors_end_command() -> Iterator[None]:
    """Turn a ValueError of the library into an error message that ends the command.

    If it begins with the name of an argument, such as "sigma_s is", it gets that of the option.
    """
    try:
        yield
    except ValueError as error:
        argument, verb, rest = str(error).partition(" is ")
        option = f"--{argument.replace('_', '-')}"
        is_option = verb and any(option in each.opts for each in _command_options())
        raise RunError(f"{option if is_option else argument}{verb}{rest}") from error


def _command_options() -> list[click.Parameter]:
    return click.get_current_context().command.params


def _options_on_command_line() -> list[str]:
    """Return the options that the user has set, such as "--k"."""
    context = click.get_current_context()
    return [
        option.opts[0]
        for option in _command_options()
        if option.name in context.params
        and context.get_parameter_source(option.name) is not ParameterSource.DEFAULT
    ]


_REMEDIES = {
    "clip": f"; {CLIPPED}",
    "sigma_s": "; give --sigma-s above 0",
    "sigma_y": "; give --sigma-y above 0",
}
"""Remedies for the keys of `UNBOUNDED` that options cause."""


@privacy.command()
def epsilon(
    sigma_s: Annotated[float, typer.Option(help="Noise on the smashed data, std. deviation.")],
    sigma_y: Annotated[float, typer.Option(help="Noise on the labels, standard deviation.")],
    clip_norm: ClipNorm,
    method: MethodOption = NoiseMethod.cutmix,
    clip: ClipOption = ClipKind.patch,
    patches: Patches = 16,
    width: Width = 192,
    k: GroupSize = 2,
    clients: Clients = None,
    k_times: KTimes = False,
    alpha: Alpha = 6.0,
    max_ratio: MaxRatio = None,
    passes: Passes = None,
    rounds: Rounds = None,
    steps: Steps = None,
    records: Records = None,
    batch_size: BatchSize = None,
    delta: Delta = 1e-5,
    relation: RelationOption = Neighbours.replaced,
    smashed_noise: SmashedNoiseOption = Smashed.kept,
    label_noise: LabelNoiseOption = Labels.after,
    trusted_mixer: Trusted = False,
    no_clamp: Unclamped = False,
    order: OrderOption = None,
) -> None:
    """Print the epsilon of one record of one client for a run with this noise.

    Give --passes, or --rounds, --steps, --records and --batch-size. The defaults are those of the
    vision app.
    """
    from flwr_splitmix.privacy.accountant import ORDERS
    from flwr_splitmix.privacy.events import UNBOUNDED

    options = PlanOptions(
        sigma_s=sigma_s, sigma_y=sigma_y,
        clip_norm=clip_norm, method=method, clip=clip, patches=patches, width=width, k=k,
        clients=clients, k_times=k_times, alpha=alpha, max_ratio=max_ratio, passes=passes,
        rounds=rounds, steps=steps, records=records, batch_size=batch_size, delta=delta,
        relation=relation, smashed_noise=smashed_noise, label_noise=label_noise,
        trusted_mixer=trusted_mixer, no_clamp=no_clamp,
    )  # fmt: skip
    with library_errors_end_command():
        check_method_takes(options, _options_on_command_line())
        plan = make_plan(options)
        orders = ORDERS if order is None else [order]
        tight = plan.epsilon(orders)
        if gaps := plan.release.noise.gaps:
            reasons = "; ".join(f"{UNBOUNDED[gap]}{_REMEDIES.get(gap, '')}" for gap in gaps)
            raise ValueError(f"there is no epsilon: {reasons}")
        if not math.isfinite(tight):
            raise ValueError(
                f"the epsilon is beyond all numbers: --sigma-s {sigma_s:g} and --sigma-y "
                f"{sigma_y:g} are too little noise for a --clip-norm of {clip_norm:g}; raise them"
            )
        papers = plan.epsilon(orders, "papers")
    results = {"epsilon": rounded_up(tight, 6), "papers' conversion": rounded_up(papers, 6)}
    _print(plan, results, clients, k_times)


@privacy.command()
def sigma(
    epsilon: Annotated[float, typer.Option(help="The epsilon that the run may cost.")],
    clip_norm: ClipNorm,
    label_ratio: Annotated[float, typer.Option(help="sigma_y over sigma_s.")] = 1.0,
    method: MethodOption = NoiseMethod.cutmix,
    clip: ClipOption = ClipKind.patch,
    patches: Patches = 16,
    width: Width = 192,
    k: GroupSize = 2,
    clients: Clients = None,
    k_times: KTimes = False,
    alpha: Alpha = 6.0,
    max_ratio: MaxRatio = None,
    passes: Passes = None,
    rounds: Rounds = None,
    steps: Steps = None,
    records: Records = None,
    batch_size: BatchSize = None,
    delta: Delta = 1e-5,
    relation: RelationOption = Neighbours.replaced,
    smashed_noise: SmashedNoiseOption = Smashed.kept,
    label_noise: LabelNoiseOption = Labels.after,
    trusted_mixer: Trusted = False,
    no_clamp: Unclamped = False,
) -> None:
    """Print the least noise for which a run has this epsilon for one record of one client.

    Give --passes, or --rounds, --steps, --records and --batch-size. The defaults are those of the
    vision app.
    """
    from flwr_splitmix.privacy.events import UNBOUNDED

    options = PlanOptions(
        sigma_s=1.0, sigma_y=label_ratio,
        clip_norm=clip_norm, method=method, clip=clip, patches=patches, width=width, k=k,
        clients=clients, k_times=k_times, alpha=alpha, max_ratio=max_ratio, passes=passes,
        rounds=rounds, steps=steps, records=records, batch_size=batch_size, delta=delta,
        relation=relation, smashed_noise=smashed_noise, label_noise=label_noise,
        trusted_mixer=trusted_mixer, no_clamp=no_clamp,
    )  # fmt: skip
    with library_errors_end_command():
        check_method_takes(options, _options_on_command_line())
        if not 0 < label_ratio < math.inf:
            raise ValueError(
                f"--label-ratio is {label_ratio:g}; it is sigma_y over sigma_s, a number above 0"
            )
        if clip is ClipKind.none:
            raise ValueError(f"no sigma gives an epsilon: {UNBOUNDED['clip']}; {CLIPPED}")
        plan = make_plan(options)
        noise = plan.noise_for(epsilon)
    plan = replace(plan, release=replace(plan.release, noise=noise))
    results = {"sigma_s": rounded_up(noise.sigma_s, 6), "sigma_y": rounded_up(noise.sigma_y, 6)}
    _print(plan, results, clients, k_times)


@privacy.command()
def compare(
    sigma_s: Annotated[float, typer.Option(help="Noise on the smashed data.")] = 0.5087,
    sigma_y: Annotated[float, typer.Option(help="Noise on the labels.")] = 0.5087,
    delta_bound: Annotated[
        float, typer.Option("--range", help="Delta: numbers are clipped to a range this wide.")
    ] = 0.15,
    dimension: Annotated[
        int, typer.Option(min=1, help="Numbers in a sample's smashed data, D_s.")
    ] = 10,
    classes: Annotated[int, typer.Option(min=1, help="Classes: the paper's D_y.")] = 2,
    clients: Annotated[int, typer.Option(help="Clients n; k goes from 1 to n.")] = 10,
    order: Annotated[float, typer.Option(help="Rényi order of the paper's columns.")] = 2.0,
    passes: Annotated[int, typer.Option(help="Passes over the data.")] = 1,
    delta: Delta = 2e-4,
    trusted_mixer: Trusted = False,
    left_over: Annotated[
        bool,
        typer.Option(
            "--left-over", help="Plan for the clients left over where k does not divide n, too."
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.png", help="A plot; .pdf and .svg too."),
    ] = None,
) -> None:
    """Compare SL, Mixup and CutMix over k: our epsilon, and the paper's (not a guarantee).

    All groups have k clients, unless --left-over is given: where k does not divide n, those left
    over send more.

    The defaults are the parameters of DP-CutMixSL, Table 2, with variances of 66/255.
    """
    from flwr_splitmix.cli.picture import save
    from flwr_splitmix.cli.privacy.plot import ComparisonSetting, draw

    with library_errors_end_command():
        setting = ComparisonSetting(
            sigma_s=sigma_s,
            sigma_y=sigma_y,
            bound=delta_bound,
            dimension=dimension,
            classes=classes,
            clients=clients,
            order=order,
            passes=passes,
            delta=delta,
            trusted_mixer=trusted_mixer,
            left_over=left_over,
        )
        curves = setting.over_k()
    view = "only sums are seen" if trusted_mixer else "each upload is seen alone"
    shown = table(
        "k", *(f">{name}" for name in curves), title=f"epsilon at delta {delta:g}, {view}"
    )
    for index, group in enumerate(range(1, clients + 1)):
        shown.add_row(str(group), *(epsilon_text(values[index]) for values in curves.values()))
    console().print(shown)
    if not left_over:
        typer.echo("groups: all full; where k does not divide n, --left-over shows the cost")
    typer.echo("paper: Corollary 1 as printed; it is no guarantee (see docs/privacy.md)")
    if output is not None:
        save(draw(setting), output)
        typer.echo(f"wrote {output}")


def _print(plan: ReleasePlan, results: dict[str, str], clients: int | None, k_times: bool) -> None:
    from flwr_splitmix.privacy.events import OUTSIDE
    from flwr_splitmix.privacy.run_plan import ratio_in_words

    full = plan.release.family == "full"
    shown = table("", "")
    for name, value in {
        **results,
        "delta": f"{plan.delta:g}",
        "neighbours": plan.relation,
        "passes": str(plan.passes) + (f", each batch sent {plan.k} times" if k_times else ""),
        "groups": "of one" if full else _groups(plan.k, clients),
        "ratio": ratio_in_words(plan),
        "seen": "each upload alone" if plan.release.seen == "alone" else "only the group's sum",
    }.items():
        shown.add_row(name, value)
    shown.show_header = False
    console().print(shown)
    typer.echo(f"Not covered, where they occur: {'; '.join(OUTSIDE.values())}.")


def _groups(k: int, clients: int | None) -> str:
    if clients is None:
        return f"all of {k} clients; if {k} does not divide their number, give --clients"
    from flwr_splitmix.privacy.run_plan import left_over

    rest = left_over(clients, k)
    alone = f", and one of the {rest} that are left over" if rest else ""
    return f"of {k} of {clients} clients{alone}"
