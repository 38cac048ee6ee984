"""The texts of a run as tokens: a client's part of the data, the test set, the public texts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.language.config import SMALL, LanguageConfig
from flwr_splitmix.clients import NO_DATA, ClientError
from flwr_splitmix.data.errors import DataError, MissingColumnError, TestRowsError
from flwr_splitmix.data.texts import token_sets
from flwr_splitmix.data.texts.files import KINDS
from flwr_splitmix.data.texts.generated import generated_public
from flwr_splitmix.data.texts.partition import text_split
from flwr_splitmix.data.texts.public import load_public_texts
from flwr_splitmix.data.texts.rows import TextRows, TextSets
from flwr_splitmix.data.texts.sets import load_text_sets
from flwr_splitmix.data.texts.text_set import TextSet
from flwr_splitmix.data.texts.tokenizers import open_tokenizer, train_tokenizer
from flwr_splitmix.data.texts.tokens import LongTextsCount, OnLong
from flwr_splitmix.words import counted, have

log = logging.getLogger("flwr.splitmix")


def client_rows(config: LanguageConfig, node: Mapping[str, Any]) -> tuple[TextRows, TextRows]:
    """Return the training and the test rows of one node.

    A node whose configuration names its own `dataset` (and `test-dataset`) gets all of it; others
    get their part of the run's data.

    Raises
    ------
    ConfigError
        If the node's configuration has neither `dataset` nor `num-partitions`.
    """
    if node_dataset := str(node.get("dataset", "")):
        sets = _load(config, node_dataset, str(node.get("test-dataset", "")), of_node=True)
        return (
            sets.train.first(config.samples_per_client),
            sets.test.first(config.test_samples_per_client),
        )
    if "num-partitions" not in node:
        raise ConfigError(
            "a SuperNode has neither num-partitions nor a dataset of its own; give it one of them "
            "with --node-config"
        )
    return text_split(
        text_sets(config),
        int(node["partition-id"]),
        int(node["num-partitions"]),
        scheme=config.partition,
        alpha=config.partition_alpha,
        seed=config.seed,
        samples=config.samples_per_client,
        test_samples=config.test_samples_per_client,
    )


def text_sets(config: LanguageConfig) -> TextSets:
    """Return the training and test rows of the run.

    They are read once in a process, whatever changes in their files afterwards.

    Raises
    ------
    DataError
        If they cannot be read; the message names the key.
    """
    return _load(config, config.dataset, config.test_dataset)


@lru_cache(maxsize=4)
def _load(config: LanguageConfig, source: str, test: str, *, of_node: bool = False) -> TextSets:
    try:
        return load_text_sets(
            source,
            config.task,
            columns=config.columns(),
            test=test,
            num_labels=config.num_labels,
            seed=config.seed,
            empty_texts=config.empty_texts,
            own=of_node,
        )
    except MissingColumnError as error:
        if error.number == 1 and error.where.lower().endswith((".txt", ".txt.gz")):
            raise DataError(
                f"run-config: {error.where} has one column and no {error.column!r:.80} "
                f"({_key_of(config, error.column)}): plain text is no data set. Rows with columns "
                f"are read from {', '.join(KINDS)} (in .txt and .tsv a tab is between columns); "
                "the key public takes plain text"
            ) from None
        raise DataError(
            f"run-config: {_key_of(config, error.column)} is {error.column!r:.80}, but "
            f"{error.where} has no such column; it has {error.listed}, of which it must "
            f"name one{error.hint}"
        ) from None
    except DataError as error:
        named_in = "node-config" if of_node else "run-config"
        of_tests = isinstance(error, TestRowsError)
        key, value = ("test-dataset", test) if of_tests else ("dataset", source)
        raise DataError(f"{named_in}: {key} is {value!r}, but {error}") from None


def _key_of(config: LanguageConfig, column: str) -> str:
    """Return the configuration key that names a column."""
    roles = config.columns().roles(config.task)
    role = next(role for role, name in roles.items() if name == column)
    return {"second": "second-text-column", "group": "partition-column"}.get(role, f"{role}-column")


def class_names(config: LanguageConfig) -> tuple[str, ...]:
    """Return the names of the labels, by label; () for generation.

    If the run's data are not on this machine (each node may have its own), the names are numbers.
    """
    if config.task == "generation":
        return ()
    try:
        return text_sets(config).classes
    except DataError as error:
        log.warning("classes have numbers for names: %s", error)
        return tuple(str(label) for label in range(config.num_labels))


@lru_cache(maxsize=2)
def tokenizer_of(config: LanguageConfig) -> Any:
    """Return the model's tokenizer; the small model's is trained on the public texts.

    Raises
    ------
    DataError
        If it cannot be opened, or has no token to pad with.
    """
    if config.model == SMALL:
        return train_tokenizer(public_texts(config), config.small_vocabulary)
    try:
        return open_tokenizer(config.model, padding=config.padding_token)
    except DataError as error:
        raise DataError(f"run-config: {error}") from error


@lru_cache(maxsize=2)
def public_texts(config: LanguageConfig) -> tuple[str, ...]:
    """Return the run's public texts, read once in a process as its rows are.

    Raises
    ------
    DataError
        If they cannot be read; the message names the key.
    """
    if not config.public:
        texts = generated_public(config.task, seed=config.seed)
        return texts[: config.public_samples or len(texts)]
    try:
        return load_public_texts(
            config.public,
            unit=config.unit,
            max_words=config.public_words,
            limit=config.public_samples,
            seed=config.seed,
        )
    except DataError as error:
        raise DataError(f"run-config: public is {config.public!r}, but {error}") from None


@lru_cache(maxsize=2)
def public_set(config: LanguageConfig) -> TextSet:
    """Return the public texts as tokens; long texts are truncated."""
    texts, tokenizer = public_texts(config), tokenizer_of(config)
    try:
        return token_sets.public_token_set(texts, tokenizer, max_length=config.text_length)
    except DataError as error:
        raise DataError(f"run-config: public is {config.public!r}, but {error}") from None


@lru_cache(maxsize=2)
def benchmark_set(config: LanguageConfig) -> TextSet:
    """Return the first `test-samples-per-client` test rows of the run, for every client the same.

    If the key is 0, these are all test rows.
    """
    tests = text_sets(config).test
    return run_test_set(config, tests.first(config.test_samples_per_client))


def run_test_set(config: LanguageConfig, rows: TextRows) -> TextSet:
    """Convert test rows; with `generation-scores`, those that do not fit whole are left out.

    A generated answer is scored against the complete right one.

    Raises
    ------
    DataError
        If none is left; the message names the key.
    """
    whole = config.generation_scores and config.long_texts == "cut"
    tests = run_token_set(config, rows, whole=whole)
    if whole and not len(tests):
        raise DataError(
            f"run-config: generation-scores is true, but no test row has at most "
            f"{config.text_length} tokens with its whole answer; raise max-length"
        )
    return tests


def training_set(config: LanguageConfig, rows: TextRows, on_long: OnLong | None = None) -> TextSet:
    """Convert training rows to tokens and labels, as `run_token_set`.

    Raises
    ------
    ClientError
        If there are rows, but all are too long and left out; the message names the keys.
    """
    texts = run_token_set(config, rows, on_long)
    if len(rows) and not len(texts):
        key, room = _room(config)
        raise ClientError(
            f"{NO_DATA}: none of its {counted(len(rows), 'row')} has at most {room}, and "
            f"long-texts is {config.long_texts!r}; raise {key}"
        )
    return texts


def training_size(config: LanguageConfig, client: int, clients: int) -> int:
    """Return how many training texts a client of a divided set has, without those left out.

    Raises
    ------
    DataError
        Raised by `client_rows` and `training_set`.
    """
    rows, _ = client_rows(config, {"partition-id": client, "num-partitions": clients})
    if config.long_texts != "drop":
        return len(rows)
    try:
        return len(training_set(config, rows, lambda _: None))
    except ClientError:  # all are too long: it has no data
        return 0


def run_token_set(
    config: LanguageConfig,
    rows: TextRows,
    on_long: OnLong | None = None,
    *,
    whole: bool = False,
) -> TextSet:
    """Convert rows to tokens and labels.

    Parameters
    ----------
    on_long
        Gets the number of texts that are too long; by default, it is logged as a warning.
    whole
        Whether those are left out, whatever `long-texts` says.
    """

    def warn(count: LongTextsCount) -> None:
        log.warning("%s", long_texts_sentence(config, count, whole=whole))

    return token_sets.token_set(
        rows,
        tokenizer_of(config),
        config.task,
        max_length=config.text_length,
        long_texts="drop" if whole else config.long_texts,
        on_long=on_long or warn,
        pad_to=config.pad_to if config.pads_itself else None,
    )


def long_texts_sentence(
    config: LanguageConfig, count: LongTextsCount, *, whole: bool = False
) -> str:
    """Return the sentence on how many texts are too long, and what was done with them.

    `whole` is as for `run_token_set`.
    """
    cut = count.longer - count.dropped
    why = f"long-texts is {config.long_texts!r}"
    if whole:
        why = "generation-scores needs whole answers"
    outcomes = [f"{cut} cut"] if cut else []
    if count.dropped:
        outcomes.append(f"{count.dropped} left out")
    return (
        f"{count.longer} of {counted(count.texts, 'text')} {have(count.longer)} more than "
        f"{_room(config)[1]}: {' and '.join(outcomes)} ({why})"
    )


def _room(config: LanguageConfig) -> tuple[str, str]:
    """Return the key that limits the tokens of a text, and the limit in words."""
    key = "pad-to" if config.pad_to else "max-length"
    secret = f", of which {config.secrets} are secret tokens" if config.secrets else ""
    return key, f"{config.text_length} tokens ({key} is {config.width}{secret})"
