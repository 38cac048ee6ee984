"""Tokenizers: opened with a model, or trained here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr_splitmix.data.errors import DataError, import_extra
from flwr_splitmix.files.names import is_bare
from flwr_splitmix.files.reading import read_json
from flwr_splitmix.pretrained import located
from flwr_splitmix.pretrained.padding import example_of_padding
from flwr_splitmix.words import cause

PADDING, END = "<pad>", "<end>"
"""Special tokens of tokenizers trained here; END also begins every text."""

_MIN_VOCABULARY = 256 + 2  # the bytes and the special tokens

_PURPOSE = "reading text as tokens"


def train_tokenizer(texts: Iterable[str], vocab_size: int = 512) -> Any:
    """Train a byte-level BPE tokenizer; the same texts give the same tokenizer.

    Its vocabulary has all bytes, so it can encode any text. It puts `END` before each text, and
    before each of a pair, so that a decoder can detect the start of a text.

    Parameters
    ----------
    texts
        Public texts, as the vocabulary reveals their content.
    vocab_size
        Maximum number of tokens, at least 258; short texts may give fewer.

    Returns
    -------
    transformers.PreTrainedTokenizerFast

    Raises
    ------
    DataError
        If `vocab_size` is too small.

    Source: Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (2016),
    over bytes as in GPT-2.
    """
    if vocab_size < _MIN_VOCABULARY:
        raise DataError(f"the vocabulary's size is {vocab_size}; it must be at least 258")
    tokenizers = import_extra("tokenizers", _PURPOSE, "language")
    transformers = import_extra("transformers", _PURPOSE, "language")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PADDING, END],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{END} $A",
        pair=f"{END} $A {END} $B",
        special_tokens=[(END, tokenizer.token_to_id(END))],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PADDING, eos_token=END, bos_token=END
    )


def open_tokenizer(source: str, *, padding: str = "") -> Any:
    """Open the tokenizer of a model.

    Parameters
    ----------
    source
        A folder with tokenizer files, the name of a decoder that `splitmix model fetch` has
        downloaded, or the name of a model on the Hugging Face hub.
    padding
        Token for padding; "": the tokenizer's own.

    Returns
    -------
    transformers tokenizer

    Raises
    ------
    DataError
        If there is no tokenizer, it needs code of its own, which never runs, it names files outside
        its folder, it lacks the token `padding`, or it has no padding token.
    """
    transformers = import_extra("transformers", _PURPOSE, "language")
    try:
        folder = Path(located(source)).expanduser()
    except ValueError as error:
        raise DataError(str(error)) from error
    _check_beside(folder)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(folder) if folder.is_dir() else source, trust_remote_code=False
        )
    except Exception as error:  # from a missing file to a missing network
        raise DataError(
            f"{source!r} has no tokenizer that can be opened ({cause(error)})"
        ) from error
    if padding:
        if padding not in tokenizer.get_vocab():
            raise DataError(
                f"padding-token is {padding!r}, but the tokenizer of {source!r} has no such token; "
                f"name one of its tokens: {example_of_padding(tokenizer)}"
            )
        tokenizer.pad_token = padding
    if tokenizer.pad_token_id is None:
        raise DataError(
            f"the tokenizer of {source!r} has no padding token; name one of its tokens to pad "
            f"with: {example_of_padding(tokenizer)}"
        )
    return tokenizer


def _check_beside(folder: Path) -> None:
    """Raise DataError if a tokenizer's configuration names files outside its folder."""
    file = folder / "tokenizer_config.json"
    if not file.exists():
        return
    try:
        names = read_json(file).get("fast_tokenizer_files") or []
        outside = [name for name in names if not is_bare(name)]
    except Exception as error:  # whatever a damaged file leads to
        raise DataError(f"{file} cannot be read ({cause(error)})") from error
    if outside:
        raise DataError(
            f"{file} names {outside[0]!r:.200} in fast_tokenizer_files, which is not a file beside "
            "it; remove that key, or take the model's folder from its source again"
        )
