"""What a registered table is to the engine: a schema and the Parquet files that hold its rows, each with its footer.

A footer is read once per file version (path, size, modification time) and every number in it is checked against the
file's size before anything trusts it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pystachio.errors import DataError, Unsupported
from pystachio.operators.batch import Field, Schema
from pystachio.operators.column import Bounds, normalise_type
from pystachio.operators.parquet.chunks import ChunkDescription, Descriptions, describe_chunks
from pystachio.operators.parquet.dictionary import SharedDictionary
from pystachio.operators.parquet.statistics import ChunkStatistics, IntegerRanges, statistics_reader

FIRST_DATA_BYTE = 4
"""A Parquet file begins with the four bytes PAR1."""

_PADDED_WRITER = "parquet-mr"
_PADDING = 100
"""Old parquet-mr left a page header out of a chunk's size (PARQUET-816); Arrow then reads this much more."""

_MOST_PLAUSIBLE_RATIO = 1 << 20
"""No codec and encoding known compress more; a footer that claims more lies."""


_SMALL_ROWS = 1 << 14
_MOST_CODE_BYTES = 3.5
"""Bytes per value, the dictionary's included: plain strings take four for their length alone."""


@dataclass(frozen=True, slots=True, order=True)
class FileVersion:
    """What identifies the content of a file: its footer, statistics and sample are cached under it."""

    path: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class ParquetField:
    """A top-level column of a file. `type` is normalised; `leaf` is its position among the file's primitive columns,
    None when the column is nested and cannot be read."""

    name: str
    type: pa.DataType
    nullable: bool
    leaf: int | None


class ColumnChunk(NamedTuple):
    """The bytes of one column in one row group: `length` bytes from `offset`, `decoded` bytes when decompressed.

    `codec` is Parquet's number of the compression.

    `coded`: it has a dictionary, and no page is known to be without codes. `text_bytes`: of all its strings, if known.
    """

    offset: int
    length: int
    codec: int
    decoded: int
    has_dictionary: bool
    coded: bool
    text_bytes: int | None
    values: int
    statistics: ChunkStatistics

    @property
    def has_values(self) -> bool:
        """Whether a value may be there that is not NULL."""
        return self.values > 0 and self.statistics.nulls != self.values


