"""Public texts by corpus: one to train the calibrator, another for supports."""

from __future__ import annotations

from pathlib import Path

from flwr_splitmix.data.errors import DataError
from flwr_splitmix.data.texts.generated import GENERATED, generated_public
from flwr_splitmix.data.texts.public import load_public_texts
from flwr_splitmix.data.texts.rows import TextTask
from flwr_splitmix.seeding import derive_seed, frozen_generator

PUBLIC_CORPORA = {"wiki": "wikitext*.txt*", "books": "pg*.txt*", "all": "*.txt*"}
"""Patterns of files in the folder of public texts: WikiText's, Project Gutenberg's, all."""


def open_public_pair(
    folder: str,
    task: TextTask,
    corpora: tuple[str, str],
    *,
    limit: int,
    min_words: int,
    max_words: int,
    seed: int,
) -> tuple[list[str], list[str]]:
    """Read sentences of two corpora, for the calibrator and for supports.

    Parameters
    ----------
    folder
        Folder of the public texts; "generated" makes texts, one half of which is "wiki", the other
        "books".
    task
        Task of generated texts.
    corpora
        Names in `PUBLIC_CORPORA`; with the same corpus twice, a sentence may serve for both.
    limit
        Maximum number of sentences of each.
    min_words, max_words
        As for `load_public_texts`.
    seed
        Seed of both draws, which differ.

    Raises
    ------
    DataError
        If there is no such corpus, or the folder has no file of it.
    """
    for name in corpora:
        if name not in PUBLIC_CORPORA:
            raise DataError(
                f"unknown public corpus {name!r}; public_corpora may name "
                f"{', '.join(PUBLIC_CORPORA)}"
            )
    calibration, supports = (
        _draw_texts(
            _made_up(task, name)
            if folder == GENERATED
            else _sentences(folder, name, min_words, max_words),
            limit,
            derive_seed(seed, f"public texts, {use}"),
        )
        for use, name in zip(("calibration", "supports"), corpora, strict=True)
    )
    return calibration, supports


def _made_up(task: TextTask, name: str) -> list[str]:
    texts = generated_public(task)
    half = len(texts) // 2
    return list({"wiki": texts[:half], "books": texts[half:]}.get(name, texts))


def _sentences(folder: str, name: str, min_words: int, max_words: int) -> list[str]:
    files = sorted(Path(folder).glob(PUBLIC_CORPORA[name]))
    if not files:
        raise DataError(
            f"the folder {folder} has no file {PUBLIC_CORPORA[name]}, which are the public corpus "
            f"{name!r}; put its texts there"
        )
    texts: dict[str, None] = {}
    for file in files:
        texts |= dict.fromkeys(
            load_public_texts(str(file), min_words=min_words, max_words=max_words)
        )
    return list(texts)


def _draw_texts(texts: list[str], limit: int, seed: int) -> list[str]:
    if limit >= len(texts):
        return texts
    return [texts[i] for i in sorted(frozen_generator(seed).permutation(len(texts))[:limit])]
