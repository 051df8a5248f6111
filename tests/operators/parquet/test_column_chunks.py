"""The library's check of a column's chunks against the one in Python, on true footers and on footers that lie."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pystachio.errors import DataError, Unsupported
from pystachio.operators.kernels import native
from pystachio.operators.parquet.chunks import Descriptions, find_chunks, read_chunks
from pystachio.operators.parquet.column_chunks import (
    ColumnChunks,
    ColumnReading,
    ContradictsFileError,
    column_chunks,
    joined,
)
from pystachio.operators.parquet.statistics import statistics_reader
from pystachio.operators.table import parquet_fields
from pystachio.planner.distinct import distinct_from_chunks
from tests.operators.parquet.test_footer_chunks import COPIED, WRITTEN, number, one_chunk, struct, written
from tests.operators.parquet_sources import every_type, open_file, open_table, reading, write

UNSIGNED = {f"u{bits}": pa.array([0, None, 2**bits - 1], getattr(pa, f"uint{bits}")()) for bits in (8, 16, 32, 64)}


def readings(path: Path) -> Iterator[ColumnReading]:
    """Of the file's columns that are not nested, as it is and as it is not."""
    metadata = pq.read_metadata(path)
    rows = np.array([metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)], dtype=np.int64)
    for field in parquet_fields(metadata.schema.to_arrow_schema()):
        if field.leaf is None:
            continue
        stored = metadata.schema.column(field.leaf)
        reader = statistics_reader(field.type, stored)
        size = path.stat().st_size
        for data_end in (size, size // 2, 200):
            for writer in ("parquet-cpp-arrow", "parquet-mr version 1.2.8"):
                yield ColumnReading(field.leaf, rows, data_end, writer, stored.physical_type, reader)
        yield ColumnReading(field.leaf, rows + 1, size, "", stored.physical_type, reader)
        yield ColumnReading(field.leaf, rows, size, "", "INT96", reader)


def checked(footer: bytes, descriptions: Descriptions, reading: ColumnReading) -> object:
    """All that can be asked, or which row group is wrong."""
    try:
        found = column_chunks(footer, descriptions, reading)
    except ContradictsFileError as error:
        return error.group, error.said
    ranges = found.ranges
    return (
        list(found),
        found.statistics,
        found.limits,
        *(array.tolist() for array in arrays(found)),
        None if ranges is None else [array.tolist() for array in (ranges.known, ranges.nulls, *valued(found))],
    )


def arrays(chunks: ColumnChunks) -> tuple[np.ndarray, ...]:
    return (
        *(chunks.lengths, chunks.decoded, chunks.has_dictionary, chunks.coded),
        *(chunks.text_bytes, chunks.values, chunks.nulls, chunks.has_values),
    )


def valued(chunks: ColumnChunks) -> tuple[np.ndarray, np.ndarray]:
    """The limits that are known."""
    ranges = chunks.ranges
    assert ranges is not None
    return ranges.low[ranges.known], ranges.high[ranges.known]


def both(footer: bytes, leaves: int, groups: int) -> tuple[Descriptions, Descriptions] | None:
    library = native.library()
    if library is None:
        pytest.skip("the library was not built")
    found = find_chunks(library, footer, leaves, groups)
    try:
        return None if found is None else (found, read_chunks("f", footer, leaves))
    except (DataError, Unsupported):
        return None


@pytest.mark.parametrize("name", [*WRITTEN, *COPIED])
def test_real_footers(name: str, tmp_path: Path) -> None:
    footer, leaves, groups = written(name, tmp_path)
    described = both(footer, leaves, groups)
    assert described is not None
    for way in readings(tmp_path / "t.parquet"):
        assert checked(footer, described[0], way) == checked(footer, described[1], way)


@pytest.mark.parametrize("name", ["every type", "old", "page index", "DuckDB"])
def test_mutated_footers(name: str, tmp_path: Path) -> None:
    footer, leaves, groups = written(name, tmp_path)
    ways = list(readings(tmp_path / "t.parquet"))
    chance = random.Random(name)
    compared = 0
    for _ in range(400):
        mutated = bytearray(footer)
        for _ in range(chance.randrange(1, 6)):
            mutated[chance.randrange(len(mutated))] = chance.choice([chance.randrange(256), 0xFF, 0x7F, 0x01])
        described = both(bytes(mutated), leaves, groups)
        if described is not None:
            compared += 1
            for way in chance.sample(ways, min(12, len(ways))):
                assert checked(bytes(mutated), described[0], way) == checked(bytes(mutated), described[1], way)
    assert compared > 50


def test_numbers_at_their_ends() -> None:
    """Of lengths and offsets: sums of two of them are no integers of 64 bits."""
    reader = statistics_reader(pa.int64(), _stored(pa.int64()))
    extremes = [0, 1, 4, 5, 100, 2**20, 2**62, 2**63 - 1]
    chance = random.Random(1)
    for _ in range(3000):
        offset, dictionary, length, decoded = (chance.choice(extremes) for _ in range(4))
        footer = _chunk_at(offset, dictionary, length, decoded)
        described = both(footer, 1, 1)
        assert described is not None
        end, writer = chance.choice([4, 5, 105, 2**20 + 4, 2**40]), chance.choice(["", "parquet-mr"])
        way = ColumnReading(0, np.array([500]), end, writer, "INT64", reader)
        assert checked(footer, described[0], way) == checked(footer, described[1], way)


async def test_statistics_are_those_of_the_values(tmp_path: Path) -> None:
    """Against pyarrow's own reading of the values."""
    table = every_type(300)
    path = write(table, tmp_path / "t.parquet", row_group_size=70, store_decimal_as_integer=True)
    async with reading() as client:
        file = await open_file(client, path)
        known = 0
        for position, field in enumerate(file.fields):
            column = table.column(field.name)
            chunks = file.chunks(position)
            assert chunks.nulls.tolist() == [column[at : at + 70].null_count for at in range(0, 300, 70)]
            values = [value for value in column.to_pylist() if value is not None]
            if pa.types.is_integer(field.type) and values:
                assert chunks.limits == (min(values), max(values))
                known += 1
        assert known >= 4


async def test_unsigned_numbers(tmp_path: Path) -> None:
    path = write(pa.table(UNSIGNED), tmp_path / "t.parquet")
    async with reading() as client:
        file = await open_file(client, path)
        for position, bits in enumerate((8, 16, 32, 64)):
            chunks = file.chunks(position)
            assert chunks.limits == (0, 2**bits - 1)
            assert chunks[0].statistics[:2] == (0, 2**bits - 1)
            assert (chunks.ranges is None) == (bits == 64), "as far as they are integers of 64 bits with a sign"


async def test_chunks_of_several_files(tmp_path: Path) -> None:
    paths = [write(every_type(50, seed=seed), tmp_path / f"{seed}.parquet", row_group_size=20) for seed in range(3)]
    async with reading() as client:
        table = await open_table(client, *paths)
        for column, field in enumerate(table.schema):
            together, alone = table.chunks(column), [file.chunks(column) for file in table.files]
            assert len(together) == 9, field.name
            assert list(together) == [chunk for chunks in alone for chunk in chunks]
            assert together.statistics == [known for chunks in alone for known in chunks.statistics]
            assert together.decoded.tolist() == [n for chunks in alone for n in chunks.decoded.tolist()]
            lows = [chunks.limits[0] for chunks in alone]
            assert together.limits[0] == (None if None in lows else min(lows)), field.name  # type: ignore[type-var]
        assert len(joined([])) == 0


@pytest.mark.parametrize("values", [["inf"], ["inf", "-inf"], ["-inf"], ["nan"], ["1", "inf"]])
async def test_distinct_values_of_infinite_numbers(tmp_path: Path, values: list[str]) -> None:
    numbers = pa.array([float(values[i % len(values)]) for i in range(20)])
    async with reading() as client:
        table = await open_table(client, write(pa.table({"a": numbers}), tmp_path / "t.parquet", row_group_size=5))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            distinct = distinct_from_chunks(table.chunks(0), pa.float64())
        assert distinct is None or 0 <= distinct <= 20


def test_limits_of_chunks_that_do_not_tell() -> None:
    reader = statistics_reader(pa.int32(), _stored(pa.int32()))
    limits = struct((3, 6, number(4)), (5, 8, b"\x04\x05\0\0\0"), (6, 8, b"\x04\x06\0\0\0"))
    for more in ((), ((12, 12, limits),), ((12, 12, struct((5, 8, b"\x03abc"), (6, 8, b"\x04\0\0\0\0"))),)):
        footer = one_chunk(more=more)
        described = both(footer, 1, 1)
        assert described is not None
        for each in described:
            found = column_chunks(footer, each, ColumnReading(0, np.array([500]), 5000, "", "INT64", reader))
            assert found.limits == (None, None), "none, a low one above the high one, one of another length"
            assert found.ranges is not None
            assert not found.ranges.known.any()


def _stored(type_: pa.DataType) -> pq.ColumnSchema:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": pa.array([], type_)}), sink)
    return pq.ParquetFile(sink.getvalue()).schema.column(0)


def _chunk_at(offset: int, dictionary: int, length: int, decoded: int) -> bytes:
    metadata = struct(
        *((1, 5, number(2)), (4, 5, number(1)), (5, 6, number(500)), (6, 6, number(decoded)), (7, 6, number(length))),
        *((9, 6, number(offset)), (11, 6, number(dictionary))),
    )
    group = struct((1, 9, b"\x1c" + struct((3, 12, metadata))))
    return struct((4, 9, b"\x1c" + group), (7, 9, b"\x1c" + struct((1, 12, b"\0"))))
