"""The chunks of one column in all row groups of a file, as far as they fit the file: arrays for whoever asks about all
of them, and an object for each that is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from ctypes import CDLL
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple, overload

import numpy as np

from pystachio.errors import DataError
from pystachio.operators.parquet.chunks import PHYSICAL_TYPES, ChunkDescription, CompiledDescriptions, Descriptions
from pystachio.operators.parquet.statistics import ChunkStatistics, IntegerRanges, Statistic, StatisticsReader

FIRST_DATA_BYTE: Final = 4
"""A Parquet file begins with the four bytes PAR1."""

_PADDED_WRITER: Final = "parquet-mr"
_PADDING: Final = 100
"""Old parquet-mr left a page header out of a chunk's size (PARQUET-816); Arrow then reads this much more."""

_MOST_PLAUSIBLE_RATIO: Final = 1 << 20
"""No codec and encoding known compress more; a footer that claims more lies."""

_UNKNOWN: Final = -1


class _Number:
    """Positions in a row of `ColumnChunks.numbers`: `ps_column_chunk` in native/footer.h."""

    OFFSET, LENGTH, CODEC, DECODED, HAS_DICTIONARY, CODED, TEXT_BYTES, VALUES, NULLS = range(9)
    IS_KNOWN, IS_EXACT, LOW, HIGH, LOW_AT, LOW_LENGTH, HIGH_AT, HIGH_LENGTH = range(9, 17)
    COUNT = 17


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


@dataclass(frozen=True, slots=True)
class ColumnReading:
    """How a column of a file is read: `leaf` is its position among the primitive columns, `rows` (int64) has those of
    each row group."""

    leaf: int
    rows: np.ndarray
    data_end: int
    writer: str
    physical_type: str
    statistics: StatisticsReader

    @property
    def padding(self) -> int:
        return _PADDING if self.writer.startswith(_PADDED_WRITER) else 0


class ContradictsFileError(DataError):
    """Row group `group` of a footer describes a chunk that cannot be there."""

    def __init__(self, group: int, said: ChunkDescription) -> None:
        super().__init__(f"row group {group}: {said}")
        self.group = group
        self.said = said


@dataclass(eq=False)
class ColumnChunks(Sequence[ColumnChunk]):
    """By row group. Arrays are int64 or bool, one element for each.

    `numbers` has a row for each chunk; integers of 64 bits among the limits are there, others only where
    `read_statistics` finds them.
    """

    numbers: np.ndarray
    has_integer_limits: bool
    read_statistics: Callable[[], list[ChunkStatistics]] = field(repr=False)
    _made: dict[int, ColumnChunk] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, group: int) -> ColumnChunk: ...

    @overload
    def __getitem__(self, group: slice) -> list[ColumnChunk]: ...

    def __getitem__(self, group: int | slice) -> ColumnChunk | list[ColumnChunk]:
        if isinstance(group, slice):
            return [self[each] for each in range(*group.indices(len(self)))]
        made = self._made.get(group)
        if made is None:
            made = self._made[group] = self._chunk(group)
        return made

    def __iter__(self) -> Iterator[ColumnChunk]:
        return map(self.__getitem__, range(len(self)))

    @property
    def lengths(self) -> np.ndarray:
        return self._of(_Number.LENGTH)

    @property
    def decoded(self) -> np.ndarray:
        return self._of(_Number.DECODED)

    @property
    def has_dictionary(self) -> np.ndarray:
        return self._are(_Number.HAS_DICTIONARY)

    @property
    def coded(self) -> np.ndarray:
        return self._are(_Number.CODED)

    @property
    def text_bytes(self) -> np.ndarray:
        """-1 where they are unknown, as in `nulls`."""
        return self._of(_Number.TEXT_BYTES)

    @property
    def values(self) -> np.ndarray:
        return self._of(_Number.VALUES)

    @property
    def nulls(self) -> np.ndarray:
        return self._of(_Number.NULLS)

    @property
    def has_values(self) -> np.ndarray:
        found: np.ndarray = (self.values > 0) & (self.nulls != self.values)
        return found

    @cached_property
    def ranges(self) -> IntegerRanges | None:
        """The statistics, where all limits are integers of 64 bits."""
        if not self.has_integer_limits:
            return IntegerRanges.of(self.statistics)
        return IntegerRanges(self._of(_Number.LOW), self._of(_Number.HIGH), self._are(_Number.IS_KNOWN), self.nulls)

    @cached_property
    def limits(self) -> tuple[Statistic | None, Statistic | None]:
        """The least and the greatest value of all chunks; None where one does not tell, or there are no values."""
        valued, ranges = np.flatnonzero(self.has_values), self.ranges
        if ranges is not None:
            if not len(valued) or not ranges.known[valued].all():
                return None, None
            return int(ranges.low[valued].min()), int(ranges.high[valued].max())
        known = [self.statistics[group] for group in valued.tolist()]
        if not known or any(each.low is None for each in known):
            return None, None
        return min(each.low for each in known), max(each.high for each in known)

    @cached_property
    def statistics(self) -> list[ChunkStatistics]:
        return self.read_statistics()

    def _of(self, number: int) -> np.ndarray:
        of_all: np.ndarray = self.numbers[:, number]
        return of_all

    def _are(self, number: int) -> np.ndarray:
        truths: np.ndarray = self.numbers[:, number] != 0
        return truths

    def _chunk(self, group: int) -> ColumnChunk:
        row = self.numbers[group].tolist()
        offset, length, codec, decoded, has_dictionary, coded, text_bytes, values = row[: _Number.NULLS]
        text = None if text_bytes == _UNKNOWN else text_bytes
        known = _of_integers(row) if self.has_integer_limits else self.statistics[group]
        return ColumnChunk(offset, length, codec, decoded, bool(has_dictionary), bool(coded), text, values, known)


