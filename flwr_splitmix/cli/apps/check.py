"""`splitmix check`: checks an app before it runs, and advises on the cut of its model."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from flwr_splitmix.cli.picture import check_name
from flwr_splitmix.cli.terminal import console, fail, note, problem, table
from flwr_splitmix.files.json_values import strict_json
from flwr_splitmix.words import counted, data_size

if TYPE_CHECKING:
    from flwr_splitmix.apps.checking.report import Advice, Report
    from flwr_splitmix.segments.advice import Setting

MAX_NODES = 100_000
"""Most SuperNodes that a check draws and divides data among, in memory."""

_MAX_CUTS = 40  # lines on a terminal; JSON has all

AppFolder = Annotated[Path, typer.Argument(help="The app's folder.", show_default=False)]
RunConfig = Annotated[
    list[str] | None,
    typer.Option(
        "--run-config",
        "-c",
        metavar="KEYS",
        help="Keys to change, as for flwr run: \"strategy='SFL' lr=5e-4\", or a TOML file.",
        show_default=False,
    ),
]


class CheckFormat(StrEnum):
    """Output format of `splitmix check`."""

    table = "table"
    json = "json"


def check(
    app: AppFolder,
    run_config: RunConfig = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_NODES, help="SuperNodes of the federation; by default Flower's, 2."
        ),
    ] = None,
    any_nodes: Annotated[
        bool, typer.Option(hidden=True, help="The federation's size is not known.")
    ] = False,
    simulated: Annotated[
        bool, typer.Option("--simulated", hidden=True, help="The SuperNodes are virtual.")
    ] = False,
    uplink: Annotated[str | None, typer.Option(help="A client's uplink: 20mbit, 1gbit.")] = None,
    downlink: Annotated[str | None, typer.Option(help="A client's downlink: 100mbit.")] = None,
    rtt: Annotated[str | None, typer.Option(help="Round trip: 40ms.")] = None,
    client_flops: Annotated[
        str | None, typer.Option(help="A client's speed in training: 5gflops.")
    ] = None,
    server_flops: Annotated[
        str | None, typer.Option(help="The server's speed in training: 10tflops.")
    ] = None,
    format: Annotated[  # noqa: A002 - the option's name
        CheckFormat, typer.Option("--format", help="Tables, or one JSON object.")
    ] = CheckFormat.table,
    cuts: Annotated[
        bool, typer.Option("--cuts/--no-cuts", help="Advise on the cut of the model.")
    ] = True,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Also plot the cuts: a .png, .svg or .pdf file."),
    ] = None,
) -> None:
    """Check an app's keys, data, model and cut without starting Flower; advise on the cut.

    Network and speeds that are not given are measured on this machine.
    """
    if output is not None and not cuts:
        fail("-o plots the cuts, and --no-cuts leaves them out; leave out one of the two")
    if output is not None:
        check_name(output)
    with _nothing_collected():
        from flwr_splitmix.apps.checking.app import check_app

        preset = _preset(uplink, downlink, rtt, client_flops, server_flops)
        with redirect_stdout(sys.stderr):  # what the app prints is no part of the report
            report = check_app(
                app, run_config or [], here=Path.cwd(), nodes=nodes, any_nodes=any_nodes,
                simulated=simulated, setting=preset if cuts else None,
            )  # fmt: skip
    if output is not None and report.advice is not None:
        from flwr_splitmix.cli.apps.cut_plot import plot_cuts

        plot_cuts(report.advice, output)
    if format is CheckFormat.json:
        typer.echo(strict_json(report.to_json(), indent=2))
    else:
        out = console()
        print_findings(report, out)
        if report.advice is not None:
            _print_advice(report.advice, out)
    if not report.ok:
        raise typer.Exit(1)
    if output is not None and report.advice is None:
        fail(
            f"{output} was not written: there is no advice on the cuts of an app of one's own, "
            "whose server's part is unknown until it runs; leave out -o"
        )


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Suspend the garbage collector.

    A check is short, and the collector would add a second to it: while torch and timm are
    imported, it scans their half million objects repeatedly.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _preset(
    uplink: str | None,
    downlink: str | None,
    rtt: str | None,
    client_flops: str | None,
    server_flops: str | None,
) -> dict[str, float]:
    from flwr_splitmix.segments.advice import BITS, FLOPS, SECONDS, quantity

    preset = {}
    for name, text, units in (
        ("uplink", uplink, BITS),
        ("downlink", downlink, BITS),
        ("rtt", rtt, SECONDS),
        ("client_flops", client_flops, FLOPS),
        ("server_flops", server_flops, FLOPS),
    ):
        if text is not None:
            try:
                preset[name] = quantity(text, units)
            except ValueError as error:
                option = f"--{name.replace('_', '-')}"
                raise typer.BadParameter(str(error), param_hint=option) from None
    return preset


def print_findings(report: Report, out: Console) -> None:
    """Print facts and remarks, and problems in red on standard error."""
    for sentence in report.problems:
        problem(sentence)
    if not report.ok:
        return
    listing = table("app", report.app)
    for name, fact in report.facts.items():
        listing.add_row(name, fact)
    out.print(listing)
    for remark in report.remarks:
        note(remark, err=False)


def _print_advice(advice: Advice, out: Console) -> None:
    setting = advice.setting
    out.print(f"\nSteps are predicted for {_setting_in_words(setting, advice.measured)}.")
    shown = [cut for cut in advice.cuts if cut.default] if _has_many_cuts(advice) else advice.cuts
    listing = table(
        "cut", ">parameters", ">memory", ">multiply-adds", ">up", ">down", ">step",
        title="\nat each client, in a step of one batch (* is the configured cut)",
    )  # fmt: skip
    for cut in shown:
        listing.add_row(
            (cut.cut_at or "the strategy's own") + (" *" if cut.default else ""),
            f"{cut.client_parameters:,}",
            data_size(cut.client_memory_bytes),
            _si(cut.client_macs),
            data_size(cut.uplink_bytes),
            data_size(cut.downlink_bytes),
            seconds(cut.step_s),
        )
    out.print(listing)
    if _has_many_cuts(advice):
        out.print(f"({counted(len(advice.cuts), 'cut')} in all: --format json has them)")
    if advice.methods:
        listing = table(
            ">up", ">down", ">step", "methods",
            title="\nwhat each method sends at the configured cut, of what PSL sends",
        )  # fmt: skip
        for method in sorted(advice.methods, key=lambda m: m.uplink_share):
            listing.add_row(
                f"{100 * method.uplink_share:.0f} %",
                f"{100 * method.downlink_share:.0f} %",
                seconds(method.step_s),
                ", ".join(method.strategies),
            )
        out.print(listing)
    for remark in advice.notes:
        out.print(f"note: {remark}")


def _has_many_cuts(advice: Advice) -> bool:
    return len(advice.cuts) > _MAX_CUTS


def _setting_in_words(setting: Setting, measured: Any) -> str:
    def with_origin(name: str, value: str) -> str:
        return f"{value} (measured here)" if name in measured else value

    return ", ".join(
        (
            f"uplink {with_origin('uplink', bits(setting.uplink))}",
            f"downlink {with_origin('downlink', bits(setting.downlink))}",
            f"round trip {with_origin('rtt', seconds(setting.rtt))}",
            f"clients {with_origin('client_flops', _si(setting.client_flops) + 'FLOP/s')}",
            f"server {with_origin('server_flops', _si(setting.server_flops) + 'FLOP/s')}",
        )
    )


def _si(value: float) -> str:
    """Return a number with three digits and an SI prefix: "12.3 G"."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g} "


def bits(value: float) -> str:
    """Return bits per second as "20 Mbit/s"."""
    return f"{_si(value)}bit/s"


def seconds(value: float) -> str:
    """Return seconds as "12.3 ms" or "1.23 s"."""
    if value >= 1:
        return f"{value:.3g} s"
    return f"{1e3 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} us"
