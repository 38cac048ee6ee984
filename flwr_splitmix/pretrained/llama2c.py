"""Conversion of models in llama2.c's format to folders that transformers can load."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.extras import needed_for

__all__ = ["convert", "read_model", "read_pieces", "tokenizer_of_pieces"]

_HEADER = struct.Struct("<7i")
_PIECE = struct.Struct("<fi")
_SPACE = "\u2581"
"""SentencePiece's character for a space."""

_SPECIAL = 3
"""Number of special pieces at the beginning: unknown, beginning and end of a text."""

EPSILON = 1e-5
"""Epsilon of the RMS norms, from llama2.c's code."""


def convert(data: bytes, folder: Path) -> None:
    """Convert a `llama2.data`, a model followed by its tokenizer, to a folder.

    Raises
    ------
    ValueError
        If the data have another format.
    """
    with needed_for("converting a model", "language"):
        from transformers import LlamaForCausalLM
    config, tensors, end = read_model(data)
    # All names of the model must be loaded: a missing weight would be random.
    with torch.device("meta"):
        model: Any = LlamaForCausalLM(config)
    missing = model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    if missing.unexpected_keys or set(missing.missing_keys) - {"lm_head.weight"}:
        raise ValueError(f"the model's weights do not fit: {missing}")
    tokenizer = tokenizer_of_pieces(read_pieces(data[end:], config.vocab_size))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def read_model(data: bytes) -> tuple[Any, dict[str, Tensor], int]:
    """Read the weights at the beginning of `data`.

    Rows of the query and key projections are reordered from interleaved rotary pairs (llama2.c) to
    halves (transformers).

    Returns
    -------
    The configuration of a Llama, its weights by transformers' names in float32, and the offset of
    their end in `data`.

    Raises
    ------
    ValueError
        If sizes are invalid, or `data` is too short.
    """
    sizes, tied = _sizes_of(data)
    weights = _Weights(data, sizes)
    tensors = _tensors(weights, sizes, tied=tied)
    return _config(sizes, tied=tied), tensors, weights.place


class _Sizes(NamedTuple):
    """The sizes of a model, in the order of a header."""

    width: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    length: int

    @property
    def head_width(self) -> int:
        return self.width // self.heads


def _sizes_of(data: bytes) -> tuple[_Sizes, bool]:
    """Read a header: the sizes, and whether the embedding also weighs the outputs.

    Raises
    ------
    ValueError
        If no model has such sizes.
    """
    if len(data) < _HEADER.size:
        raise ValueError(f"a model has a header of {_HEADER.size} bytes; got {len(data)}")
    header = _Sizes(*_HEADER.unpack_from(data))
    sizes = header._replace(vocabulary=abs(header.vocabulary))
    uneven = min(sizes) < 1 or sizes.width % sizes.heads or sizes.heads % sizes.kv_heads
    if uneven or max(sizes) > 1 << 20:
        raise ValueError(f"no model of llama2.c: its sizes are {tuple(sizes)}")
    if sizes.head_width % 2:
        raise ValueError(f"no model of llama2.c: a head has the odd width {sizes.head_width}")
    return sizes, header.vocabulary > 0


class _Weights:
    """Reads the weights that follow a header one after the other.

    Attributes
    ----------
    place
        The offset of the next one.
    """

    def __init__(self, data: bytes, sizes: _Sizes) -> None:
        self._data = data
        self._sizes = sizes
        self.place = _HEADER.size

    def take(self, *shape: int) -> Tensor:
        """Return the next weights as float32; raise ValueError if `data` is too short."""
        data, count = self._data, int(np.prod(shape, dtype=np.int64))
        if self.place + 4 * count > len(data):
            raise ValueError(
                f"the model ends after {len(data)} bytes; its sizes {tuple(self._sizes)} need more"
            )
        numbers = np.frombuffer(data, "<f4", count, self.place).reshape(shape)
        self.place += 4 * count
        return torch.from_numpy(numbers.copy())


