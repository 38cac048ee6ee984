"""Columns of text files: tab- or comma-separated, JSON or JSON lines; plain or gzipped."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flwr_splitmix.data.errors import DataError, MissingColumnError
from flwr_splitmix.files.reading import MAX_READ, check_regular
from flwr_splitmix.words import counted

KINDS = (".tsv", ".txt", ".csv", ".json", ".jsonl")

_CHUNK_BYTES = 2**20
"""Bytes that are read at once."""

_TABS = (".tsv", ".txt")

_MAX_DIGITS = 18
"""Most digits of a column's number; no file has as many columns."""

Columns = dict[str, list[Any]]
"""Values of each column, one per row: strings, or any JSON values."""


def kind_of(path: Path) -> str:
    """Return a file's suffix without .gz, in lower case."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def read_text(path: Path) -> str:
    """Return the content of a UTF-8 file, decompressed if its name ends in .gz.

    Raises
    ------
    DataError
        If it cannot be read, cannot be decompressed, has a line of more than `MAX_READ` bytes, or
        is not UTF-8.
    """
    try:
        check_regular(path)
        with path.open("rb") as file:
            packed = path.suffix.lower() == ".gz"
            content = _content(gzip.GzipFile(fileobj=file) if packed else file, path)
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        why = "is no part of it"
        if error.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            why = "begins UTF-16"
        raise DataError(
            f"{path} is not UTF-8: byte {error.start} {why}; save the file as UTF-8"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _content(file: io.BufferedIOBase, path: Path) -> bytearray:
    """Return a file's bytes; raise DataError for a long line; in a packed file it can have GiBs."""
    content, begin = bytearray(), 0
    while chunk := file.read(_CHUNK_BYTES):
        if (end := chunk.rfind(b"\n")) >= 0:
            begin = len(content) + end + 1
        content += chunk
        if len(content) - begin > MAX_READ:
            raise DataError(
                f"{path} has a line of more than {MAX_READ} bytes; write each row in a line of "
                "its own"
            )
    return content


def read_columns(path: Path, columns: Sequence[str]) -> Columns:
    r"""Read some columns of a file.

    A .tsv file has no quoting: a `"` is an ordinary character; a .txt file, such as MRPC's, is
    read in the same way. A .csv file is quoted as by spreadsheets. If all columns are integers,
    they are counted from 1 and the file has no header line; otherwise they are names in its first
    line. In a .jsonl file they are keys of the objects; a key that a row lacks is null there. A
    .json file is a list of such objects, an object with one such list among its values, or one
    object per line, as `datasets` writes it.

    Parameters
    ----------
    path
        A file whose name ends in one of `KINDS`, optionally followed by ".gz".
    columns
        Names or numbers of the columns to read.

    Returns
    -------
    dict of str to list
        Values of each column, one per row.

    Raises
    ------
    DataError
        If the file cannot be read or has no row, a column is missing or there twice, or a line has
        more values than the first; the message names the line.
    """
    kind = kind_of(path)
    if kind not in KINDS:
        raise DataError(
            f"{path} ends in {kind!r}; rows of text are read from files that end in "
            f"{', '.join(KINDS)}, and those with .gz"
        )
    text = read_text(path)
    if kind == ".jsonl":
        rows = _of_objects(_json_lines(path, text), columns)
    elif kind == ".json":
        rows = _of_objects(_json_list(path, text), columns)
    else:
        rows = _lines(path, text, columns)
    if not rows:
        raise DataError(f"{path} holds no row")
    return {column: [row[place] for row in rows] for place, column in enumerate(columns)}


def may_be_names(path: Path, columns: Sequence[str]) -> bool:
    """Return whether the first row that `read_columns` reads is one that others take for names."""
    return kind_of(path) not in (".json", ".jsonl") and _numbered(columns)


