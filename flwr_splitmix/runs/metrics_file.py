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

if TYPE_CHECKING:
    import pyarrow as pa  # imported where it is used: most commands read no metrics

Row = dict[str, Any]

_SHARE = 20
"""metrics.parquet is rewritten when it would lack one row in so many."""

_MAX_ROWS = 2**22
"""Most rows that are read: more rounds than any run has."""


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
        if file.metadata.num_rows > _MAX_ROWS:  # compressed, they may be a few bytes
            raise unreadable(path, f"it has {file.metadata.num_rows} rows")
        # In this thread: a process that ends while Arrow's pools start aborts (apache/arrow#34314).
        rows: list[Row] = file.read(use_threads=False).to_pylist()
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
        except (pa.ArrowException, TypeError, OverflowError) as error:
            reason = str(error).partition("\n")[0]
            raise RunError(f"{values[-1]!r} does not fit column {name!r}: {reason}") from error
    return pa.table(columns)
