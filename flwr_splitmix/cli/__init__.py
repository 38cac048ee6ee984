"""The command `splitmix`; its commands are modules here and in the folders, registered at the end.

None of them loads torch on import, so that `splitmix --version` and `splitmix runs` are fast.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from importlib.metadata import version
from typing import Annotated, Any

import click
import typer
from typer.core import TyperGroup

from flwr_splitmix.cli.apps.check import check
from flwr_splitmix.cli.apps.new import new
from flwr_splitmix.cli.attack import attack
from flwr_splitmix.cli.experiment.commands import experiment
from flwr_splitmix.cli.mixer import mixer
from flwr_splitmix.cli.models.data import data
from flwr_splitmix.cli.models.export import export
from flwr_splitmix.cli.models.predict import predict
from flwr_splitmix.cli.models.pretrained import model
from flwr_splitmix.cli.privacy.commands import privacy
from flwr_splitmix.cli.results.audit_log import audit_log
from flwr_splitmix.cli.results.compare import compare
from flwr_splitmix.cli.results.listing import runs
from flwr_splitmix.cli.results.plot import plot
from flwr_splitmix.cli.results.report import report
from flwr_splitmix.cli.results.show import show
from flwr_splitmix.cli.run.command import run
from flwr_splitmix.cli.terminal import drop_output, output_fails, print_sentence
from flwr_splitmix.extras import MissingExtraError, needed_for
from flwr_splitmix.runs import RunError


class _ErrorMessageGroup(TyperGroup):
    """Commands whose `RunError` or `StorageError` ends in an error message and exit status 1.

    So does standard output that takes no more, as on a full disk; one that was closed, as by
    `| head`, ends a command without a word.
    """

    def main(self, *arguments: Any, **options: Any) -> Any:
        _replace_what_it_lacks()
        try:
            try:
                return super().main(*arguments, **options)
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()
        except BrokenPipeError:
            drop_output()
            sys.exit(1)
        except OSError as error:
            if error.filename is not None or not output_fails():
                raise
            drop_output()
            print_sentence(f"standard output cannot be written: {error.strerror}", err=True)
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with needed_for("this command"):
                return super().invoke(ctx)
        except (typer.Exit, typer.Abort):  # click's own RuntimeErrors
            raise
        except MissingExtraError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(1) from error
        except FileNotFoundError as error:
            if _working_directory_exists():
                raise
            print_sentence(
                "the folder that you are in has been removed; change to another one", err=True
            )
            raise typer.Exit(1) from error
        except RuntimeError as error:
            if not isinstance(error, RunError):
                from flwr_splitmix.storage import StorageError  # loads torch: only if it may matter

                if not isinstance(error, StorageError):
                    raise
            print_sentence(str(error), err=True)
            raise typer.Exit(1) from error


def _replace_what_it_lacks() -> None:
    """Let an output that is not of UTF-8 take all text: what it lacks becomes a question mark."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="replace")


def _working_directory_exists() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


app = typer.Typer(
    name="splitmix",
    cls=_ErrorMessageGroup,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="markdown",  # also of the groups below: paragraphs flow at any width
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"splitmix {version('flwr-splitmix')}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Split learning for Flower: write, check and run apps, look at their runs, and attack them.

    Also: export trained models, run a mixer, plan noise, get data, and run the papers' experiments.
    """


app.command()(new)
app.command()(check)
app.command()(run)
app.command()(runs)
app.command()(show)
app.command()(plot)
app.command()(export)
app.command()(predict)
app.command()(compare)
app.command()(report)
app.command("audit-log")(audit_log)
app.command()(mixer)
app.add_typer(attack)
app.add_typer(data)
app.add_typer(experiment)
app.add_typer(model)
app.add_typer(privacy)
