"""`splitmix predict`: predictions of an exported model for pictures or a text."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flwr_splitmix.cli.terminal import console, print_sentence, table
from flwr_splitmix.files.json_values import strict_json
from flwr_splitmix.runs import RunError
from flwr_splitmix.runs.reports.words import percent

if TYPE_CHECKING:
    from flwr_splitmix.runs.export.predict import Likely


_MAX_SHOWN_CHARACTERS = 60
"""Most characters of a text in the table; the JSON has all of it."""

_TOP = 3


class PredictionFormat(StrEnum):
    """Output format of `splitmix predict`."""

    table = "table"
    json = "json"


def predict(
    folder: Annotated[Path, typer.Argument(help="A folder written by `splitmix export`.")],
    images: Annotated[
        list[Path] | None, typer.Argument(metavar="IMAGE...", help="Picture files.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="A text to classify, or a question to answer.")
    ] = None,
    second: Annotated[
        str | None,
        typer.Option(help="The second sentence of a pair, or what follows the question."),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of classes to print; by default 3 in a table, all in JSON."
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of an answer; by default the run's.")
    ] = None,
    format: Annotated[  # noqa: A002 - the option's name
        PredictionFormat, typer.Option("--format", help="Lines of text, or JSON.")
    ] = PredictionFormat.table,
) -> None:
    """Print the most likely classes of pictures or of a text, or the answer to a question."""
    if bool(images) == (text is not None):
        raise RunError('give pictures or --text "...", one of the two')
    if text is not None and not text.strip():
        raise RunError("--text is empty; give a text to classify, or a question to answer")
    if second is not None and text is None:
        raise RunError("--second goes with --text")
    if max_new_tokens is not None and text is None:
        raise RunError("--max-new-tokens goes with --text")
    from flwr_splitmix.runs.export import predict as exported  # loads torch

    as_json = format is PredictionFormat.json
    try:
        if text is None:
            predictions = exported.classify_pictures(folder, images or ())
        elif exported.answers_questions(folder):
            if top is not None:
                raise RunError("--top is for classes, and this model answers; leave it out")
            question = text if second is None else f"{text}\n{second}"
            answer = exported.answer(folder, question, max_new_tokens=max_new_tokens)
            _print_answer(text, second, answer, as_json=as_json)
            return
        elif max_new_tokens is not None:
            raise RunError(
                "--max-new-tokens is for answers, and this model classifies; leave it out"
            )
        else:
            predictions = [exported.classify_text(folder, text, second)]
    except ValueError as error:
        raise RunError(str(error)) from error
    names = [text] if text is not None else [str(image) for image in images or ()]
    if as_json:
        pairs = zip(names, predictions, strict=True)
        typer.echo(strict_json([_as_json(name, classes[:top]) for name, classes in pairs]))
    else:
        shown = names if text is None else [_beginning_of(text)]
        console().print(_classes_table(shown, predictions, top or _TOP))


def _print_answer(text: str, second: str | None, answer: str, *, as_json: bool) -> None:
    if as_json:
        question = {"text": text} if second is None else {"text": text, "second": second}
        typer.echo(strict_json({**question, "answer": answer}))
    else:
        print_sentence(answer)


def _classes_table(names: Sequence[str], predictions: Sequence[Sequence[Likely]], top: int) -> Any:
    """Return a table of the most likely classes of each input; `top` is their number."""
    listing = table("", "class", ">probability")
    for name, classes in zip(names, predictions, strict=True):
        for place, likely in enumerate(classes[:top]):
            listing.add_row("" if place else name, likely.name, percent(likely.probability))
    return listing


def _beginning_of(text: str) -> str:
    """Return the beginning of a text, in one line, with an ellipsis if it is longer."""
    line = " ".join(text.split())
    return (
        line
        if len(line) <= _MAX_SHOWN_CHARACTERS
        else f"{line[: _MAX_SHOWN_CHARACTERS - 4].rstrip()} ..."
    )


def _as_json(name: str, classes: Sequence[Likely]) -> dict[str, Any]:
    return {"input": name, "classes": {likely.name: likely.probability for likely in classes}}
