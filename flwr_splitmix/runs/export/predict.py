"""Predictions of an exported model: classes of images and texts, answers to questions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from flwr_splitmix.data import DataError
from flwr_splitmix.data.texts.columns import check_characters
from flwr_splitmix.data.texts.tokens import plain_tokens, token_ids
from flwr_splitmix.runs.export.bounds import Weights, check_finite, without_memory
from flwr_splitmix.runs.export.description import (
    LanguageDescription,
    VisionDescription,
    read_description,
)
from flwr_splitmix.runs.export.folder import FACTS, ExportError, unreadable
from flwr_splitmix.runs.export.language import open_pretrained, positions_of
from flwr_splitmix.runs.export.vision import LOWER, UPPER
from flwr_splitmix.segments import SPLITS, SplitModel
from flwr_splitmix.words import counted

_BATCH = 64

Of = TypeVar("Of", VisionDescription, LanguageDescription)


class Likely(NamedTuple):
    """A class and its probability."""

    name: str
    probability: float


def load_segments(folder: Path) -> SplitModel:
    """Load lower and upper segment of an exported vision model, in evaluation mode.

    Raises
    ------
    ExportError
        If the folder holds no vision model, a file cannot be read, or weights are NaN or infinite.
    """
    return _segments(folder, _described(folder, VisionDescription))


def classify_pictures(folder: Path, pictures: Sequence[Path]) -> list[list[Likely]]:
    """Classify image files with an exported vision model; the likeliest classes come first.

    If an image may have several labels, each has a probability of its own.

    Raises
    ------
    ExportError
        As for `load_segments`.
    DataError
        If an image cannot be read.
    """
    described = _described(folder, VisionDescription)
    lower, upper = _segments(folder, described)
    steps = described.preprocessing
    results = []
    with torch.no_grad():
        for start in range(0, len(pictures), _BATCH):
            logits = upper(lower(steps.batch(pictures[start : start + _BATCH])))
            likely = logits.sigmoid() if described.multi_label else logits.softmax(-1)
            results += [_ranked(row, described.classes) for row in likely]
    return results


def classify_text(folder: Path, text: str, second: str | None = None) -> list[Likely]:
    """Classify a text with an exported language model; the likeliest classes come first.

    A text longer than the run's maximum length is cut.

    Parameters
    ----------
    second
        The second sentence, for a model that learned pairs; None for one that did not.

    Raises
    ------
    ExportError
        If the folder holds no model that classifies texts, or if the model classifies pairs and
        there is no second sentence, or vice versa.
    DataError
        If the text has no token, or a text has half a character.
    """
    check_characters(text, "the text has")
    if second is not None:
        check_characters(second, "the second text has")
    described = _described(folder, LanguageDescription)
    if described.pairs and second is None:
        raise ExportError(
            f"{folder} holds a model that classifies pairs of sentences; give it the second one, "
            'too: --second "..."'
        )
    if second is not None and not described.pairs:
        raise ExportError(f"{folder} holds a model that learned no pairs; leave --second out")
    model, tokenizer = open_pretrained(
        folder, "AutoModelForSequenceClassification", classes=len(described.classes)
    )
    (ids,), _ = plain_tokens(
        [text],
        tokenizer,
        max_length=min(described.max_length, positions_of(model)),
        seconds=() if second is None else [second],
        long_texts="cut",
    )
    with torch.no_grad():
        logits = model(ids[None]).logits[0].float()
    return _ranked(logits.softmax(-1), described.classes)


def answers_questions(folder: Path) -> bool:
    """Return whether an exported model generates text; raise ExportError as `load_segments`."""
    described = read_description(folder)
    return isinstance(described, LanguageDescription) and described.task == "generation"


def answer(folder: Path, question: str, *, max_new_tokens: int | None = None) -> str:
    """Answer a question by greedy decoding with an exported language model.

    Parameters
    ----------
    max_new_tokens
        Most tokens of the answer; None: as many as the run's evaluation allowed.

    Raises
    ------
    ExportError
        If the folder holds no model that generates text.
    DataError
        If the question has half a character, or the tokenizer fails at it.
    """
    check_characters(question, "the question has")
    described = _described(folder, LanguageDescription)
    if described.prompt is None:
        raise ExportError(f"{folder} holds a model that classifies texts, and does not answer any")
    model, tokenizer = open_pretrained(folder, "AutoModelForCausalLM")
    (ids,) = token_ids(tokenizer, [described.prompt.replace("{}", question)])
    if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id:
        ids = ids[:-1]  # some tokenizers end every text, but here the answer follows
    room = positions_of(model) - len(ids)
    if room < (max_new_tokens or 1):
        raise DataError(
            f"the model takes {positions_of(model)} tokens, question and answer together; the "
            f"question has {len(ids)}, and {max_new_tokens or 1} may follow: make it shorter"
            + (", or lower --max-new-tokens" if max_new_tokens else "")
        )
    prompt = torch.tensor([ids])
    with torch.no_grad():
        written = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=max_new_tokens or min(room, described.max_new_tokens),
            do_sample=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    new = written[0, prompt.shape[1] :]
    text: str = tokenizer.decode(new, skip_special_tokens=True)
    return text.strip()


def _described(folder: Path, kind: type[Of]) -> Of:
    described = read_description(folder)
    if not isinstance(described, kind):
        arguments = "IMAGE..." if isinstance(described, VisionDescription) else '--text "..."'
        raise ExportError(f"{folder} holds a {described.kind} model; give it {arguments}")
    return described


def _segments(folder: Path, described: VisionDescription) -> SplitModel:
    recipe = described.segments
    arguments = recipe.arguments.model_dump(exclude_unset=True)
    weights = Weights.in_folder(folder)
    weights.check_layers(folder / FACTS, "segments.arguments.depth", recipe.arguments.depth)
    try:
        with without_memory():
            blank = SPLITS[recipe.made_by](**arguments, seed=0)
        weights.check_fills(folder / FACTS, nn.ModuleList(blank))
        segments = SPLITS[recipe.made_by](**arguments, seed=0)
    except ValueError as error:
        raise unreadable(folder / FACTS, f"segments.arguments: {error}") from error
    for segment, name in zip(segments, (LOWER, UPPER), strict=True):
        _load(segment, folder / name)
    return segments


def _load(segment: nn.Module, file: Path) -> None:
    try:
        segment.load_state_dict(load_file(file))
    except FileNotFoundError:
        raise ExportError(f"{file} is missing; export the run again") from None
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ExportError(
            f"cannot read {file}, which is damaged or of another model ({reason}); export the run "
            "again"
        ) from error
    check_finite(segment, file)
    segment.eval()


def _ranked(probabilities: Tensor, classes: Sequence[str]) -> list[Likely]:
    if len(classes) != len(probabilities):
        raise DataError(
            f"the model distinguishes {counted(len(probabilities), 'class')}, {len(classes)} have "
            "a name"
        )
    order = probabilities.argsort(descending=True, stable=True)
    return [Likely(classes[int(i)], float(probabilities[i])) for i in order]
