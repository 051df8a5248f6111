"""Parquet files of every kind for tests, and the shortest way to read them with the engine's own parts."""

from __future__ import annotations

import datetime
import decimal
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pystachio.io_scheduler.client import TransferClient
from pystachio.io_scheduler.core.request import Extent, PriorityClass
from pystachio.io_scheduler.service import IoSchedulerService
from pystachio.operators.column import Column
from pystachio.operators.parquet.decode import FetchedExtents, RowGroupDecoder
from pystachio.operators.parquet.dictionary import SharedDictionary
from pystachio.operators.parquet.footer import file_version, read_footer
from pystachio.operators.table import ParquetFile, Table, table_of_files

NARROW_ROWS = 1000


@asynccontextmanager
async def reading() -> AsyncIterator[TransferClient]:
    """A client of a scheduler of its own."""
    service = IoSchedulerService()
    await service.start()
    try:
        yield service.client("test", PriorityClass.NORMAL)
    finally:
        await service.stop()


async def open_file(client: TransferClient, path: Path | str) -> ParquetFile:
    return await read_footer(client, file_version(str(path)))


async def open_table(client: TransferClient, *paths: Path | str, name: str = "t") -> Table:
    return table_of_files(name, [await open_file(client, path) for path in paths])


async def decode(
    client: TransferClient,
    file: ParquetFile,
    groups: Sequence[int],
    column: int,
    shared: SharedDictionary | None = None,
) -> Column:
    """One column of some row groups, as codes when a dictionary is given."""
    chunks = [file.chunks(column)[group] for group in groups]
    extents = [Extent(chunk.offset, chunk.length) for chunk in chunks]
    buffers = await client.read(file.path, extents)
    views = [(extent.offset, buffer.view) for extent, buffer in zip(extents, buffers, strict=True)]
    source = FetchedExtents(file.path, file.size, views)
    return RowGroupDecoder(file, groups, source, [] if shared is None else [column]).decode(column, shared)


def every_type(rows: int = NARROW_ROWS, *, nulls: float = 0.2, seed: int = 1) -> pa.Table:
    """One column per type that can be read, with a share of NULLs and the extremes of each type."""
    rng = random.Random(seed)
    day = datetime.date(1969, 12, 25)

    def column(make: object, type_: pa.DataType) -> pa.Array:
        assert callable(make)
        return pa.array([None if rng.random() < nulls else make() for _ in range(rows)], type_)

    def integers(bits: int, *, signed: bool = True) -> object:
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        return lambda: rng.choice([low, high, 0, rng.randint(low, high)])

    def decimals(precision: int, scale: int) -> object:
        limit = 10**precision - 1
        return lambda: decimal.Decimal(rng.choice([limit, -limit, 0, rng.randint(-limit, limit)])).scaleb(
            -scale, decimal.Context(prec=50)
        )

    return pa.table(
        {
            "i8": column(integers(8), pa.int8()),
            "i16": column(integers(16), pa.int16()),
            "i32": column(integers(32), pa.int32()),
            "i64": column(integers(64), pa.int64()),
            "u8": column(integers(8, signed=False), pa.uint8()),
            "u16": column(integers(16, signed=False), pa.uint16()),
            "u32": column(integers(32, signed=False), pa.uint32()),
            "flag": column(lambda: rng.random() < 0.5, pa.bool_()),
            "f32": column(lambda: rng.choice([0.0, -0.0, 1.5, float("inf")]), pa.float32()),
            "f64": column(lambda: rng.choice([0.0, -1e300, float("nan"), rng.random()]), pa.float64()),
            "d9": column(decimals(9, 2), pa.decimal128(9, 2)),
            "d18": column(decimals(18, 4), pa.decimal128(18, 4)),
            "d38": column(decimals(38, 10), pa.decimal128(38, 10)),
            "date": column(lambda: day + datetime.timedelta(days=rng.randrange(20000)), pa.date32()),
            "ms": column(lambda: rng.randrange(-(2**40), 2**40), pa.timestamp("ms")),
            "us": column(lambda: rng.randrange(-(2**50), 2**50), pa.timestamp("us")),
            "ns": column(lambda: rng.randrange(-(2**60), 2**60), pa.timestamp("ns")),
            "zoned": column(lambda: rng.randrange(2**50), pa.timestamp("us", "Europe/Berlin")),
            "time": column(lambda: rng.randrange(86_400_000_000), pa.time64("us")),
            "interval": column(lambda: rng.randrange(-(2**40), 2**40), pa.duration("us")),
            "word": column(lambda: rng.choice(["", "a", "naïve", "日本", "x" * 300]), pa.string()),
            "text": column(lambda: f"{rng.random()}", pa.string()),
            "view": column(lambda: f"{rng.choice('abc')} and more than twelve bytes", pa.string_view()),
            "large": column(lambda: rng.choice(["l", "L" * 20]), pa.large_string()),
            "coded": column(lambda: rng.choice(["red", "green"]), pa.string()).dictionary_encode(),
            "bytes": column(lambda: rng.randbytes(rng.randrange(5)), pa.binary()),
            "fixed": column(lambda: rng.randbytes(3), pa.binary(3)),
            "nothing": pa.nulls(rows, pa.int32()),
        }
    )


def write(table: pa.Table, path: Path, **options: object) -> Path:
    """The table as a Parquet file."""
    pq.write_table(table, path, **options)
    return path
