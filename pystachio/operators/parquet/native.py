"""Column chunks to columns by the compiled library: straight from the fetched bytes to tensors, nothing in between.

It handles flat columns of most types, uncompressed or with Snappy. Whatever it does not handle it leaves to pyarrow,
which also has the last word on values that do not fit their type.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
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
from pystachio.operators.narrowing import narrowest_dtype
from pystachio.operators.parquet.dictionary import SharedDictionary
from pystachio.operators.parquet.storage import Storage, storage_of
from pystachio.operators.table import ParquetFile

_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class NotHandled(Exception):
    """The library does not decode this column; pyarrow may."""


class Source(Protocol):
    """Fetched bytes of a file."""

    def view(self, offset: int, length: int) -> memoryview: ...


_CHUNK = struct.Struct("=qqqqiiii")
"""The fields of `Chunk`."""

_CODECS = (0, 1)
"""None and Snappy."""

_ARRAYS = {count: Chunk * count for count in range(1, 9)}
"""Types of arrays: to make one takes longer than to decode a chunk."""


@dataclass(slots=True, eq=False)
class _Parts:
    """The first rows of some row groups' chunks, ready to be decoded: `rows` of each; `held` keeps the bytes."""

    groups: list[int]
    rows: list[int]
    chunks: ctypes.Array[Chunk]
    held: list[object]

    def __len__(self) -> int:
        return len(self.groups)


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

    def _parts(self, column: int, storage: Storage, rows: int) -> _Parts:
        groups = []
        wanted = []
        for group in self._groups:
            if rows:
                groups.append(group)
                wanted.append(min(rows, self._file.row_group_rows[group]))
                rows -= wanted[-1]
        parts = _Parts(groups, wanted, (_ARRAYS.get(len(groups)) or Chunk * len(groups))(), [])
        described = self._file.chunks(column)
        place = 0
        for group, taken in zip(groups, wanted, strict=True):
            chunk = described[group]
            if chunk.codec not in _CODECS:
                raise NotHandled
            address, held = _pinned(self._source.view(chunk.offset, chunk.length))
            parts.held.append(held)
            _CHUNK.pack_into(
                parts.chunks,
                place,
                address,
                chunk.length,
                chunk.values,
                taken,
                storage.physical_type,
                storage.type_length,
                chunk.codec,
                storage.optional,
            )
            place += _CHUNK.size
        return parts

    def _numbers(self, column: int, storage: Storage, parts: _Parts, wanted: Bounds | None, rows: int) -> FixedColumn:
        narrow = _width(storage, wanted)
        found = self._fixed(column, storage, parts, narrow, rows)
        if found is None and narrow < storage.width:  # a footer that promises a smaller range than the file has
            found = self._fixed(column, storage, parts, storage.width, rows)
        if found is None:
            raise NotHandled
        return found

    def _fixed(self, column: int, storage: Storage, parts: _Parts, width: int, rows: int) -> FixedColumn | None:
        """None when a value does not fit the width."""
        values = _empty(rows, _dtype(storage, width))
        validity = _empty(rows, torch.bool) if storage.optional else None
        out = Fixed(values=values.data_ptr(), low=HIGHEST, high=LOWEST, width=width, conversion=storage.conversion)
        out.validity = None if validity is None else validity.data_ptr()
        done = ctypes.c_int64()
        status = self._library.pystachio_decode_fixed_all(parts.chunks, len(parts), out, ctypes.byref(done))
        if status:
            if status == Status.TOO_NARROW:
                return None
            self._check(status, column, parts.groups[done.value], out.failure)
        bounds = None
        if storage.range is not None and out.low <= out.high:
            bounds = out.low, out.high
            if bounds[0] < storage.range[0] or bounds[1] > storage.range[1]:
                return None
        return FixedColumn(self._file.fields[column].type, values, validity if out.nulls else None, bounds)

    def _text(
        self, column: int, storage: Storage, parts: _Parts, dictionary: SharedDictionary | None, rows: int
    ) -> Column:
        surveys = [self._survey(column, parts, part) for part in range(len(parts))]
        in_codes = all(survey.plain_rows == 0 for survey in surveys)
        if dictionary is not None and in_codes:
            coded = self._coded(column, storage, parts, surveys, dictionary, rows)
            if coded is not None:
                return coded
        if any(survey.coded_rows for survey in surveys):
            texts = self._looked_up(column, storage, parts, surveys, rows)
        else:
            texts = self._plain(column, storage, parts, surveys, rows)
        coded = None if dictionary is None or in_codes else dictionary.encode_plain(texts)
        return texts if coded is None else coded

    def _coded(
        self,
        column: int,
        storage: Storage,
        parts: _Parts,
        surveys: Sequence[Survey],
        dictionary: SharedDictionary,
        rows: int,
    ) -> DictionaryColumn | None:
        """Codes of the shared dictionary, translated while they are read; None when they are not worth it."""
        if dictionary.is_too_varied(sum(survey.dictionary_values for survey in surveys), rows):
            return None
        tables = []
        for part, survey in enumerate(surveys):
            place = self._file.version, parts.groups[part], column
            translated = dictionary.kept(place, survey.dictionary_values)
            if translated is None:
                values = self._dictionary(column, parts, part, survey)
                translated = dictionary.translate(values, place)
            if translated is None:
                return None
            tables.append((translated[0].codes, translated[1]))
        shared = tables[-1][1]  # it grows only: the last one has the codes of all
        width = max(table.element_size() for table, _ in tables)
        codes = _empty(rows, _SIGNED[width])
        validity = _empty(rows, torch.bool) if storage.optional else None
        out = Fixed(values=codes.data_ptr(), width=width, conversion=Conversion.CODES)
        out.validity = None if validity is None else validity.data_ptr()
        for part, (table, _) in enumerate(tables):
            table = table.to(codes.dtype)
            out.table, out.table_length = _table_address(table), len(table)
            status = self._library.pystachio_decode_fixed(parts.chunks[part], out)
            self._check(status, column, parts.groups[part], out.failure)
        return DictionaryColumn(self._file.fields[column].type, codes, shared, validity if out.nulls else None)

    def _survey(self, column: int, parts: _Parts, part: int) -> Survey:
        survey = Survey()
        status = self._library.pystachio_survey(parts.chunks[part], survey)
        self._check(status, column, parts.groups[part], survey.failure)
        return survey

    def _dictionary(self, column: int, parts: _Parts, part: int, survey: Survey) -> BytesColumn:
        offsets = _offsets(survey.dictionary_values)
        data = _empty(survey.dictionary_bytes, torch.uint8)
        out = Strings(
            offsets=offsets.data_ptr(),
            data=data.data_ptr(),
            data_capacity=len(data),
            entry_capacity=survey.dictionary_values,
        )
        status = self._library.pystachio_decode_dictionary(parts.chunks[part], out)
        self._check(status, column, parts.groups[part], out.failure)
        return BytesColumn(self._file.fields[column].type, offsets, data)

    def _plain(self, column: int, storage: Storage, parts: _Parts, surveys: Sequence[Survey], rows: int) -> BytesColumn:
        offsets = _offsets(rows)
        data = _empty(sum(survey.plain_bytes for survey in surveys), torch.uint8)
        validity = _empty(rows if storage.optional else 0, torch.bool)
        out = Strings(
            offsets=offsets.data_ptr(), data=data.data_ptr(), data_capacity=len(data), validity=validity.data_ptr()
        )
        for part, group in enumerate(parts.groups):
            status = self._library.pystachio_decode_strings(parts.chunks[part], out)
            self._check(status, column, group, out.failure)
        data = data[: int(offsets[-1])]
        return BytesColumn(self._file.fields[column].type, offsets, data, validity if out.nulls else None)

    def _looked_up(
        self, column: int, storage: Storage, parts: _Parts, surveys: Sequence[Survey], rows: int
    ) -> BytesColumn:
        """Strings of chunks with dictionaries, which their plain pages extend."""
        codes = _empty(rows, torch.int32)
        validity = _empty(rows if storage.optional else 0, torch.bool)
        offsets = _offsets(rows)
        out = Strings(validity=validity.data_ptr(), codes=codes.data_ptr())
        read = []
        length = row = 0
        for part, (group, survey) in enumerate(zip(parts.groups, surveys, strict=True)):
            out.entry_capacity = survey.dictionary_values + survey.plain_rows
            entries = _offsets(out.entry_capacity)
            text = _empty(survey.dictionary_bytes + survey.plain_bytes, torch.uint8)
            out.offsets, out.data, out.data_capacity = entries.data_ptr(), text.data_ptr(), len(text)
            nulls = out.nulls
            status = self._library.pystachio_decode_strings(parts.chunks[part], out)
            self._check(status, column, group, out.failure)
            where = validity[row:].data_ptr() if out.nulls > nulls else None
            shared = codes[row:].data_ptr(), parts.rows[part], entries.data_ptr()
            length = self._library.pystachio_text_offsets(shared[0], where, *shared[1:], offsets[row:].data_ptr())
            read.append((row, shared, entries, text))
            row += parts.rows[part]
        data = _empty(length, torch.uint8)
        for row, shared, _, text in read:
            where = offsets[row:].data_ptr()
            self._library.pystachio_text_gather(*shared, text.data_ptr(), len(text), where, data.data_ptr(), length)
        valid = validity if out.nulls else None
        return BytesColumn(self._file.fields[column].type, offsets, data, valid)

    def _check(self, status: int, column: int, group: int, failure: Failure) -> None:
        match status:
            case Status.OK:
                return
            case Status.CORRUPT:
                raise DataError(f"cannot decode the column: {self._file.place(group, column)}: {failure}")
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


def _offsets(length: int) -> torch.Tensor:
    """The same for offsets, the first of which is 0."""
    offsets = _empty(length + 1, torch.int64)
    offsets[0] = 0
    return offsets


def _pinned(view: memoryview) -> tuple[int, object]:
    """The address of the bytes, and what keeps them where they are."""
    if len(view) == 0 or view.readonly:
        array = np.frombuffer(view, np.uint8)
        return array.__array_interface__["data"][0], array
    first = ctypes.c_char.from_buffer(view)
    return ctypes.addressof(first), first


def _table_address(table: torch.Tensor) -> int | None:
    return table.data_ptr() or None
