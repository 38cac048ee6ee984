"""The transformers model and the tokenizer in an exported language model's folder."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr_splitmix.data.errors import import_extra
from flwr_splitmix.files.reading import read_json
from flwr_splitmix.runs.export.bounds import Weights, check_finite, without_memory
from flwr_splitmix.runs.export.description import MAX_TOKENS
from flwr_splitmix.runs.export.folder import TOKENIZER, ExportError, unreadable
from flwr_splitmix.runs.export.vision import WHOLE
from flwr_splitmix.words import cause, counted

_CONFIG = "config.json"

_OF_TOKENIZER = re.compile(
    rf"{TOKENIZER}|bpe\.codes|dict\.txt|(emoji|byte_maps|entity_vocab|normalizer)\.json"
)
"""Names of a tokenizer's files; the last ones are of rare classes, which have no tokenizer.json."""

_WEIGHTS = "transformers_weights"
"""Key that names a file of weights, or an index, for transformers to load instead of the usual."""

_OF_FILES = re.compile(r"(.*_)?(files?|spm|vocab|merges|inputs)")
"""Keys that may name files for a tokenizer to read, wherever they are; no export has them."""

_QUANTIZATION = "quantization_config"
"""Key that has transformers load weights with the code of another package."""

_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
"""Names of the number of layers in configurations; some make a list of that length when read."""


def open_pretrained(folder: Path, auto: str, *, classes: int = 0) -> tuple[Any, Any]:
    """Load model and tokenizer, in evaluation mode, with nothing but what is in the folder.

    Attention is the same as in training, and experts are computed as transformers does by default:
    some values that config.json could have here are kernels from the hub, thus code. Texts are
    generated with transformers' own defaults, whatever generation_config.json says.

    Parameters
    ----------
    auto
        transformers' class for the model's task.
    classes
        Number of a classifier's classes.

    Raises
    ------
    ExportError
        If a file is missing or cannot be read, config.json asks for another or for a larger model
        than that of the weights, or weights are quantized, NaN, infinite or outside the folder.
    """
    transformers = import_extra("transformers", "reading a language model", "language")
    from flwr_splitmix.segments.language.build import with_attention
    from flwr_splitmix.segments.language.quiet import no_progress_bar
    from flwr_splitmix.segments.language.sources import INDEX

    if not any((folder / name).is_file() for name in (WHOLE, INDEX)):
        raise ExportError(f"{folder / WHOLE} is missing; export the run again")
    weights = Weights.in_folder(folder)
    values = _object(folder / _CONFIG)
    _check_counts(folder / _CONFIG, values, weights, classes)
    shards = _shards(folder)
    load_options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    made_by = getattr(transformers, auto)
    with _checked_files(folder, values, shards) as checked:
        try:
            config = transformers.AutoConfig.from_pretrained(checked, **load_options)

            def blank_with(attention: str) -> tuple[dict[str, Any], Any]:
                safe = {"attn_implementation": attention, "experts_implementation": None}
                with without_memory():
                    return safe, made_by.from_config(config, trust_remote_code=False, **safe)

            safe, blank = with_attention(blank_with)
            weights.check_fills(folder / _CONFIG, blank)
            _check_types(folder, blank)
            with no_progress_bar():
                model, loaded = made_by.from_pretrained(
                    checked,
                    config=config,
                    use_safetensors=True,
                    output_loading_info=True,
                    generation_config=transformers.GenerationConfig(),
                    **safe,
                    **load_options,
                )
            tokenizer = transformers.AutoTokenizer.from_pretrained(checked, **load_options)
        except ExportError:
            raise
        except Exception as error:  # for a damaged file its libraries may raise any
            reason = cause(error).replace(str(checked), str(folder))
            raise ExportError(
                f"cannot read the model in {folder} ({reason}); export the run again"
            ) from error
    if missing := sorted(loaded["missing_keys"]):
        raise ExportError(
            f"the weights in {folder} are not those of its config.json: they lack {missing[0]} "
            f"({counted(len(missing), 'array')} in all); export the run again"
        )
    check_finite(model, folder)
    return model.eval(), tokenizer


