"""The metrics of a run on disk: one row per round, one type per column."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr_splitmix.files.json_values import marked, strict_json, unmarked
from flwr_splitmix.files.reading import read_whole
from flwr_splitmix.files.writing import append_line, write_atomic
from flwr_splitmix.runs.columns import COLUMNS, check_types
from flwr_splitmix.runs.damage import unreadable
from flwr_splitmix.runs.errors import RunError
from flwr_splitmix.words import counted

if TYPE_CHECKING:
    # Imported where they are used: most commands read no metrics.
    import pyarrow as pa
    import pyarrow.parquet as pq

Row = dict[str, Any]

_SHARE = 20
"""metrics.parquet is rewritten when it would lack one row in so many."""

_MAX_VALUES = 2**24
"""Most values that are read, of all rows: as dictionaries they take two gigabytes. It is far more
than a run writes: 22 columns in each of 700,000 rounds."""

_MAX_BYTES = 2**31
"""Most bytes of columns, and of texts, each counted in every row: compressed, they may be few. With
1,000 clients, whose norms and epsilons are texts, a run of 40,000 rounds writes as many."""


class MetricsFile:
    """A run's rows: in metrics.parquet, except for the newest, which are in metrics.jsonl.

    A Parquet file is always written whole, so that rounds would cost more and more. While the
    rows are few it is written in every round, and there is no other file.

    Each line names the round of the row before it, and counts only behind that row: a crash, or a
    reader between two writes, finds each row once.

    Parameters
    ----------
    folder
        The run's directory.
    """

    def __init__(self, folder: Path) -> None:
        self._whole, self._newest = folder / "metrics.parquet", folder / "metrics.jsonl"
        self._rows: list[Row] | None = None
        self._lines = 0
        self._kinds: dict[str, pa.DataType] = {}

    @property
    def rows(self) -> list[Row]:
        """Copies of all rows, with all columns.

        Raises
        ------
        RunError
            If a file exists but cannot be read.
        """
        rows = self._read()
        absent = dict.fromkeys(rows[-1]) if rows else {}  # a column may have come with any row
        return [absent | row for row in rows]

    @property
    def last_round(self) -> int | None:
        """The newest row's round; None without rows. Raises errors as `rows` does."""
        rows = self._read()
        return rows[-1]["round"] if rows else None

    def append(self, row: Row) -> None:
        """Add a row; it is on the disk when this returns.

        Raises
        ------
        RunError
            If a value does not fit its column.
        OSError
            If it cannot be written; earlier rows are then intact.
        """
        rows, last = self._read(), self.last_round
        few = (self._lines + 1) * _SHARE < len(rows) + 1
        fitting = self._fitting(row) if few else None
        if fitting is None:
            self._write([*rows, row])
            return
        append_line(self._newest, strict_json({"after": last, "row": marked(fitting)}))
        self._lines += 1
        rows.append(fitting)

    def keep(self, round: int) -> None:
        """Remove the rows after a round; errors as for `append`."""
        self._write([row for row in self._read() if row["round"] <= round])

    def complete(self) -> None:
        """Bring all rows into metrics.parquet; errors as for `append`."""
        if self._newest.exists():
            self._write(self._read())

    def _read(self) -> list[Row]:
        if self._rows is None:
            lines = _read_lines(self._newest)  # before the file that its rows go to
            rows = read_rows(self._whole)
            before = len(rows)
            for after, row in lines:
                if after == (rows[-1]["round"] if rows else None):
                    rows.append(row)
            self._rows, self._lines = rows, len(rows) - before
        return self._rows

    def _fitting(self, row: Row) -> Row | None:
        """Return a row as it will be read; None if the present columns or types differ."""
        if row.keys() - self._kinds.keys():
            return None
        try:
            return _last(_table([row], self._kinds), row)
        except RunError:
            return None

    def _write(self, rows: list[Row]) -> None:
        """Write metrics.parquet with all rows; errors as for `append`."""
        table = _table(rows)
        write_atomic(self._whole, as_parquet(table))
        self._kinds = {field.name: field.type for field in table.schema}
        self._rows = [*rows[:-1], _last(table, rows[-1])] if rows else []
        self._lines = 0
        self._newest.unlink(missing_ok=True)