def _json_lines(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    """Yield the location and the JSON value of each line that is not blank."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            where = f"line {number} of {path}"
            try:
                yield where, _parsed(line, where)
            except json.JSONDecodeError as error:
                raise DataError(f"{where} is not JSON: {error}") from error


def _parsed(text: str, where: str) -> Any:
    """Parse JSON.

    Raises
    ------
    json.JSONDecodeError
        If it is none.
    DataError
        If it is JSON that Python cannot hold.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except RecursionError as error:
        raise DataError(
            f"{where} has lists or objects too deep in one another to be read; a row is one "
            "object, of which the columns are texts and labels"
        ) from error
    except ValueError as error:
        raise DataError(
            f"{where} has a whole number of more than {sys.get_int_max_str_digits()} digits; "
            'write it as a text: "..."'
        ) from error


def _json_list(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    """Yield the location and the value of each item of the file's list, or of each of its lines."""
    try:
        whole = _parsed(text, str(path))
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":  # a complete value, and then another one
            yield from _json_lines(path, text)
            return
        raise DataError(f"{path} is not JSON: {error}") from error
    candidates = list(whole.values()) if isinstance(whole, dict) else [whole]
    lists = [candidate for candidate in candidates if isinstance(candidate, list)]
    if len(lists) != 1:
        raise DataError(
            f"{path} holds {len(lists) or 'no'} lists of rows; it must be one list of objects, or "
            "an object with one such list"
        )
    for number, item in enumerate(lists[0], 1):
        yield f"item {number} of {path}", item


def _of_objects(items: Iterator[tuple[str, Any]], columns: Sequence[str]) -> list[list[Any]]:
    """Return the values of the columns; a key that some rows lack is null there."""
    rows = list(items)
    for where, row in rows:
        if not isinstance(row, dict):
            raise DataError(f"{where} is not a JSON object, which each row must be")
    for column in columns:
        if rows and not any(column in row for _, row in rows):
            where, first = rows[0]
            raise MissingColumnError(where, column, list(first))
    return [[row.get(column) for column in columns] for _, row in rows]


def _lines(path: Path, text: str, columns: Sequence[str]) -> list[list[str]]:
    tabs = kind_of(path) in _TABS
    # By default a value may have 131,072 characters, which a dialogue or a whole book exceeds.
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter="\t" if tabs else ",",
        quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL,
        strict=True,
    )
    rows = []
    places: list[int] | None = None
    first: list[str] = []
    try:
        for line in reader:
            if not line:
                continue
            if places is None:
                places, first = _places(path, line, columns), line
                if not _numbered(columns):
                    continue
            if len(line) <= max(places):
                raise DataError(
                    f"line {reader.line_num} of {path} has {counted(len(line), 'column')}, but "
                    f"column {max(places) + 1} is asked for{_other_separator(path, line)}"
                )
            # Without names, a first line that is too long shows only in a later, shorter one.
            spare = first[len(line) :] if _numbered(columns) and not tabs else []
            if any(value.strip() for value in [*line[len(first) :], *spare]):
                raise DataError(
                    f"line {reader.line_num} of {path} has {counted(len(line), 'column')}, but the "
                    f"first line has {len(first)}; "
                    + ("no value can contain a tab" if tabs else "quote values that contain ','")
                )
            rows.append([line[place] for place in places])
    except csv.Error as error:
        raise DataError(f"line {reader.line_num} of {path} cannot be read: {error}") from error
    return rows


def _numbered(columns: Sequence[str]) -> bool:
    return all(column.isdecimal() for column in columns)


def _places(path: Path, first: Sequence[str], columns: Sequence[str]) -> list[int]:
    if _numbered(columns):
        long = next((column for column in columns if len(column) > _MAX_DIGITS), None)
        if long is not None:  # Python reads no number of any length
            names = [str(number) for number in range(1, len(first) + 1)]
            raise MissingColumnError(f"the first line of {path}", long, names)
        places = [int(column) - 1 for column in columns]
        if -1 in places:
            raise DataError(f"there is no column 0 in {path}; columns are counted from 1")
        return places
    missing = [column for column in columns if column not in first]
    if missing:
        hint = _other_separator(path, first)
        raise MissingColumnError(
            f"the first line of {path}",
            missing[0],
            first,
            hint=hint or "; of a file without names all columns are numbers, counted from 1",
        )
    twice = next((column for column in columns if first.count(column) > 1), None)
    if twice is not None:
        raise DataError(
            f"the first line of {path} has {first.count(twice)} columns named {twice!r}; give each "
            "its own name"
        )
    return [first.index(column) for column in columns]


def _other_separator(path: Path, line: Sequence[str]) -> str:
    """Return the hint that a line of one value seems to have another separator; else ""."""
    kind = kind_of(path)
    used = "tabs" if kind in _TABS else "','"
    names = {"\t": "tabs", ";": "';'", ",": "','"}
    other = [name for separator, name in names.items() if separator in line[0] and name != used]
    if len(line) > 1 or not other:
        return ""
    return f"; values in a {kind} file are separated by {used}, but here by {other[0]}"
