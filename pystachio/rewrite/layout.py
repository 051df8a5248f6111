"""How each column is to be stored: decided by writing a sample of it in each way."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pystachio.errors import InvalidRequest

COMPRESSIONS = ("auto", "none", "snappy", "lz4", "zstd")

_WORTH = 0.8
"""Compression pays where at most this share of the bytes is left: less is not worth the unpacking."""

_DICTIONARY_BYTES = 1 << 20
"""A larger dictionary leaves the processor's cache, and pyarrow stops coding in the middle of the chunk."""

_DICTIONARY_WORTH = 0.7
_REPEATED = 8
"""Each distinct value must occur so often in the sample, on average: otherwise its number of values is unknown."""

_GROWING = 1.3
"""A sample with so many times the distinct values of its half has not shown them all."""

_FEWEST_VALUES_WRITTEN = 1
_MOST_VALUES_WRITTEN = 1024


@dataclass(frozen=True, slots=True)
class Layout:
    """What the caller may choose. A row group ends at `row_group_rows` rows or `row_group_bytes` bytes in memory,
    whichever comes first; a page at `page_bytes` encoded bytes. `compression` is one of `COMPRESSIONS`: auto is Snappy
    where that pays, a codec by name is used where it pays, none is none."""

    row_group_rows: int = 10_000_000
    row_group_bytes: int = 256 << 20
    page_bytes: int = 256 << 10
    compression: str = "auto"

    def __post_init__(self) -> None:
        for name, value in (("row group rows", self.row_group_rows), ("row group bytes", self.row_group_bytes)):
            if value < 1:
                raise InvalidRequest(f"{name} must be at least 1, not {value}")
        if not 1 << 10 <= self.page_bytes <= 1 << 30:
            raise InvalidRequest(f"a page has 1 KiB to 1 GiB, not {self.page_bytes} bytes")
        if self.row_group_rows > _MOST_ROW_GROUP_ROWS:
            raise InvalidRequest(f"a row group has at most {_MOST_ROW_GROUP_ROWS:,} rows, not {self.row_group_rows:,}")
        if self.compression not in COMPRESSIONS:
            raise InvalidRequest(f"unknown compression: {self.compression!r}", hint=f"one of {', '.join(COMPRESSIONS)}")

    @property
    def codec(self) -> str:
        return {"auto": "SNAPPY"}.get(self.compression, self.compression.upper())


_MOST_ROW_GROUP_ROWS = 64 << 20
"""pyarrow splits what is larger."""


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """`codec` in pyarrow's words."""

    dictionary: bool
    codec: str


def choose(sample: pa.Table, rows: int, layout: Layout) -> dict[str, ColumnLayout]:
    """By top-level column; `rows` is what a row group may have. Nested columns are written as pyarrow usually does."""
    return {f.name: _choose(f, sample.column(i), rows, layout) for i, f in enumerate(sample.schema)}


def _choose(field: pa.Field, values: pa.ChunkedArray, rows: int, layout: Layout) -> ColumnLayout:
    if len(values) == 0 or pa.types.is_null(storage_type(field.type)):
        return ColumnLayout(False, "NONE")
    if pa.types.is_nested(storage_type(field.type)):
        return ColumnLayout(True, layout.codec)
    table = pa.table([values], schema=pa.schema([field]))
    dictionary = _dictionary_pays(plain_values(values), rows)
    raw = written_bytes(table, dictionary, "NONE")
    if layout.compression == "none" or written_bytes(table, dictionary, layout.codec) > _WORTH * raw:
        return ColumnLayout(dictionary, "NONE")
    return ColumnLayout(dictionary, layout.codec)


def _dictionary_pays(values: pa.ChunkedArray, rows: int) -> bool:
    """Whether a row group of so many rows, of which `values` are a sample, is smaller with codes."""
    if pa.types.is_boolean(values.type):
        return False
    count = len(values)
    distinct = int(pc.count_distinct(values, mode="only_valid").as_py())
    half = int(pc.count_distinct(values.slice(0, count // 2), mode="only_valid").as_py())
    if distinct * _REPEATED > count - values.null_count:
        return False
    expected = distinct if distinct <= _GROWING * max(half, 1) else distinct * max(rows, count) / count
    width = values.nbytes / count
    if expected * width > _DICTIONARY_BYTES:
        return False
    code_width = max(int(expected) - 1, 1).bit_length() / 8
    return bool(code_width * rows + expected * width <= _DICTIONARY_WORTH * width * rows)


def written_bytes(table: pa.Table, dictionary: bool, codec: str) -> int:
    """What the sample's values take in a file."""
    sink = pa.BufferOutputStream()
    options = {"use_dictionary": dictionary, "compression": codec, "data_page_version": "2.0"}
    with pq.ParquetWriter(sink, table.schema, store_decimal_as_integer=True, **options) as writer:
        writer.write_table(table, row_group_size=len(table))
    written = pq.read_metadata(pa.BufferReader(sink.getvalue())).row_group(0)
    return sum(written.column(i).total_compressed_size for i in range(written.num_columns))


def values_per_write(sample: pa.Table, page_bytes: int) -> int:
    """Between two looks at a page's size: long strings would otherwise make pages of a thousand of them."""
    widest = max((column.nbytes / len(column) for column in sample.columns if len(column)), default=1.0)
    return max(_FEWEST_VALUES_WRITTEN, min(_MOST_VALUES_WRITTEN, int(page_bytes / max(widest, 1.0))))


def storage_type(type_: pa.DataType) -> pa.DataType:
    """What an extension type is stored as."""
    return type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_


def plain_values(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Without extension types, dictionaries and string views, which not every function of Arrow knows."""
    chunks = [chunk.storage if isinstance(chunk.type, pa.BaseExtensionType) else chunk for chunk in values.chunks]
    plain = pa.chunked_array(chunks, storage_type(values.type))
    if pa.types.is_dictionary(plain.type):
        plain = plain.cast(plain.type.value_type)
    if pa.types.is_string_view(plain.type) or pa.types.is_large_string(plain.type):
        return plain.cast(pa.large_binary())
    if pa.types.is_binary_view(plain.type):
        return plain.cast(pa.large_binary())
    return plain
