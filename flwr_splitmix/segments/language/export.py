"""Writing the three parts as one folder that transformers loads."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from flwr_splitmix.segments.language.build import skeleton
from flwr_splitmix.segments.language.cutting import cut_language_model
from flwr_splitmix.segments.language.lora import has_lora, merge_lora
from flwr_splitmix.segments.language.parts import LanguageParts

GENERATION = "generation_config.json"
"""How a model is to write, as transformers names the file; its end tokens, for one."""


def export(parts: LanguageParts, folder: str | Path, tokenizer: Any = None) -> None:
    """Write the whole model for `AutoModelFor*.from_pretrained`.

    Adapters are merged in copies of their parts; the parts stay as they are. A decoder that came
    from a folder with settings for generation takes them along.

    Parameters
    ----------
    parts
        All three; what a server trained may be put into a client's parts before.
    folder
        Made if it is not there.
    tokenizer
        Written beside the model. Its padding token becomes the configuration's where that has
        none: a decoder that classifies needs one for batches.

    Raises
    ------
    ValueError
        If a part is missing, or has weights on "disk", or `folder` is there and is none.
    """
    target = Path(folder)
    if target.exists() and not target.is_dir():  # transformers only logs that
        raise ValueError(f"{folder} is no folder; the model needs one, or a name that is free")
    generation = _generation_settings(parts)
    config = copy.deepcopy(parts.config)
    if tokenizer is not None and getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = tokenizer.pad_token_id
    head, trunk, tail = parts.all_here()
    dtype = str(next(head.parameters()).dtype).removeprefix("torch.")
    whole = skeleton(parts.model_class, config, dtype, config._attn_implementation)
    blank = cut_language_model(whole, parts.cut)
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
    whole.save_pretrained(target)
    if generation is not None:
        (target / GENERATION).write_bytes(generation)
    if tokenizer is not None:
        tokenizer.save_pretrained(target)


def _generation_settings(parts: LanguageParts) -> bytes | None:
    """Return what stands in the file of a decoder's own folder, if there is one."""
    source = parts.config.name_or_path
    if parts.task != "generation" or not source:
        return None
    file = Path(source) / GENERATION
    return file.read_bytes() if file.is_file() else None
