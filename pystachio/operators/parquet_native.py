"""Column chunks to columns by the compiled library: straight from the fetched bytes to tensors, nothing in between.

It handles flat columns of most types, uncompressed or with Snappy. Whatever it does not handle it leaves to pyarrow,
which also has the last word on values that do not fit their type.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import torch

from pystachio.errors import DataError, ResourceExhausted
from pystachio.operators.column import Bounds, BytesColumn, Column, DictionaryColumn, FixedColumn
from pystachio.operators.kernels.native import (
    HIGHEST,
    LOWEST,
    Chunk,
    Conversion,
    Failure,
    Fixed,
    Status,
    Strings,
    Survey,
)
from pystachio.operators.kernels.selection import concat
from pystachio.operators.narrowing import narrowest_dtype
from pystachio.operators.parquet_dictionary import SharedDictionary
from pystachio.operators.parquet_storage import Storage, storage_of
from pystachio.operators.table import ParquetFile

_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class NotHandled(Exception):
    """The library does not decode this column; pyarrow may."""


class Source(Protocol):
    """Fetched bytes of a file."""

    def view(self, offset: int, length: int) -> memoryview: ...


@dataclass(slots=True, eq=False)
class _Part:
    """The first `rows` rows of a row group's chunk, ready to be decoded; `held` keeps its bytes."""

    group: int
    rows: int
    chunk: Chunk
    held: np.ndarray[tuple[int], np.dtype[np.uint8]]


