"""Batches of rows written as a table, JSON lines, CSV, an Arrow stream or a Parquet file."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, assert_never

from pystachio.cli.columns import printable

if TYPE_CHECKING:
    import pyarrow as pa

_SAMPLE_ROWS = 1000
"""Rows that decide the widths of a table's columns; later and longer values push their row to the right."""

_SCREEN_ROWS = 100
_SCREEN_CELL = 60
"""What a table shows on a terminal: rows, and characters per value."""


class Format(StrEnum):
    """How rows are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"

    @property
    def binary(self) -> bool:
        return self in (Format.ARROW, Format.PARQUET)


_BY_SUFFIX = {
    ".json": Format.JSON,
    ".jsonl": Format.JSON,
    ".ndjson": Format.JSON,
    ".csv": Format.CSV,
    ".arrow": Format.ARROW,
    ".arrows": Format.ARROW,
    ".parquet": Format.PARQUET,
}


def choose_format(asked: Format | None, output: Path | None) -> Format:
    """What was asked for, else what the file's name says, else a table."""
    if asked is not None:
        return asked
    return _BY_SUFFIX.get(output.suffix.lower(), Format.TABLE) if output is not None else Format.TABLE


def write_rows(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], how: Format, sink: BinaryIO, *, screen: bool = False
) -> bool:
    """Write all rows, batch by batch. False: a table on a `screen` was cut, and the rest was not asked for."""
    match how:
        case Format.TABLE:
            return _write_table(schema, batches, sink, screen=screen)
        case Format.JSON:
            _write_json(schema, batches, sink)
        case Format.CSV:
            _write_csv(schema, batches, sink)
        case Format.ARROW:
            import pyarrow as pa

            with pa.ipc.new_stream(sink, schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
        case Format.PARQUET:
            import pyarrow.parquet as pq

            with pq.ParquetWriter(sink, schema, write_page_checksum=True) as writer:
                for batch in batches:
                    writer.write_batch(batch)
        case _:
            assert_never(how)
    return True


def _write_json(schema: pa.Schema, batches: Iterable[pa.RecordBatch], sink: BinaryIO) -> None:
    import json

    from pystachio.cli.cells import json_cells

    keys = [f"{json.dumps(name, ensure_ascii=False)}: " for name in _distinct(schema.names)]
    for batch in batches:
        columns = [[key + cell for cell in json_cells(column)] for key, column in zip(keys, batch.columns, strict=True)]
        sink.write("".join(f"{{{', '.join(cells)}}}\n" for cells in zip(*columns, strict=True)).encode())


def _write_csv(schema: pa.Schema, batches: Iterable[pa.RecordBatch], sink: BinaryIO) -> None:
    import pyarrow as pa
    import pyarrow.csv as csv

    from pystachio.cli.cells import csv_column

    def converted(arrays: list[pa.Array]) -> pa.RecordBatch:
        return pa.record_batch([csv_column(array) for array in arrays], names=_distinct(schema.names))

    empty = converted([pa.array([], field.type) for field in schema])
    with csv.CSVWriter(sink, empty.schema) as writer:
        for batch in batches:
            writer.write_batch(converted(batch.columns))


def _write_table(schema: pa.Schema, batches: Iterable[pa.RecordBatch], sink: BinaryIO, *, screen: bool) -> bool:
    import pyarrow.types as pt

    rows = _table_rows(batches, width=_SCREEN_CELL if screen else None)
    names = [_cell(name, _SCREEN_CELL if screen else None) for name in schema.names]
    head: list[tuple[str, ...]] = []
    wanted = _SCREEN_ROWS if screen else _SAMPLE_ROWS
    for row in rows:
        if len(head) == wanted:
            rows = _with_first(row, rows)
            break
        head.append(row)
    else:
        rows = iter(())
    widths = [max(map(_width, column)) for column in zip(names, *head, strict=True)]
    right = [pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind) for kind in schema.types]
    sink.write(_line(names, widths, right) + "  ".join("─" * width for width in widths).encode() + b"\n")
    for row in head:
        sink.write(_line(row, widths, right))
    if screen:
        return next(rows, None) is None
    for row in rows:
        sink.write(_line(row, widths, right))
    return True


def _table_rows(batches: Iterable[pa.RecordBatch], width: int | None) -> Iterator[tuple[str, ...]]:
    from pystachio.cli.cells import text_cells

    for batch in batches:
        columns = [["NULL" if c is None else _cell(c, width) for c in text_cells(column)] for column in batch.columns]
        yield from zip(*columns, strict=True)


def _with_first(row: tuple[str, ...], rest: Iterator[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    yield row
    yield from rest


def _cell(text: str, width: int | None) -> str:
    text = printable(text)
    return text if width is None or len(text) <= width else text[: width - 1] + "…"


def _line(cells: Iterable[str], widths: list[int], right: list[bool]) -> bytes:
    padded = []
    for cell, width, to_right in zip(cells, widths, right, strict=True):
        room = " " * max(0, width - _width(cell))
        padded.append(room + cell if to_right else cell + room)
    return ("  ".join(padded).rstrip() + "\n").encode()


def _width(text: str) -> int:
    """Places that the text takes on a terminal: East Asian characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _distinct(names: list[str]) -> list[str]:
    """Names with `_2`, `_3`, ... behind repeated ones: a JSON object has a key only once."""
    taken: set[str] = set()
    result = []
    for name in names:
        candidate, count = name, 1
        while candidate in taken or (count > 1 and candidate in names):
            count += 1
            candidate = f"{name}_{count}"
        taken.add(candidate)
        result.append(candidate)
    return result