def _read_lines(path: Path) -> list[tuple[int | None, Row]]:
    """Return rows of metrics.jsonl, each with the round of the row before; raise RunError."""
    try:
        *lines, _ = read_whole(path).split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(path, error) from error
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
            after, row = value["after"], unmarked(value["row"])
            fine = isinstance(row["round"], int) and isinstance(after, int | None)
        except (ValueError, TypeError, KeyError, RecursionError):
            fine = False
        if not fine:
            raise unreadable(path, f"line {number} is damaged")
        check_types(path, row)
        rows.append((after, row))
    return rows


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a file, with None for columns that it lacks; a missing file has none.

    Raises
    ------
    RunError
        If the file exists but cannot be read, or a value is of another type.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # A buffer, not the path: a path may be memory-mapped while it is replaced.
        buffer = pa.py_buffer(read_whole(path))
        file = pq.ParquetFile(buffer, pre_buffer=False)
        texts = _checked_texts(path, file)
        # As dictionaries, texts have a size before they are copied into every row.
        file = pq.ParquetFile(buffer, pre_buffer=False, read_dictionary=texts)
        # In this thread: a process that ends while Arrow's pools start aborts (apache/arrow#34314).
        rows = _rows(path, file.read(use_threads=False))
    except FileNotFoundError:
        return []
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, error) from error
    absent = dict.fromkeys(COLUMNS)
    for row in rows:
        check_types(path, row)
        if not isinstance(row.get("round"), int):
            raise unreadable(path, "a row has no number of its round")
    return [absent | row for row in rows]


def _checked_texts(path: Path, file: pq.ParquetFile) -> list[str]:
    """Return the columns with text; raise RunError if no run has such columns, or so many values.

    The latter are in the file's metadata, and nothing is decoded.
    """
    schema, metadata = file.schema_arrow, file.metadata
    if other := [field for field in schema if not (_is_text(field.type) or _is_number(field.type))]:
        raise unreadable(
            path,
            f"its column {other[0].name!r:.80} has {other[0].type!s:.80}, not numbers or text",
        )
    if len({*schema.names}) < len(schema.names):
        raise unreadable(path, "two of its columns have one name")
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    rows = max(metadata.num_rows, sum(group.num_rows for group in groups))
    if rows * len({*COLUMNS, *schema.names}) > _MAX_VALUES:
        raise unreadable(path, f"it has {rows} rows of {counted(len(schema.names), 'column')}")
    if (size := sum(group.total_byte_size for group in groups)) > _MAX_BYTES:
        raise unreadable(path, f"its columns have {size} bytes, decoded")
    return [field.name for field in schema if _is_text(field.type)]


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(kind: pa.DataType) -> bool:
    """Return whether a column has numbers, truth values or nothing."""
    import pyarrow as pa

    of = pa.types
    return bool(
        of.is_integer(kind) or of.is_floating(kind) or of.is_boolean(kind) or of.is_null(kind)
    )


def _rows(path: Path, table: pa.Table) -> list[Row]:
    """Return a table's rows, which share texts; raise RunError if these are too long together."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns, size = [], 0
    for column in table.columns:
        values: list[Any] = []
        for chunk in column.chunks:
            if not pa.types.is_dictionary(chunk.type):
                values += chunk.to_pylist()
                continue
            lengths = pc.binary_length(chunk.dictionary).take(chunk.indices)
            size += pc.sum(lengths.cast(pa.int64())).as_py() or 0
            if size > _MAX_BYTES:
                raise unreadable(path, f"its texts have {size} bytes or more, decoded")
            texts = chunk.dictionary.to_pylist()
            values += [None if at is None else texts[at] for at in chunk.indices.to_pylist()]
        columns.append(values)
    if not columns:
        return table.to_pylist()  # type: ignore[no-any-return]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def as_parquet(table: pa.Table) -> bytes:
    """Return a table as the bytes of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _last(table: pa.Table, row: Row) -> Row:
    """Return a table's last row, which is `row`, as it will be read, with texts that it shares."""
    (read,) = table.slice(len(table) - 1).to_pylist()
    return {name: row[name] if isinstance(value, str) else value for name, value in read.items()}


def _table(rows: list[Row], kinds: Mapping[str, pa.DataType] | None = None) -> pa.Table:
    """Return rows as a table, whose columns have these types, or those of all their values.

    Raises
    ------
    RunError
        If a value does not fit its column.
    """
    import pyarrow as pa

    named = {name: getattr(pa, kind)() for name, kind in COLUMNS.items() if kind}
    column_types = {**named, **(kinds or {})}
    columns = {}
    for name in dict.fromkeys([*COLUMNS, *column_types, *(name for row in rows for name in row)]):
        values = [row.get(name) for row in rows]
        kind = column_types.get(name)
        # Flower's node ids need all 64 bits, and Arrow infers a signed type.
        if kind is None and any(isinstance(value, int) and value >= 2**63 for value in values):
            kind = pa.uint64()
        try:
            columns[name] = pa.array(values, type=kind)
            # Arrow silently truncates fractions.
            if (
                kind is not None
                and pa.types.is_integer(kind)
                and columns[name].to_pylist() != values
            ):
                raise TypeError("it is not an integer")
            if not (_is_text(columns[name].type) or _is_number(columns[name].type)):
                raise TypeError("it must be a number or text; give each number of a list a column")
        except (pa.ArrowException, TypeError, OverflowError) as error:
            reason = str(error).partition("\n")[0]
            raise RunError(f"{values[-1]!r} does not fit column {name!r}: {reason}") from error
    return pa.table(columns)