@dataclass(eq=False)
class ParquetFile:
    """One file version with its footer: as pyarrow decodes by it (`metadata`), and its bytes, which begin at the file's
    offset `data_end`. Immutable but for its caches."""

    version: FileVersion
    metadata: pq.FileMetaData
    footer: bytes = field(repr=False)
    data_end: int
    writer: str
    fields: tuple[ParquetField, ...]
    row_group_rows: tuple[int, ...]
    _chunks: dict[int, tuple[ColumnChunk, ...]] = field(default_factory=dict, repr=False)
    _ranges: dict[int, IntegerRanges | None] = field(default_factory=dict, repr=False)
    derived: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    """What readers of the file have found out about it."""

    @property
    def path(self) -> str:
        return self.version.path

    @property
    def size(self) -> int:
        return self.version.size

    @property
    def mtime_ns(self) -> int:
        return self.version.mtime_ns

    @property
    def rows(self) -> int:
        return sum(self.row_group_rows)

    @cached_property
    def positions(self) -> dict[str, int]:
        """Position in `fields` by name; of equal names the first."""
        return {f.name: i for i, f in reversed(list(enumerate(self.fields)))}

    @cached_property
    def readable(self) -> tuple[int, ...]:
        """Positions in `fields` of the columns that are not nested."""
        return tuple(position for position, field in enumerate(self.fields) if field.leaf is not None)

    def chunks(self, column: int) -> tuple[ColumnChunk, ...]:
        """The column's chunk in each row group. DataError when the footer's numbers do not fit the file."""
        chunks = self._chunks.get(column)
        if chunks is None:
            field_ = self.fields[column]
            if field_.leaf is None:
                raise Unsupported(f"reading the nested column {field_.name!r} of {self.path}")
            stored = self.metadata.schema.column(field_.leaf)
            reader, type_ = statistics_reader(field_.type, stored), stored.physical_type
            described = enumerate(self._descriptions[field_.leaf])
            chunks = tuple(self._chunk(column, group, raw, type_, reader.read(raw)) for group, raw in described)
            self._chunks[column] = chunks
        return chunks

    def ranges(self, column: int) -> IntegerRanges | None:
        """The statistics of a column of integers in all row groups; None for another column."""
        if column not in self._ranges:
            self._ranges[column] = IntegerRanges.of([chunk.statistics for chunk in self.chunks(column)])
        return self._ranges[column]

    @cached_property
    def row_group_sizes(self) -> np.ndarray:
        """`row_group_rows` as int64."""
        return np.array(self.row_group_rows, dtype=np.int64)

    @cached_property
    def _descriptions(self) -> Descriptions:
        return describe_chunks(self.path, self.footer, self.metadata.num_columns, len(self.row_group_rows))

    def _chunk(
        self, column: int, group: int, raw: ChunkDescription, physical_type: str, statistics: ChunkStatistics
    ) -> ColumnChunk:
        rows = self.row_group_rows[group]
        if not rows and not raw.values:  # writers put anything into the offsets of empty chunks
            return ColumnChunk(FIRST_DATA_BYTE, 0, raw.codec, 0, False, False, None, 0, statistics)
        offset, has_dictionary = raw.data_offset, False
        if raw.dictionary_offset is not None and 0 < raw.dictionary_offset < offset:
            offset, has_dictionary = raw.dictionary_offset, True
        length = raw.length
        if self.writer.startswith(_PADDED_WRITER):
            length = min(length + _PADDING, self.data_end - offset)
        inside = FIRST_DATA_BYTE <= offset <= raw.data_offset <= offset + length <= self.data_end
        plausible = 0 <= raw.decoded <= _MOST_PLAUSIBLE_RATIO * (length + 1)
        if not (inside and plausible and raw.physical_type == physical_type and raw.values == rows):
            raise DataError(
                f"the Parquet footer contradicts the file: {self.place(group, column)}: offset {offset}, "
                f"length {length}, decoded {raw.decoded}, values {raw.values} of {rows} rows, "
                f"type {raw.physical_type}, file of {self.size} bytes"
            )
        coded = has_dictionary and raw.coded is not False
        return ColumnChunk(
            offset, length, raw.codec, raw.decoded, has_dictionary, coded, raw.text_bytes, raw.values, statistics
        )

    def place(self, group: int | Sequence[int], column: int | None = None) -> str:
        """Where in the file, for messages."""
        groups = f"row group {group}" if isinstance(group, int) else "row groups " + ", ".join(map(str, group))
        named = "" if column is None else f", column {self.fields[column].name!r}"
        return f"{self.path}, {groups}{named}"