def positions_of(model: Any) -> int:
    """Return the most tokens that a model takes, at most `MAX_TOKENS`."""
    from flwr_splitmix.segments.language.layouts.families import layout_of

    return min(int(layout_of(model).max_length(model.config)), MAX_TOKENS)


@contextmanager
def _checked_files(folder: Path, config: dict[str, Any], shards: set[str]) -> Iterator[Path]:
    """Yield a folder with an export's files alone: transformers would follow others, like adapters.

    Parameters
    ----------
    folder
        An exported model, perhaps of somebody else. Its files are linked.
    config
        The content of config.json, from which the keys that name files of weights are removed.
    shards
        Files of weights that the index names.

    Raises
    ------
    ExportError
        If the tokenizer's configuration cannot be read.
    """
    from flwr_splitmix.segments.language.sources import INDEX

    weights = {WHOLE} if (folder / WHOLE).is_file() else {INDEX, *shards}
    for each in _objects_in(config):
        each.pop(_WEIGHTS, None)
    rewritten = {_CONFIG: config}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).exists():
            values = _object(folder / name).items()
            rewritten[name] = {key: each for key, each in values if not _OF_FILES.fullmatch(key)}
    with tempfile.TemporaryDirectory() as created:
        checked = Path(created)
        for file in folder.iterdir():
            known = file.name in weights or _OF_TOKENIZER.fullmatch(file.name)
            if known and file.name not in rewritten and file.is_file():
                (checked / file.name).symlink_to(file.resolve())
        for name, content in rewritten.items():
            try:
                (checked / name).write_text(json.dumps(content), encoding="utf-8")
            except RecursionError:
                raise unreadable(folder / name, "it is nested too deeply") from None
        yield checked


def _shards(folder: Path) -> set[str]:
    """Return the names in an index; refuse files elsewhere, or that no export has."""
    from flwr_splitmix.segments.language.sources import INDEX, files_in

    if not (folder / INDEX).is_file():
        return set()
    try:
        names = set(files_in(folder / INDEX).values())
    except Exception as error:  # a damaged index may raise any
        raise unreadable(folder / INDEX, cause(error)) from error
    for name in names:
        if not name.endswith(".safetensors"):
            raise unreadable(
                folder / INDEX, f"it names {name!r:.80}, and no export has such a file"
            )
    return names


def _check_types(folder: Path, blank: Any) -> None:
    from flwr_splitmix.segments.language.weights import check_types

    try:
        check_types(blank, folder)
    except ValueError as error:
        raise ExportError(f"{error}; or export the run again") from error


def _object(file: Path) -> dict[str, Any]:
    """Read a file with a JSON object; raise ExportError if it holds none."""
    try:
        values = read_json(file)
    except (OSError, ValueError) as error:
        raise unreadable(file, error) from error
    if not isinstance(values, dict):
        raise unreadable(file, "it holds no JSON object")
    return values


def _check_counts(file: Path, config: dict[str, Any], weights: Weights, classes: int) -> None:
    """Refuse numbers of layers and classes for which reading a configuration makes lists."""
    if _has(config, _QUANTIZATION):
        raise unreadable(file, f"it has a {_QUANTIZATION}, and no export does")
    for name in _LAYERS:
        weights.check_layers(file, name, config.get(name))
    labels = config.get("num_labels")
    if isinstance(labels, int) and labels > max(classes, 2):
        raise unreadable(file, f"num_labels is {labels!r:.80}, but {classes} classes have a name")


def _has(config: dict[str, Any], key: str) -> bool:
    """Return whether a configuration, or one within at any depth, has a value for a key."""
    return any(each.get(key) is not None for each in _objects_in(config))


def _objects_in(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a configuration and those within, at any depth."""
    waiting: list[object] = [config]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
