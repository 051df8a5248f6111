"""From fetched column chunks to columns, straight out of the transfer's buffers.

The compiled library decodes what it handles, pyarrow the rest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Hashable, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pystachio.errors import DataError, PystachioError, ResourceExhausted, Unsupported
from pystachio.operators.arrow import column_from_arrow
from pystachio.operators.column import Bounds, BytesColumn, Column, FixedColumn, normalise_type
from pystachio.operators.kernels import native
from pystachio.operators.kernels.selection import concat
from pystachio.operators.narrowing import narrow, small_decimals
from pystachio.operators.parquet.dictionary import SharedDictionary
from pystachio.operators.parquet.native import NativeDecoder, NotHandled
from pystachio.operators.table import ParquetFile

_SHORT = ("INT32", "INT64")
"""Physical types whose decimals fit 64 bits."""


class FetchedExtents:
    """The fetched parts of a file as a file-like object; a read is a slice of a buffer, nothing is copied.

    pyarrow reads each column chunk with one call. A read outside what was fetched is a DataError: only a footer that
    contradicts itself asks for it.
    """

    closed = False

    def __init__(self, path: str, size: int, extents: Sequence[tuple[int, memoryview]]) -> None:
        """`extents`: pairs of file offset and bytes, in any order."""
        self._path = path
        self._size = size
        self._extents = sorted(extents, key=lambda extent: extent[0])
        self._offsets = [offset for offset, _ in self._extents]
        self._position = 0

    def reopened(self) -> FetchedExtents:
        """The same bytes with a position of its own, for another thread."""
        return FetchedExtents(self._path, self._size, self._extents)

    def beside(self, other: FetchedExtents) -> FetchedExtents:
        """The bytes of both, which are of the same file."""
        return FetchedExtents(self._path, self._size, (*self._extents, *other._extents))

    def view(self, offset: int, length: int) -> memoryview:
        """Bytes at a place in the file."""
        return self._slice(offset, offset + length)

    def read(self, length: int = -1) -> memoryview:
        start = self._position
        end = self._size if length < 0 else min(start + length, self._size)
        view = self._slice(start, end)
        self._position = end
        return view

    def _slice(self, start: int, end: int) -> memoryview:
        index = bisect_right(self._offsets, start) - 1
        if index >= 0:
            offset, view = self._extents[index]
            if end <= offset + len(view):
                return view[start - offset : end - offset]
        raise DataError(f"the Parquet footer leads outside its column chunks: {self._path}: bytes {start} to {end}")

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        """Nothing is open; the buffers belong to whoever fetched them."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False