@dataclass(frozen=True, eq=False)
class Table:
    """`schema` has normalised types; each file has all the columns, found by name. Equal when the file versions are."""

    name: str
    schema: Schema
    files: tuple[ParquetFile, ...]
    dictionaries: dict[int, SharedDictionary] = field(default_factory=dict, repr=False)
    _bounds: dict[int, Bounds | None] = field(default_factory=dict, repr=False)
    _codes_pay: dict[int, bool] = field(default_factory=dict, repr=False)

    @cached_property
    def version(self) -> tuple[FileVersion, ...]:
        """What caches of anything derived from the table's content are keyed by."""
        return tuple(file.version for file in self.files)

    @cached_property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table):
            return NotImplemented
        return self is other or (self.name == other.name and self.version == other.version)

    def __hash__(self) -> int:
        return hash((self.name, self.version))

    def dictionary(self, column: int) -> SharedDictionary:
        """The codes that all scans of the column share as long as the table's files stay as they are."""
        return self.dictionaries.setdefault(column, SharedDictionary())

    def bounds(self, column: int) -> Bounds | None:
        """The range of an integer-like column by the footers; None when unknown or when there is no value."""
        if column not in self._bounds:
            name = self.schema[column].name
            chunks = [chunk for file in self.files for chunk in file.chunks(file.positions[name])]
            ranges = [(chunk.statistics.low, chunk.statistics.high) for chunk in chunks if chunk.has_values]
            known = bool(ranges) and all(isinstance(low, int) for low, _ in ranges)
            self._bounds[column] = (min(r[0] for r in ranges), max(r[1] for r in ranges)) if known else None
        return self._bounds[column]

    def codes_pay(self, column: int) -> bool:
        """Whether scans read the column as dictionary codes.

        They do for strings of small tables, and where the whole column takes so few bytes per value that its pages must
        hold codes: a column that fell back to plain pages would be hashed to make codes, at twice the cost of reading
        it.
        """
        if column not in self._codes_pay:
            self._codes_pay[column] = self._would_codes_pay(column)
        return self._codes_pay[column] and not (column in self.dictionaries and self.dictionaries[column].overflowed)

    def _would_codes_pay(self, column: int) -> bool:
        type_ = self.schema[column].type
        if not (pa.types.is_string(type_) or pa.types.is_binary(type_)):
            return False
        if not self._is_byte_array(column):
            return False
        if self.rows <= _SMALL_ROWS:
            return True
        name = self.schema[column].name
        chunks = [chunk for file in self.files for chunk in file.chunks(file.positions[name])]
        if not all(chunk.coded for chunk in chunks if chunk.decoded):
            return False
        return sum(chunk.decoded for chunk in chunks) <= _MOST_CODE_BYTES * self.rows

    def _is_byte_array(self, column: int) -> bool:
        """Arrow makes codes only of the Parquet type BYTE_ARRAY, not of its fixed-length sibling."""
        for file in self.files:
            leaf = file.fields[file.positions[self.schema[column].name]].leaf
            if leaf is None or file.metadata.schema.column(leaf).physical_type != "BYTE_ARRAY":
                return False
        return True


def table_of_files(name: str, files: Sequence[ParquetFile]) -> Table:
    """A table of files that agree: the same column names (in any order) with the same types.

    The order of the columns is the first file's; a column is nullable when it is in any file. DataError names the
    first two files that disagree.
    """
    first = files[0]
    for file in files:
        if len(file.positions) < len(file.fields):
            raise DataError(f"a file has several columns of one name: {file.path}")
    nullable = {f.name: f.nullable for f in first.fields}
    for file in files[1:]:
        _require_agreement(first, file)
        for f in file.fields:
            nullable[f.name] |= f.nullable
    return Table(name, tuple(Field(f.name, f.type, nullable[f.name]) for f in first.fields), tuple(files))


def _require_agreement(first: ParquetFile, other: ParquetFile) -> None:
    ours, theirs = {f.name: f.type for f in first.fields}, {f.name: f.type for f in other.fields}
    for name in (*ours, *theirs):
        mine, yours = ours.get(name), theirs.get(name)
        if mine is None or yours is None or mine != yours:
            raise DataError(
                f"files of one table have different schemas: column {name!r} is {mine or 'absent'} in {first.path} "
                f"and {yours or 'absent'} in {other.path}",
                hint="register files of different schemas as separate tables",
            )


def parquet_fields(schema: pa.Schema) -> tuple[ParquetField, ...]:
    """The top-level columns of a file's Arrow schema with their positions among the primitive columns."""
    fields = []
    leaf = 0
    for f in schema:
        leaves = _leaves(f.type)
        stored = f.type.storage_type if isinstance(f.type, pa.BaseExtensionType) else f.type
        nested = pa.types.is_nested(stored)
        fields.append(ParquetField(f.name, normalise_type(stored), f.nullable, None if nested else leaf))
        leaf += leaves
    return tuple(fields)


def _leaves(type_: pa.DataType) -> int:
    """Primitive columns that a type takes in a file."""
    if isinstance(type_, pa.BaseExtensionType):
        return _leaves(type_.storage_type)
    if pa.types.is_map(type_):
        return _leaves(type_.key_type) + _leaves(type_.item_type)
    if pa.types.is_struct(type_):
        return sum(_leaves(type_.field(i).type) for i in range(type_.num_fields))
    if pa.types.is_nested(type_):
        return _leaves(type_.value_type)
    return 1