class NativeDecoder:
    """Decodes columns of some row groups of one file with `library`."""

    def __init__(self, library: ctypes.CDLL, file: ParquetFile, groups: Sequence[int], source: Source) -> None:
        self._library = library
        self._file = file
        self._groups = groups
        self._source = source

    def decode(self, column: int, dictionary: SharedDictionary | None, bounds: Bounds | None, rows: int) -> Column:
        """The first `rows` rows. Raises NotHandled, and DataError where the bytes are not what the footer says."""
        storage = storage_of(self._file, column)
        if storage is None:
            raise NotHandled
        parts = self._parts(column, storage, rows)
        try:
            if storage.is_text:
                return self._text(column, storage, parts, dictionary, rows)
            return self._numbers(column, storage, parts, bounds, rows)
        except MemoryError as error:
            raise ResourceExhausted(
                f"no memory to decode: {self._file.place(self._groups, column)}: {error}",
                setting="memory",
                hint="write the file with smaller row groups",
            ) from error

    def _parts(self, column: int, storage: Storage, rows: int) -> list[_Part]:
        parts: list[_Part] = []
        for group in self._groups:
            wanted = min(rows - sum(part.rows for part in parts), self._file.row_group_rows[group])
            if not wanted:
                continue
            chunk = self._file.chunks(column)[group]
            held = np.frombuffer(self._source.view(chunk.offset, chunk.length), np.uint8)
            described = Chunk(
                _address(held),
                chunk.length,
                chunk.values,
                wanted,
                storage.physical_type,
                storage.type_length,
                chunk.codec,
                storage.optional,
            )
            parts.append(_Part(group, wanted, described, held))
        return parts

    def _numbers(
        self, column: int, storage: Storage, parts: Sequence[_Part], wanted: Bounds | None, rows: int
    ) -> FixedColumn:
        narrow = _width(storage, wanted)
        found = self._fixed(column, storage, parts, narrow, rows)
        if found is None and narrow < storage.width:  # a footer that promises a smaller range than the file has
            found = self._fixed(column, storage, parts, storage.width, rows)
        if found is None:
            raise NotHandled
        return found

    def _fixed(
        self, column: int, storage: Storage, parts: Sequence[_Part], width: int, rows: int
    ) -> FixedColumn | None:
        """None when a value does not fit the width."""
        values = _empty(rows, _dtype(storage, width))
        validity = _empty(rows, torch.bool) if storage.optional else None
        out = Fixed(values=values.data_ptr(), low=HIGHEST, high=LOWEST, width=width, conversion=storage.conversion)
        out.validity = None if validity is None else validity.data_ptr()
        for part in parts:
            status = self._library.pystachio_decode_fixed(part.chunk, out)
            if status == Status.TOO_NARROW:
                return None
            self._check(status, column, part, out.failure)
        bounds = None
        if storage.range is not None and out.low <= out.high:
            bounds = out.low, out.high
            if bounds[0] < storage.range[0] or bounds[1] > storage.range[1]:
                return None
        return FixedColumn(self._file.fields[column].type, values, validity if out.nulls else None, bounds)

    def _text(
        self, column: int, storage: Storage, parts: Sequence[_Part], dictionary: SharedDictionary | None, rows: int
    ) -> Column:
        surveys = [self._survey(column, part) for part in parts]
        if dictionary is not None and parts:
            if all(survey.plain_rows == 0 for survey in surveys):
                coded = self._coded(column, storage, list(zip(parts, surveys, strict=True)), dictionary, rows)
                if coded is not None:
                    return coded
            elif not dictionary.overflowed:
                raise NotHandled  # codes of plain strings are made by hashing, which pyarrow does well
        if not parts:
            return BytesColumn(
                self._file.fields[column].type, torch.zeros(1, dtype=torch.int64), _empty(0, torch.uint8)
            )
        return concat(
            [
                self._looked_up(column, storage, part, survey)
                if survey.coded_rows
                else self._plain(column, storage, part, survey)
                for part, survey in zip(parts, surveys, strict=True)
            ]
        )

    def _coded(
        self,
        column: int,
        storage: Storage,
        parts: Sequence[tuple[_Part, Survey]],
        dictionary: SharedDictionary,
        rows: int,
    ) -> DictionaryColumn | None:
        """Codes of the shared dictionary, translated while they are read; None when that dictionary overflows."""
        tables = []
        for part, survey in parts:
            place = self._file.version, part.group, column
            translated = dictionary.kept(place, survey.dictionary_values)
            if translated is None:
                values = self._dictionary(column, part, survey)
                translated = dictionary.translate(_small_array(values), place)
            if translated is None:
                return None
            tables.append(translated)
        shared = tables[-1][1]  # it grows only: the last one has the codes of all
        width = max(table.element_size() for table, _ in tables)
        codes = _empty(rows, _SIGNED[width])
        validity = _empty(rows, torch.bool) if storage.optional else None
        out = Fixed(values=codes.data_ptr(), width=width, conversion=Conversion.CODES)
        out.validity = None if validity is None else validity.data_ptr()
        for (part, _), (table, _) in zip(parts, tables, strict=True):
            table = table.to(codes.dtype)
            out.table, out.table_length = _table_address(table), len(table)
            self._check(self._library.pystachio_decode_fixed(part.chunk, out), column, part, out.failure)
        return DictionaryColumn(self._file.fields[column].type, codes, shared, validity if out.nulls else None)

    def _survey(self, column: int, part: _Part) -> Survey:
        survey = Survey()
        self._check(self._library.pystachio_survey(part.chunk, survey), column, part, survey.failure)
        return survey

    def _dictionary(self, column: int, part: _Part, survey: Survey) -> BytesColumn:
        offsets = _empty(survey.dictionary_values + 1, torch.int64)
        data = _empty(survey.dictionary_bytes, torch.uint8)
        offsets[0] = 0
        out = Strings(
            offsets=offsets.data_ptr(),
            data=data.data_ptr(),
            data_capacity=len(data),
            entry_capacity=survey.dictionary_values,
        )
        self._check(self._library.pystachio_decode_dictionary(part.chunk, out), column, part, out.failure)
        return BytesColumn(self._file.fields[column].type, offsets, data)

    def _plain(self, column: int, storage: Storage, part: _Part, survey: Survey) -> BytesColumn:
        offsets = _empty(part.rows + 1, torch.int64)
        data = _empty(survey.plain_bytes, torch.uint8)
        validity = _empty(part.rows if storage.optional else 0, torch.bool)
        offsets[0] = 0
        out = Strings(
            offsets=offsets.data_ptr(), data=data.data_ptr(), data_capacity=len(data), validity=validity.data_ptr()
        )
        self._check(self._library.pystachio_decode_strings(part.chunk, out), column, part, out.failure)
        data = data[: int(offsets[-1])]
        return BytesColumn(self._file.fields[column].type, offsets, data, validity if out.nulls else None)

    def _looked_up(self, column: int, storage: Storage, part: _Part, survey: Survey) -> BytesColumn:
        """Strings of a chunk with a dictionary, which its plain pages extend."""
        entries = survey.dictionary_values + survey.plain_rows
        dictionary = _empty(entries + 1, torch.int64)
        text = _empty(survey.dictionary_bytes + survey.plain_bytes, torch.uint8)
        codes = _empty(part.rows, torch.int32)
        validity = _empty(part.rows if storage.optional else 0, torch.bool)
        dictionary[0] = 0
        out = Strings(
            offsets=dictionary.data_ptr(),
            data=text.data_ptr(),
            data_capacity=len(text),
            validity=validity.data_ptr(),
            codes=codes.data_ptr(),
            entry_capacity=entries,
        )
        self._check(self._library.pystachio_decode_strings(part.chunk, out), column, part, out.failure)
        valid = validity if out.nulls else None
        offsets = _empty(part.rows + 1, torch.int64)
        offsets[0] = 0
        where = None if valid is None else valid.data_ptr()
        shared = codes.data_ptr(), part.rows, dictionary.data_ptr()
        length = self._library.pystachio_text_offsets(shared[0], where, *shared[1:], offsets.data_ptr())
        data = _empty(length, torch.uint8)
        self._library.pystachio_text_gather(
            *shared, text.data_ptr(), len(text), offsets.data_ptr(), data.data_ptr(), length
        )
        return BytesColumn(self._file.fields[column].type, offsets, data, valid)

    def _check(self, status: int, column: int, part: _Part, failure: Failure) -> None:
        match status:
            case Status.OK:
                return
            case Status.CORRUPT:
                raise DataError(f"cannot decode the column: {self._file.place(part.group, column)}: {failure}")
            case Status.NO_MEMORY:
                raise MemoryError("no memory to decompress a page")
            case _:
                raise NotHandled


def _empty(length: int, dtype: torch.dtype) -> torch.Tensor:
    """Memory to be written by the library. The length may come from a footer that lies: then there is none."""
    try:
        return torch.empty(length, dtype=dtype)
    except RuntimeError as error:
        raise MemoryError(str(error)) from error


def _width(storage: Storage, wanted: Bounds | None) -> int:
    if wanted is None or storage.range is None:
        return storage.width
    return min(storage.width, narrowest_dtype(wanted).itemsize)


def _dtype(storage: Storage, width: int) -> torch.dtype:
    match storage.conversion:
        case Conversion.BOOLEAN:
            return torch.bool
        case Conversion.RAW:
            return torch.float32 if width == 4 else torch.float64
        case _:
            return _SIGNED[width]


def _address(array: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _table_address(table: torch.Tensor) -> int | None:
    return table.data_ptr() or None


def _small_array(column: BytesColumn) -> pa.Array:
    """A dictionary as Arrow's string or binary."""
    offsets = column.offsets.numpy().astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(column.data.numpy())]
    return pa.Array.from_buffers(column.type, len(column), buffers)