def joined(parts: Sequence[ColumnChunks]) -> ColumnChunks:
    """The chunks of one column in several files, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return ColumnChunks(
        np.concatenate([np.empty((0, _Number.COUNT), dtype=np.int64), *(part.numbers for part in parts)]),
        all(part.has_integer_limits for part in parts),
        lambda: [known for part in parts for known in part.statistics],
    )


def _of_file(numbers: np.ndarray, content: bytes, reader: StatisticsReader) -> ColumnChunks:
    """Limits that are no integers of 64 bits are slices of `content`."""
    if reader.width:
        return ColumnChunks(numbers, True, lambda: list(map(_of_integers, numbers.tolist())))
    return ColumnChunks(numbers, False, lambda: [_of_slices(row, content, reader) for row in numbers.tolist()])


def _of_integers(row: list[int]) -> ChunkStatistics:
    nulls = None if row[_Number.NULLS] == _UNKNOWN else row[_Number.NULLS]
    if not row[_Number.IS_KNOWN]:
        return ChunkStatistics(None, None, nulls)
    return ChunkStatistics(row[_Number.LOW], row[_Number.HIGH], nulls, bool(row[_Number.IS_EXACT]))


def _of_slices(row: list[int], content: bytes, reader: StatisticsReader) -> ChunkStatistics:
    nulls = None if row[_Number.NULLS] == _UNKNOWN else row[_Number.NULLS]
    if not row[_Number.IS_KNOWN]:
        return ChunkStatistics(None, None, nulls)
    low_at, low_length, high_at, high_length = row[_Number.LOW_AT :]
    limits = reader.limits(content[low_at : low_at + low_length], content[high_at : high_at + high_length])
    if limits is None:
        return ChunkStatistics(None, None, nulls)
    return ChunkStatistics(*limits, nulls, bool(row[_Number.IS_EXACT]))


def column_chunks(footer: bytes, descriptions: Descriptions, reading: ColumnReading) -> ColumnChunks:
    """The column's chunks. ContradictsFileError when the footer's numbers do not fit the file."""
    if isinstance(descriptions, CompiledDescriptions):
        return _checked_by_library(descriptions.library, footer, descriptions, reading)
    return _checked(descriptions[reading.leaf], reading)


def _checked_by_library(
    library: CDLL, footer: bytes, descriptions: CompiledDescriptions, reading: ColumnReading
) -> ColumnChunks:
    places, rows, known = descriptions.places[reading.leaf], reading.rows, reading.statistics
    numbers = np.empty((len(places), _Number.COUNT), dtype=np.int64)
    physical_type, is_ordered = PHYSICAL_TYPES.index(reading.physical_type), descriptions.ordered[reading.leaf]
    column = np.array(
        [reading.data_end, reading.padding, physical_type, is_ordered, known.signed, known.width, known.bits],
        dtype=np.int64,
    )
    wrong = library.pystachio_check_chunks(
        *(footer, len(footer), places.ctypes.data, len(places), rows.ctypes.data),
        *(column.ctypes.data, numbers.ctypes.data),
    )
    if wrong >= 0:
        raise ContradictsFileError(wrong, descriptions[reading.leaf][wrong])
    return _of_file(numbers, footer, known)


def _checked(described: Sequence[ChunkDescription], reading: ColumnReading) -> ColumnChunks:
    """As the library does it."""
    content = bytearray()
    rows = []
    for group, said in enumerate(described):
        row = _row(said, int(reading.rows[group]), reading, content)
        if row is None:
            raise ContradictsFileError(group, said)
        rows.append(row)
    return _of_file(np.array(rows, dtype=np.int64).reshape(-1, _Number.COUNT), bytes(content), reading.statistics)


def _row(said: ChunkDescription, rows: int, reading: ColumnReading, content: bytearray) -> list[int] | None:
    """The numbers of one chunk, whose limits go to the end of `content`; None when they do not fit the file."""
    reader = reading.statistics
    nulls = said.nulls if said.nulls is not None and 0 <= said.nulls <= said.values else _UNKNOWN
    known, low, high, slices = 0, 0, 0, [0, 0, 0, 0]
    raw = reader.said(said)
    limits = None if raw is None or reader.width < 0 else reader.limits(*raw)
    if raw is not None and limits is not None:
        known = 1
        if reader.width:
            low, high = limits
        else:
            slices = [len(content), len(raw[0]), len(content) + len(raw[0]), len(raw[1])]
            content += raw[0] + raw[1]
    statistics = [nulls, known, int(known and said.has_exact_limits), low, high, *slices]
    if not rows and not said.values:  # writers put anything into the offsets of empty chunks
        return [FIRST_DATA_BYTE, 0, said.codec, 0, 0, 0, _UNKNOWN, 0, *statistics]
    offset, has_dictionary = said.data_offset, False
    if said.dictionary_offset is not None and 0 < said.dictionary_offset < offset:
        offset, has_dictionary = said.dictionary_offset, True
    length = said.length
    if reading.padding:
        length = min(length + reading.padding, reading.data_end - offset)
    inside = FIRST_DATA_BYTE <= offset <= said.data_offset <= offset + length <= reading.data_end
    plausible = 0 <= said.decoded <= _MOST_PLAUSIBLE_RATIO * (length + 1)
    if not (inside and plausible and said.physical_type == reading.physical_type and said.values == rows):
        return None
    coded = has_dictionary and said.coded is not False
    text = _UNKNOWN if said.text_bytes is None or said.text_bytes < 0 else said.text_bytes
    return [offset, length, said.codec, said.decoded, has_dictionary, coded, text, said.values, *statistics]