class RowGroupDecoder:
    """Decodes columns of some row groups of one file, one column per call; for one thread at a time.

    `coded`: the string columns to read as dictionary codes. `compiled` False: do without the compiled library.
    What comes back refers to none of the fetched buffers. `through_pyarrow` counts the columns that pyarrow decoded.
    """

    def __init__(
        self,
        file: ParquetFile,
        groups: Sequence[int],
        source: FetchedExtents,
        coded: Collection[int] = (),
        *,
        compiled: bool = True,
    ) -> None:
        self._file = file
        self._groups = list(groups)
        self._rows = sum(file.row_group_rows[group] for group in groups)
        self._source = source
        self._coded = coded
        library = native.library() if compiled else None
        self._native = None if library is None else NativeDecoder(library, file, self._groups, source)
        self.through_pyarrow = 0

    def decode(
        self,
        column: int,
        dictionary: SharedDictionary | None = None,
        *,
        bounds: Bounds | None = None,
        first_rows: int | None = None,
    ) -> Column:
        """All rows of a column of the file, or the first few.

        `bounds`: the range of the whole table's column, for which integers are narrowed. DataError names the place
        when the bytes are not what the footer says, and Unsupported does for values that no column holds.
        """
        rows = self._rows if first_rows is None else min(first_rows, self._rows)
        if self._native is not None:
            try:
                return self._native.decode(column, dictionary, bounds, rows)
            except NotHandled:
                pass
        self.through_pyarrow += 1
        chunks = self._read(column, rows)
        try:
            parts = [
                self._convert(column, chunk, dictionary, bounds, part if first_rows is None else None)
                for part, chunk in enumerate(chunks)
            ]
        except DataError as error:
            raise DataError(f"corrupt column: {self._place(column)}: {error.message}") from error
        except Unsupported as error:
            hint = "write the column as decimal(20, 0), or as double where that is exact enough"
            raise Unsupported(f"{error.construct}: {self._place(column)}", hint=hint) from error
        except (pa.ArrowException, UnicodeDecodeError, OverflowError) as error:
            raise DataError(f"corrupt column: {self._place(column)}: {error}") from error
        return concat(parts)

    @cached_property
    def _reader(self) -> Any:
        """pyarrow's, made when it is first needed."""
        leaves = [self._file.fields[column].leaf for column in self._coded if self._has_codes(column)]
        paths = [self._file.metadata.schema.column(leaf).path for leaf in leaves if not self._has_deltas(leaf)]
        try:
            return pq.ParquetFile(
                pa.PythonFile(self._source, mode="r"),
                metadata=self._file.metadata,
                read_dictionary=paths,
                pre_buffer=False,
                page_checksum_verification=True,
            ).reader
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DataError(f"cannot open the Parquet file: {self._file.path}: {error}") from error

    def _has_codes(self, column: int) -> bool:
        """Whether pyarrow is to read codes, or make them: with the library it is better at that."""
        chunks = self._file.chunks(column)
        return native.library() is None or all(chunks[group].coded for group in self._groups)

    def _has_deltas(self, leaf: int | None) -> bool:
        """Whether a page may hold its strings' lengths or prefixes as differences: pyarrow makes no codes of those."""
        chunks = (self._file.metadata.row_group(group).column(leaf) for group in self._groups)
        return any(encoding.startswith("DELTA") for chunk in chunks for encoding in chunk.encodings)

    def _read(self, column: int, rows: int) -> list[pa.Array]:
        try:
            decoded = self._decoded(self._file.fields[column].leaf, rows)
            decoded.validate()
        except PystachioError as error:
            raise DataError(f"{error.message}: {self._place(column)}") from error
        except MemoryError as error:
            raise ResourceExhausted(
                f"no memory to decode: {self._place(column)}: {error}",
                setting="memory",
                hint="write the file with smaller row groups",
            ) from error
        except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError, StopIteration) as error:
            raise DataError(f"cannot decode the column: {self._place(column)}: {error}") from error
        if len(decoded) != rows:
            raise DataError(
                f"a column has another number of values than its row group has rows: {self._place(column)}: "
                f"{len(decoded)} instead of {rows}"
            )
        expected = self._file.fields[column].type
        chunks = [_storage(chunk) for chunk in decoded.chunks] or [pa.array([], expected)]
        if any(normalise_type(chunk.type) != expected for chunk in chunks):
            raise DataError(f"a column decodes as {chunks[0].type} instead of {expected}: {self._place(column)}")
        return chunks

    def _decoded(self, leaf: int | None, rows: int) -> pa.ChunkedArray:
        if rows == self._rows:
            return self._reader.read_row_groups(self._groups, column_indices=[leaf], use_threads=False).column(0)
        batches = self._reader.iter_batches(rows, row_groups=self._groups[:1], column_indices=[leaf], use_threads=False)
        parts: list[pa.Array] = []
        while sum(map(len, parts)) < rows:  # a batch ends early where its dictionary does
            parts.append(next(batches).column(0))
        return pa.chunked_array(parts).slice(0, rows)

    def _convert(
        self,
        column: int,
        array: pa.Array,
        dictionary: SharedDictionary | None,
        bounds: Bounds | None,
        part: int | None,
    ) -> Column:
        """`part` numbers the arrays of a whole decoding: each always has the same dictionary. None: unknown."""
        if pa.types.is_dictionary(array.type):
            place = None if part is None else (self._file.version, tuple(self._groups), column, part)
            return _coded(array, dictionary, place)
        leaf = self._file.fields[column].leaf
        short = self._file.metadata.schema.column(leaf).physical_type in _SHORT
        converted = small_decimals(array) if short and pa.types.is_decimal128(array.type) else column_from_arrow(array)
        if isinstance(converted, BytesColumn) and dictionary is not None:
            coded = dictionary.encode_plain(converted)
            return converted if coded is None else coded
        return narrow(converted, bounds) if isinstance(converted, FixedColumn) else converted

    def _place(self, column: int) -> str:
        groups = self._groups[0] if len(self._groups) == 1 else self._groups
        return self._file.place(groups, column)


def _storage(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array.type, pa.BaseExtensionType) else array


def _coded(array: pa.DictionaryArray, dictionary: SharedDictionary | None, place: Hashable) -> Column:
    type_ = normalise_type(array.type)
    coded = None
    if dictionary is not None and not dictionary.is_too_varied(len(array.dictionary), len(array)):
        coded = dictionary.encode(array, type_, place)
    if coded is not None:
        return coded
    large = pa.large_string() if pa.types.is_string(type_) else pa.large_binary()
    return column_from_arrow(array.dictionary.cast(large).take(array.indices))
