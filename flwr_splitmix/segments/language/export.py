"""Export of the three parts to one folder that transformers can load."""

from __future__ import annotations

import contextlib
import copy
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flwr_splitmix.files.writing import follow_umask
from flwr_splitmix.pretrained.padding import another_padding, ends_texts
from flwr_splitmix.private_names import attention_of
from flwr_splitmix.segments.language.build import skeleton
from flwr_splitmix.segments.language.cutting import cut_sharing_tables
from flwr_splitmix.segments.language.lora import has_lora, merge_lora
from flwr_splitmix.segments.language.parts import LanguageParts
from flwr_splitmix.segments.language.quiet import no_progress_bar

GENERATION = "generation_config.json"
"""File of transformers with the settings for generation, such as end tokens."""


def export(
    parts: LanguageParts,
    folder: str | Path,
    tokenizer: Any = None,
    *,
    classes: Sequence[str] = (),
) -> None:
    """Write the whole model for `AutoModelFor*.from_pretrained`.

    Adapters are merged in copies of their parts; the parts are not changed. If a decoder came
    from a folder with settings for generation, they are copied.

    Parameters
    ----------
    parts
        All three parts; weights trained by a server can be loaded into a client's parts before.
    folder
        Created if it does not exist.
    tokenizer
        Written beside the model. Its padding token becomes the configuration's: a decoder for
        classification looks for a text's last token by it. If that ends each text, too, such a
        decoder gets another one: it was trained with masks, whatever they pad with.
    classes
        Names of a classifier's classes, by label; with none, the configuration keeps its own.

    Raises
    ------
    ValueError
        If a part is missing or has weights on "disk", `folder` exists and is not a folder, there
        are names, but not one for each class, or a decoder for classification would pad with the
        token that ends each text and the tokenizer has no other special token.
    OSError
        If the folder cannot be written, as on a full disk.
    """
    target = Path(folder)
    if target.exists() and not target.is_dir():  # transformers only logs this
        raise ValueError(f"{folder} is not a folder; the model needs one, or a name that is free")
    generation = _generation_settings(parts)
    config = copy.deepcopy(parts.config)
    if tokenizer is not None and parts.task == "classification" and parts.kind == "decoder":
        tokenizer = _padding_apart(tokenizer)
    if tokenizer is not None and tokenizer.pad_token_id is not None:
        config.pad_token_id = tokenizer.pad_token_id
    if classes:
        _name_classes(config, classes)
    head, trunk, tail = parts.all_here()
    dtype = str(next(head.parameters()).dtype).removeprefix("torch.")
    whole = skeleton(parts.model_class, config, dtype, attention_of(config))
    blank = cut_sharing_tables(whole, parts.cut)
    for part, empty in zip((head, trunk, tail), blank.all_here(), strict=True):
        if any(weight.is_meta for weight in part.parameters()):
            raise ValueError(
                f"the {type(part).__name__.lower()} has weights that are offloaded; export needs "
                "all of them in memory"
            )
        merged = part
        if has_lora(part):
            merged = copy.deepcopy(part)
            merge_lora(merged)
        empty.load_state_dict(merged.state_dict(), assign=True)
    whole.tie_weights()
    with no_progress_bar(), _system_errors(target):
        whole.save_pretrained(target)
    for weights in target.glob("model*.safetensors"):
        follow_umask(weights)  # safetensors writes for one user only
    if generation is not None:
        (target / GENERATION).write_bytes(generation)
    if tokenizer is not None:
        with _system_errors(target):
            tokenizer.save_pretrained(target)


@contextlib.contextmanager
def _system_errors(folder: Path) -> Iterator[None]:
    """Raise the system's errors as OSError: safetensors and tokenizers have them in a text."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        match = re.search(r"\(os error (\d+)\)", str(error))
        if match is None:
            raise
        number = int(match[1])
        raise OSError(number, os.strerror(number), str(folder)) from error


def _padding_apart(tokenizer: Any) -> Any:
    """Return a tokenizer whose padding token ends no text: the same one, or a copy."""
    if not ends_texts(tokenizer, tokenizer.pad_token_id):
        return tokenizer
    other = another_padding(tokenizer)
    if other is None:
        raise ValueError(
            f"the tokenizer pads with {tokenizer.pad_token!r}, with which it also ends each text, "
            "so that transformers' classifier would not find a text's last token, and it has no "
            "other special token: add one to it, and pad with that"
        )
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.pad_token = other
    return tokenizer


def _name_classes(config: Any, classes: Sequence[str]) -> None:
    if len(classes) != config.num_labels:
        raise ValueError(
            f"the head has {config.num_labels} classes, but {len(classes)} have a name: {classes}"
        )
    config.id2label = dict(enumerate(classes))
    config.label2id = {name: label for label, name in enumerate(classes)}


def _generation_settings(parts: LanguageParts) -> bytes | None:
    """Return the content of `GENERATION` in a decoder's own folder, if there is one."""
    source = parts.config.name_or_path
    if parts.task != "generation" or not source:
        return None
    file = Path(source) / GENERATION
    return file.read_bytes() if file.is_file() else None
