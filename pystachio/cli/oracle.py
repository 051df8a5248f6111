"""Is an answer right? Compared with DuckDB's on the same files.

Integers, decimals, strings and dates must be equal. A decimal beside a double must agree within the decimal's last
digit or 1e-9 of the value, two doubles within 1e-9. The order of rows counts as far as ORDER BY fixes it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_RELATIVE = 1e-9

Row = tuple[Any, ...]


def duckdb_is_installed() -> bool:
    return find_spec("duckdb") is not None


class DuckDB:
    """The oracle: a DuckDB with one view per Parquet file."""

    def __init__(self, files: Sequence[Path]) -> None:
        import duckdb

        self._connection = duckdb.connect()
        for file in files:
            path = str(file).replace("'", "''")
            self._connection.execute(f"create view \"{file.stem}\" as select * from read_parquet('{path}')")

    def rows(self, sql: str) -> list[Row]:
        rows: list[Row] = self._connection.execute(sql).fetchall()
        return rows

    def close(self) -> None:
        self._connection.close()


def disagreement(answer: pa.Table, expected: Sequence[Row], sql: str) -> str | None:
    """What is wrong with our answer to `sql`, None when it is right."""
    rows = list(zip(*(column.to_pylist() for column in answer.columns), strict=True))
    return difference(rows, expected, ordered_columns(sql, answer.column_names))


def difference(ours: Sequence[Row], theirs: Sequence[Row], order: Sequence[int] = ()) -> str | None:
    """What is wrong with our rows, None when they are right. `order`: the columns that ORDER BY names."""
    if len(ours) != len(theirs):
        return f"{len(ours)} rows instead of {len(theirs)}"
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        if not all(same(mine[column], other[column]) for column in order):
            return f"row {number} is {mine} instead of {other}"
    for mine, other in zip(sorted(ours, key=_sort_key), sorted(theirs, key=_sort_key), strict=True):
        if len(mine) != len(other) or not all(map(same, mine, other)):
            return f"{mine} instead of {other}"
    return None


def ordered_columns(sql: str, names: Sequence[str]) -> tuple[int, ...]:
    """Positions of the output columns in the statement's last ORDER BY, up to the first term that is no column."""
    _, _, tail = sql.lower().rpartition("order by")
    if tail == sql.lower() or tail.count(")") > tail.count("("):
        return ()
    terms = re.split(r"\b(?:limit|offset|fetch)\b", tail.rstrip(" ;\n"))[0]
    columns = []
    for term in terms.split(","):
        words = term.split()
        name = words[0].rpartition(".")[2] if words else ""
        if name not in names:
            break
        columns.append(names.index(name))
    return tuple(columns)


def same(mine: Any, other: Any) -> bool:
    """Are two values of a cell the same?"""
    if mine is None or other is None:
        return mine is other
    if isinstance(mine, float) or isinstance(other, float):
        return _close(mine, other)
    return bool(mine == other)


def _close(mine: Any, other: Any) -> bool:
    tolerance = 0.0
    for value in (mine, other):
        if isinstance(value, Decimal):
            exponent = value.as_tuple().exponent
            tolerance = 10.0**exponent if isinstance(exponent, int) else 0.0
    a, b = float(mine), float(other)
    return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=_RELATIVE, abs_tol=tolerance)


def _sort_key(row: Row) -> tuple[Any, ...]:
    """Exact values first, so that rounding in a double cannot move a row; doubles and decimals last."""
    texts = [(str(type(value)), value) for value in row if isinstance(value, str | bytes)]
    rest = [str(value) for value in row if not isinstance(value, str | bytes | float | Decimal)]
    return (texts, rest, [_number(value) for value in row])


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float | Decimal) and not math.isnan(value) else math.inf
