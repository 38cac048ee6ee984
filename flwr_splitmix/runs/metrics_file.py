"""The metrics of a run as a Parquet file: one row a round, columns of one type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flwr_splitmix.runs.errors import RunError

Row = dict[str, Any]

# Columns every metrics file has, with one type even while all values are null.
_COLUMNS: dict[str, pa.DataType | None] = {
    "round": pa.int64(),
    "loss": pa.float64(),
    "accuracy": pa.float64(),
    "accuracy_kind": pa.string(),
    "eval_loss": pa.float64(),
    "seconds": pa.float64(),
    "steps": pa.int64(),
    "uplink_bytes": pa.int64(),
    "downlink_bytes": pa.int64(),
    "uplink_bytes_psl": pa.int64(),
    "clients_alive": pa.int64(),
    "clients_failed": pa.int64(),
    "slowest_node": None,  # a name or a Flower node id: as its values are
    "steps_per_second": pa.float64(),
}


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a file; one that is not there has none.

    Raises
    ------
    RunError
        If it is there but cannot be read.
    """
    try:
        # A buffer, not the path: a path may be memory-mapped while it is replaced.
        rows: list[Row] = pq.read_table(pa.py_buffer(path.read_bytes())).to_pylist()
    except FileNotFoundError:
        return []
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"cannot read {path}: {error}") from error
    return rows


def rows_as_parquet(rows: list[Row]) -> tuple[bytes, list[Row]]:
    """Return a file's bytes, and the rows as they will be read from it.

    Raises
    ------
    RunError
        If a value does not fit its column.
    """
    table = _table(rows)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes(), table.to_pylist()


def _table(rows: list[Row]) -> pa.Table:
    columns = {}
    for name in dict.fromkeys([*_COLUMNS, *(name for row in rows for name in row)]):
        values = [row.get(name) for row in rows]
        kind = _COLUMNS.get(name)
        # Flower's node ids need all 64 bits, and Arrow infers a signed type.
        if kind is None and any(isinstance(value, int) and value >= 2**63 for value in values):
            kind = pa.uint64()
        try:
            columns[name] = pa.array(values, type=kind)
            # Arrow drops the fraction of a number without a word.
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
