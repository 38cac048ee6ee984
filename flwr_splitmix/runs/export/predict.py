"""Predictions of an exported model: classes of images and texts, answers to questions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from flwr_splitmix.data import DataError
from flwr_splitmix.data.errors import import_extra
from flwr_splitmix.data.images.preprocessing import Preprocessing
from flwr_splitmix.data.texts.columns import check_characters
from flwr_splitmix.data.texts.tokens import plain_tokens
from flwr_splitmix.runs.export.folder import FACTS, ExportError, read_facts
from flwr_splitmix.runs.export.vision import LOWER, UPPER, WHOLE
from flwr_splitmix.segments import SPLITS, SplitModel
from flwr_splitmix.words import counted

_BATCH = 64


class Likely(NamedTuple):
    """A class and its probability."""

    name: str
    probability: float


def load_segments(folder: Path) -> SplitModel:
    """Load lower and upper segment of an exported vision model, in evaluation mode.

    Raises
    ------
    ExportError
        If the folder holds no vision model, or a file cannot be read.
    """
    call = _facts(folder, "vision")["segments"]
    try:
        segments = SPLITS[call["made_by"]](**call["arguments"], seed=0)
    except (KeyError, TypeError) as error:
        raise ExportError(
            f"{folder / FACTS} has segments that cannot be made ({error}); export the run again"
        ) from error
    for segment, name in zip(segments, (LOWER, UPPER), strict=True):
        _load(segment, folder / name)
    return segments


def classify_pictures(folder: Path, pictures: Sequence[Path]) -> list[list[Likely]]:
    """Classify image files with an exported vision model; the likeliest classes come first.

    If an image may have several labels, each has a probability of its own.

    Raises
    ------
    ExportError
        As `load_segments`.
    DataError
        If an image cannot be read.
    """
    facts = _facts(folder, "vision")
    lower, upper = load_segments(folder)
    steps = Preprocessing.from_facts(facts["preprocessing"])
    results = []
    with torch.no_grad():
        for start in range(0, len(pictures), _BATCH):
            logits = upper(lower(steps.batch(pictures[start : start + _BATCH])))
            likely = logits.sigmoid() if facts.get("multi_label") else logits.softmax(-1)
            results += [_ranked(row, facts["classes"]) for row in likely]
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
    facts = _facts(folder, "language")
    if facts.get("pairs", False) and second is None:
        raise ExportError(
            f"{folder} holds a model that classifies pairs of sentences; give it the other one, "
            'too: --second "..."'
        )
    if second is not None and not facts.get("pairs", False):
        raise ExportError(f"{folder} holds a model that learned no pairs; leave --second out")
    model, tokenizer = _pretrained(folder, "AutoModelForSequenceClassification")
    (ids,), _ = plain_tokens(
        [text],
        tokenizer,
        max_length=facts["max_length"],
        seconds=() if second is None else [second],
        long_texts="cut",
    )
    with torch.no_grad():
        logits = model(ids[None]).logits[0].float()
    return _ranked(logits.softmax(-1), facts["classes"])


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
        If the question has half a character.
    """
    check_characters(question, "the question has")
    facts = _facts(folder, "language")
    model, tokenizer = _pretrained(folder, "AutoModelForCausalLM")
    ids = tokenizer(_asked(folder, facts["prompt"], question))["input_ids"]
    if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id:
        ids = ids[:-1]  # some tokenizers end every text, but here the answer follows
    prompt = torch.tensor([ids])
    with torch.no_grad():
        written = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=max_new_tokens or facts["max_new_tokens"],
            do_sample=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    new = written[0, prompt.shape[1] :]
    said: str = tokenizer.decode(new, skip_special_tokens=True)
    return said.strip()


def _facts(folder: Path, kind: str) -> dict[str, Any]:
    facts = read_facts(folder)
    if facts.get("kind") != kind:
        wanted = "IMAGE..." if facts.get("kind") == "vision" else '--text "..."'
        raise ExportError(f"{folder} holds a {facts.get('kind')} model; give it {wanted}")
    return facts


def _asked(folder: Path, prompt: str, question: str) -> str:
    try:
        return prompt.format(question)
    except (LookupError, ValueError) as error:
        raise ExportError(
            f"{folder / FACTS} has the prompt {prompt!r:.80}, which has no place for a question; "
            "export the run again"
        ) from error


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
    segment.eval()


def _pretrained(folder: Path, auto: str) -> tuple[Any, Any]:
    transformers = import_extra("transformers", "reading a language model", "language")
    from flwr_splitmix.segments.language.quiet import no_progress_bar

    if not any((folder / name).is_file() for name in (WHOLE, f"{WHOLE}.index.json")):
        raise ExportError(f"{folder / WHOLE} is missing; export the run again")
    try:
        with no_progress_bar():
            model, loaded = getattr(transformers, auto).from_pretrained(
                folder, local_files_only=True, use_safetensors=True, output_loading_info=True
            )
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # of a damaged file its libraries raise whatever they meet
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ExportError(
            f"cannot read the model in {folder} ({reason}); export the run again"
        ) from error
    if missing := sorted(loaded["missing_keys"]):
        raise ExportError(
            f"the weights in {folder} are not those of its config.json: they lack {missing[0]} "
            f"({counted(len(missing), 'array')} in all); export the run again"
        )
    return model.eval(), tokenizer


def _ranked(probabilities: Tensor, classes: Sequence[str]) -> list[Likely]:
    if len(classes) != len(probabilities):
        raise DataError(
            f"the model tells {counted(len(probabilities), 'class')} apart, {len(classes)} have a "
            "name"
        )
    order = probabilities.argsort(descending=True, stable=True)
    return [Likely(classes[int(i)], float(probabilities[i])) for i in order]
