"""The metrics of a run as a Parquet file: one row per round, one type per column."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr_splitmix.runs.damage import check_types, unreadable
from flwr_splitmix.runs.errors import RunError

if TYPE_CHECKING:
    import pyarrow as pa  # imported where it is used: most commands read no metrics

Row = dict[str, Any]

# The columns of every metrics file, with their Arrow types, which hold even if all values are null.
_COLUMNS: dict[str, str | None] = {
    "round": "int64",
    "loss": "float64",
    "accuracy": "float64",
    "accuracy_kind": "string",
    "eval_loss": "float64",
    "seconds": "float64",
    "steps": "int64",
    "uplink_bytes": "int64",
    "downlink_bytes": "int64",
    "uplink_bytes_psl": "int64",
    "clients_alive": "int64",
    "clients_failed": "int64",
    "slowest_node": None,  # a name or a Flower node id: typed by its values
    "steps_per_second": "float64",
}


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
        buffer = pa.py_buffer(path.read_bytes())
        # In this thread: a process that ends while Arrow's pools start aborts (apache/arrow#34314).
        table = pq.ParquetFile(buffer, pre_buffer=False).read(use_threads=False)
        rows: list[Row] = table.to_pylist()
    except FileNotFoundError:
        return []
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, error) from error
    absent = dict.fromkeys(_COLUMNS)
    for row in rows:
        check_types(path, row)
        if not isinstance(row.get("round"), int):
            raise unreadable(path, "a row has no number of its round")
    return [absent | row for row in rows]


def rows_as_parquet(rows: list[Row]) -> tuple[bytes, list[Row]]:
    """Return the bytes of a Parquet file, and the rows as they will be read from it.

    Raises
    ------
    RunError
        If a value does not fit its column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = _table(rows)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes(), table.to_pylist()


def _table(rows: list[Row]) -> pa.Table:
    import pyarrow as pa

    columns = {}
    for name in dict.fromkeys([*_COLUMNS, *(name for row in rows for name in row)]):
        values = [row.get(name) for row in rows]
        named = _COLUMNS.get(name)
        kind = None if named is None else getattr(pa, named)()
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
                raise TypeError("it is no integer")
        except (pa.ArrowException, TypeError, OverflowError) as error:
            reason = str(error).partition("\n")[0]
            raise RunError(f"{values[-1]!r} does not fit column {name!r}: {reason}") from error
    return pa.table(columns)