def _tensors(weights: _Weights, sizes: _Sizes, *, tied: bool) -> dict[str, Tensor]:
    """Return all weights by transformers' names."""
    width, hidden, kv_width = sizes.width, sizes.hidden, sizes.kv_heads * sizes.head_width
    stacked = {
        "input_layernorm": (width,),
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (kv_width, width),
        "self_attn.v_proj": (kv_width, width),
        "self_attn.o_proj": (width, width),
        "post_attention_layernorm": (width,),
        "mlp.gate_proj": (hidden, width),
        "mlp.down_proj": (width, hidden),
        "mlp.up_proj": (hidden, width),
    }  # in the file's order
    tensors = {"model.embed_tokens.weight": weights.take(sizes.vocabulary, width)}
    for name, shape in stacked.items():
        for layer, weight in enumerate(weights.take(sizes.layers, *shape)):
            if name.endswith(("q_proj", "k_proj")):
                weight = in_halves(weight, shape[0] // sizes.head_width)
            tensors[f"model.layers.{layer}.{name}.weight"] = weight.clone()
    tensors["model.norm.weight"] = weights.take(width)
    # Tables of the rotations, which transformers computes.
    weights.take(2, sizes.length, sizes.head_width // 2)
    if not tied:
        tensors["lm_head.weight"] = weights.take(sizes.vocabulary, width)
    return tensors


def _config(sizes: _Sizes, *, tied: bool) -> Any:
    """Return the configuration of a Llama."""
    with needed_for("converting a model", "language"):
        from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.width,
        intermediate_size=sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        max_position_embeddings=sizes.length,
        rms_norm_eps=EPSILON,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )


def in_halves(weight: Tensor, heads: int) -> Tensor:
    """Reorder rows (heads * w, d): rotary pairs (0, 1), (2, 3), ... become (0, w/2), (1, ...)."""
    rows, width = weight.shape
    return weight.view(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)


def read_pieces(data: bytes, count: int) -> list[tuple[str, float]]:
    """Read the pieces of a `tokenizer.bin` with their scores; spaces are SentencePiece's.

    Raises
    ------
    ValueError
        If the tokenizer has another number of pieces, or one is damaged.
    """
    return list(_pieces(data, count))


def _pieces(data: bytes, count: int) -> Iterator[tuple[str, float]]:
    place = 4  # after the maximum length of a piece
    for number in range(count):
        if place + _PIECE.size > len(data):
            raise ValueError(f"the tokenizer ends after {number} pieces; expected {count}")
        score, length = _PIECE.unpack_from(data, place)
        place += _PIECE.size
        text = data[place : place + length]
        if length < 0 or len(text) < length:
            raise ValueError(f"the tokenizer's piece {number} is cut off")
        place += length
        yield _piece_name(number, text.decode("utf-8")), score
    if place != len(data):
        raise ValueError(f"{len(data) - place} bytes follow the tokenizer's {count} pieces")


def _piece_name(number: int, text: str) -> str:
    """Return a piece in SentencePiece's notation; older files have characters for bytes."""
    if number < _SPECIAL:
        return text.strip("\n")
    if number < _SPECIAL + 256:
        byte = number - _SPECIAL
        if text not in (chr(byte), f"<0x{byte:02X}>"):
            raise ValueError(f"piece {number} of the tokenizer is {text!r}, not byte {byte}")
        return f"<0x{byte:02X}>"
    return text.replace(" ", _SPACE)


def tokenizer_of_pieces(pieces: list[tuple[str, float]]) -> Any:
    """Return a BPE tokenizer with merges ordered by score; unknown characters become bytes.

    The first three pieces are the unknown token, also used for padding, and the beginning and end
    of a text; the 256 bytes follow.

    Raises
    ------
    ValueError
        If a piece occurs twice.
    """
    with needed_for("converting a tokenizer", "language"):
        from tokenizers import Tokenizer, decoders, models, normalizers, processors
        from transformers import PreTrainedTokenizerFast

    vocabulary = {text: number for number, (text, _) in enumerate(pieces)}
    if len(vocabulary) != len(pieces):
        raise ValueError("a piece of the tokenizer is there twice")
    merges = []
    for number, (text, score) in enumerate(pieces):
        if number < _SPECIAL + 256:
            continue  # in a text, these are ordinary characters
        for split in range(1, len(text)):
            left, right = text[:split], text[split:]
            if left in vocabulary and right in vocabulary:
                merges.append((-score, number, left, right))
    unknown, begin, end = (text for text, _ in pieces[:_SPECIAL])
    backend = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=[(left, right) for _, _, left, right in sorted(merges)],
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace(_SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A {begin} $B", special_tokens=[(begin, 1)]
    )
    tokenizer: Any = PreTrainedTokenizerFast
    return tokenizer(
        tokenizer_object=backend,
        unk_token=unknown,
        bos_token=begin,
        eos_token=end,
        pad_token=unknown,
        clean_up_tokenization_spaces=False,
    )
