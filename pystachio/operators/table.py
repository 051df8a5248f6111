"""What a registered table is to the engine: a schema and the Parquet files that hold its rows, each with its footer.

A footer is read once per file version (path, size, modification time) and every number in it is checked against the
file's size before anything trusts it.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from pystachio.errors import DataError, Unsupported
from pystachio.operators.batch import Field, Schema
from pystachio.operators.column import Bounds, normalise_type
from pystachio.operators.kernels import native
from pystachio.operators.parquet.chunks import Descriptions, describe_chunks
from pystachio.operators.parquet.column_chunks import (
    ColumnChunks,
    ColumnReading,
    ContradictsFileError,
    column_chunks,
    joined,
)
from pystachio.operators.parquet.dictionary import SharedDictionary
from pystachio.operators.parquet.statistics import statistics_reader

_SMALL_ROWS = 1 << 14
_MOST_CODE_BYTES = 3.5
"""Bytes per value, the dictionary's included: plain strings take four for their length alone."""

_LEAST_CODED = 0.9
"""Of the rows. A writer decides for each row group: the last one, with few rows, often has plain strings."""


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
    _chunks: dict[int, ColumnChunks] = field(default_factory=dict, repr=False)
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
    def digest(self) -> str:
        """Another one for another path, size, time of modification or footer."""
        status = f"{os.path.abspath(self.path)}\0{self.size}\0{self.mtime_ns}\0"
        return xxhash.xxh3_128_hexdigest(status.encode(errors="surrogateescape") + self.footer)

    @cached_property
    def positions(self) -> dict[str, int]:
        """Position in `fields` by name; of equal names the first."""
        return {f.name: i for i, f in reversed(list(enumerate(self.fields)))}

    @cached_property
    def readable(self) -> tuple[int, ...]:
        """Positions in `fields` of the columns that are not nested."""
        return tuple(position for position, field in enumerate(self.fields) if field.leaf is not None)

    def chunks(self, column: int) -> ColumnChunks:
        """The column's chunk in each row group. DataError when the footer's numbers do not fit the file."""
        chunks = self._chunks.get(column)
        if chunks is None:
            chunks = self._chunks[column] = self._read_chunks(column)
        return chunks

    @cached_property
    def row_group_sizes(self) -> np.ndarray:
        """`row_group_rows` as int64."""
        return np.array(self.row_group_rows, dtype=np.int64)

    def describe(self) -> None:
        """Find what the footer says of each chunk, which else waits until somebody asks. Raises DataError."""
        len(self._descriptions)

    @cached_property
    def _descriptions(self) -> Descriptions:
        return describe_chunks(self.path, self.footer, self.metadata.num_columns, len(self.row_group_rows))

    def _read_chunks(self, column: int) -> ColumnChunks:
        field_ = self.fields[column]
        if field_.leaf is None:
            raise Unsupported(f"reading the nested column {field_.name!r} of {self.path}")
        stored = self.metadata.schema.column(field_.leaf)
        reading = ColumnReading(
            leaf=field_.leaf,
            rows=self.row_group_sizes,
            data_end=self.data_end,
            writer=self.writer,
            physical_type=stored.physical_type,
            statistics=statistics_reader(field_.type, stored),
        )
        try:
            return column_chunks(self.footer, self._descriptions, reading)
        except ContradictsFileError as error:
            said, rows = error.said, self.row_group_rows[error.group]
            raise DataError(
                f"the Parquet footer contradicts the file: {self.place(error.group, column)}: pages from "
                f"{said.data_offset}, length {said.length}, decoded {said.decoded}, values {said.values} of {rows} "
                f"rows, type {said.physical_type}, file of {self.size} bytes"
            ) from None

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
    _holds_codes: dict[int, bool] = field(default_factory=dict, repr=False)

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

    def chunks(self, column: int) -> ColumnChunks:
        """Those of all files, one after the other."""
        name = self.schema[column].name
        return joined([file.chunks(file.positions[name]) for file in self.files])

    def bounds(self, column: int) -> Bounds | None:
        """The range of an integer-like column by the footers; None when unknown or when there is no value."""
        if column not in self._bounds:
            self._bounds[column] = self._footer_bounds(column)
        return self._bounds[column]

    def _footer_bounds(self, column: int) -> Bounds | None:
        if _is_text(self.schema[column].type):
            return None
        chunks = self.chunks(column)
        low, high = chunks.limits
        return (low, high) if isinstance(low, int) and isinstance(high, int) else None

    def codes_pay(self, column: int) -> bool:
        """Whether scans read the column as dictionary codes.

        They do for strings, as long as the column's `SharedDictionary` does not say that there are too many of them.
        Without the compiled library they only do where the files `hold_codes`: it takes hashing to make some.
        """
        if column in self.dictionaries and self.dictionaries[column].overflowed:
            return False
        if native.library() is None:
            return self.holds_codes(column)
        return _is_text(self.schema[column].type) and self._is_byte_array(column)

    def holds_codes(self, column: int) -> bool:
        """Whether the files have dictionary codes of the column: nearly all of it is coded, and the whole takes so few
        bytes per value that its pages must hold codes; or the table is small."""
        if column not in self._holds_codes:
            self._holds_codes[column] = self._would_hold_codes(column)
        return self._holds_codes[column]

    def _would_hold_codes(self, column: int) -> bool:
        if not _is_text(self.schema[column].type) or not self._is_byte_array(column):
            return False
        if self.rows <= _SMALL_ROWS:
            return True
        chunks = self.chunks(column)
        if float(chunks.values[chunks.coded].sum(dtype=np.float64)) < _LEAST_CODED * float(
            chunks.values.sum(dtype=np.float64)
        ):
            return False
        return float(chunks.decoded.sum(dtype=np.float64)) <= _MOST_CODE_BYTES * self.rows

    def _is_byte_array(self, column: int) -> bool:
        """Arrow makes codes only of the Parquet type BYTE_ARRAY, not of its fixed-length sibling."""
        for file in self.files:
            leaf = file.fields[file.positions[self.schema[column].name]].leaf
            if leaf is None or file.metadata.schema.column(leaf).physical_type != "BYTE_ARRAY":
                return False
        return True


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_binary(type_))


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
