"""Decoding from bytes in memory, and chunks of all kinds for the fuzzer."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from pystachio.operators.column import Bounds, Column
from pystachio.operators.parquet.chunks import PHYSICAL_TYPES
from pystachio.operators.parquet.decode import FetchedExtents, RowGroupDecoder
from pystachio.operators.parquet.dictionary import SharedDictionary
from pystachio.operators.parquet.footer import file_version, parse_footer
from pystachio.operators.table import ParquetFile
from tests.operators.parquet_sources import every_type

LAYOUTS: tuple[dict[str, object], ...] = (
    {},
    {"use_dictionary": False},
    {"compression": "none"},
    {"use_dictionary": False, "compression": "none"},
    {"data_page_version": "2.0", "data_page_size": 300},
    {"data_page_version": "2.0", "compression": "none", "use_dictionary": False},
    {"data_page_size": 256, "write_page_checksum": True},
    {"dictionary_pagesize_limit": 256, "data_page_size": 512, "compression": "none"},
    {"dictionary_pagesize_limit": 256, "data_page_size": 512},
    {"store_decimal_as_integer": True, "compression": "none"},
)


class Opened:
    """A file whose bytes are all in memory."""

    def __init__(self, path: Path) -> None:
        content = path.read_bytes()
        length = int.from_bytes(content[-8:-4], "little") + 8
        self.content = bytearray(content)
        self.file: ParquetFile = parse_footer(file_version(str(path)), content[-length:])

    def decode(
        self,
        column: int,
        groups: Sequence[int],
        shared: SharedDictionary | None = None,
        *,
        bounds: Bounds | None = None,
        first_rows: int | None = None,
        compiled: bool = True,
    ) -> tuple[Column, int]:
        """The column, and how many columns pyarrow had to decode for it."""
        source = FetchedExtents(self.file.path, self.file.size, [(0, memoryview(self.content))])
        coded = [] if shared is None else [column]
        decoder = RowGroupDecoder(self.file, groups, source, coded, compiled=compiled)
        return decoder.decode(column, shared, bounds=bounds, first_rows=first_rows), decoder.through_pyarrow


def write_seeds(folder: Path) -> Path:
    """Column chunks as `fuzz.c` reads them, written by pyarrow and by DuckDB."""
    seeds = folder / "seeds.bin"
    with seeds.open("wb") as out:
        for path in _files(folder):
            for seed in _seeds(path):
                out.write(seed)
    return seeds


def _files(folder: Path) -> Iterator[Path]:
    for nulls in (0.0, 0.2, 1.0):
        table = every_type(600, nulls=nulls)
        if not nulls:
            required = [pa.field(f.name, f.type, nullable=f.name == "nothing") for f in table.schema]
            table = table.cast(pa.schema(required))
        for number, layout in enumerate(LAYOUTS):
            path = folder / f"{nulls}_{number}.parquet"
            pq.write_table(table, path, **layout)
            yield path
    path = folder / "rising.parquet"
    rising = pa.table({"n": pa.array([i * (i % 3 + 257) for i in range(600)], pa.int64())})
    pq.write_table(rising, path, use_dictionary=False)
    yield path
    connection = duckdb.connect()
    connection.register("t", every_type(600).drop_columns(["nothing", "interval", "coded", "fixed"]))
    for version in ("V1", "V2"):
        for codec in ("snappy", "uncompressed"):
            path = folder / f"duckdb_{version}_{codec}.parquet"
            connection.execute(f"copy t to '{path}' (format parquet, parquet_version {version}, codec {codec})")
            yield path
    connection.close()


def _seeds(path: Path) -> Iterator[bytes]:
    opened = Opened(path)
    for column, field in enumerate(opened.file.fields):
        described = opened.file.metadata.schema.column(field.leaf)
        for chunk in opened.file.chunks(column):
            yield (
                struct.pack(
                    "<6q",
                    chunk.length,
                    chunk.values,
                    PHYSICAL_TYPES.index(described.physical_type),
                    described.length or 0,
                    chunk.codec,
                    described.max_definition_level,
                )
                + opened.content[chunk.offset : chunk.offset + chunk.length]
            )
