"""One growing dictionary per string column of a table, so that the batches of its scans share their codes.

Each row group of a Parquet file has a dictionary of its own, or plain strings. A batch's codes are translated into the
shared dictionary, which only ever grows: codes stay valid, and batches have the same `Dictionary` object as long as
nothing was added.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from pystachio.errors import DataError
from pystachio.operators.arrow import codes_from_arrow, column_from_arrow
from pystachio.operators.column import BytesColumn, Dictionary, DictionaryColumn
from pystachio.operators.kernels import native
from pystachio.operators.kernels.growing_texts import GrowingTexts
from pystachio.operators.kernels.host_memory import as_dtype
from pystachio.operators.kernels.selection import slice_column
from pystachio.operators.kernels.strings import index
from pystachio.operators.kernels.texts import encode_texts, number_texts

MOST_VALUES: Final = 1 << 19
MOST_BYTES: Final = 32 << 20
"""A larger dictionary is hardly cheaper than the strings: looking something up in it misses all caches, and nobody
counts the memory that it takes."""

_MOST_UNCOMPILED_VALUES: Final = 1 << 16
"""Without the compiled library adding to a dictionary hashes all of it."""

_FEW_ROWS: Final = 1 << 14
"""Strings of so few rows are made codes whatever they are."""

_GLANCE: Final = 1 << 13
_NEARLY_ALL: Final = 0.99
_SAMPLE: Final = 1 << 17
_MANY: Final = 0.75
"""A column is not worth codes if so large a share of its first rows has values of its own: of the few first, or of as
many as tell a hundred thousand values from a million."""

_MOST_KEPT_CODES: Final = 1 << 20
"""Codes in the translations that are kept for the next scan: a few megabytes."""

_MOST_DERIVED: Final = 64
"""Derived values (results of predicates on the dictionary) kept before a scan starts from a clean object."""


class Translation(NamedTuple):
    """The shared codes of other codes, [values], in the narrowest integer dtype; `is_identity`: they are equal."""

    codes: torch.Tensor
    is_identity: bool


class SharedDictionary:
    """The codes of one column, shared by all scans of a table. Safe for several threads.

    `overflowed` says that the column has too many values: its scans put out plain strings from then on.
    """

    def __init__(self, *, most_values: int = MOST_VALUES) -> None:
        self._lock = threading.Lock()
        self._most_values = most_values
        self._texts: GrowingTexts | None = None
        self._current: Dictionary | None = None
        self._translations: dict[Hashable, Translation] = {}
        self._kept_codes = 0
        self.overflowed = False

    def encode(self, array: pa.DictionaryArray, type_: pa.DataType, place: Hashable = None) -> DictionaryColumn | None:
        """The array over the shared dictionary, after adding what is new in it; None when that would be too much.

        `place` says where the array's dictionary comes from, if it is always the same there: its translation is kept.
        DataError when a code is outside the array's own dictionary (a corrupt file).
        """
        if array.dictionary.null_count:
            raise DataError("a dictionary page contains NULL")
        values = column_from_arrow(array.dictionary)
        assert isinstance(values, BytesColumn)
        translated = self.translate(values, place)
        if translated is None:
            return None
        translation, dictionary = translated
        codes, validity = codes_from_arrow(array.indices, len(translation.codes))
        return over(dictionary, translation, DictionaryColumn(type_, codes, Dictionary(values), validity))

    def encode_plain(self, column: BytesColumn) -> DictionaryColumn | None:
        """The strings over the shared dictionary, after adding what is new; None when that is too much. The first ones
        say whether the column is worth it."""
        if self.overflowed or native.library() is None or (self._current is None and self._is_varied(column)):
            return None
        numbers, own = encode_texts(column)
        assert isinstance(own.values, BytesColumn)
        translated = self.translate(own.values, None)
        if translated is None:
            return None
        translation, dictionary = translated
        return over(dictionary, translation, DictionaryColumn(column.type, numbers, own, column.validity))

    def is_too_varied(self, values: int, rows: int) -> bool:
        """Whether so many values in the first rows that anybody asks about say that codes are not worth it."""
        with self._lock:
            if self._current is None and rows > _FEW_ROWS and values > _MANY * rows:
                self.overflowed = True
            return self.overflowed

    def _is_varied(self, column: BytesColumn) -> bool:
        if len(column) <= _FEW_ROWS:
            return False
        for rows, share in ((_GLANCE, _NEARLY_ALL), (min(len(column), _SAMPLE), _MANY)):
            sample = slice_column(column, 0, rows)
            assert isinstance(sample, BytesColumn)
            if number_texts(sample)[1] > share * rows:
                with self._lock:
                    self.overflowed = self.overflowed or self._current is None
                return self.overflowed
        return False

    def begin_scan(self) -> None:
        """Forget what earlier scans derived from the dictionary, when that is a lot: long-lived tables stay small."""
        with self._lock:
            if self._current is not None and len(self._current.derived) > _MOST_DERIVED:
                self._current = self._snapshot()

    @property
    def current(self) -> Dictionary | None:
        """The present dictionary: all values so far."""
        with self._lock:
            return self._current

    def renewed(self, column: DictionaryColumn) -> DictionaryColumn:
        """A column of an earlier scan over the present dictionary, in which its codes mean the same."""
        with self._lock:
            current = self._current
        if current is None or current is column.dictionary:
            return column
        return DictionaryColumn(column.type, column.codes, current, column.validity)

    def kept(self, place: Hashable, length: int) -> tuple[Translation, Dictionary] | None:
        """What `translate` answered for the dictionary of so many values at this place, if that is still known."""
        with self._lock:
            return None if self.overflowed else self._kept(place, length)

    def translate(
        self, values: BytesColumn, place: Hashable, *, are_distinct: bool = False
    ) -> tuple[Translation, Dictionary] | None:
        """For each of the values (none is NULL) its shared code; see `encode`. Values that `are_distinct` begin at
        offset 0."""
        with self._lock:
            if self.overflowed:
                return None
            kept = self._kept(place, len(values))
            if kept is not None:
                return kept
            if self._texts is None:
                self._texts = GrowingTexts(values.type)
            before = len(self._texts)
            codes = self._texts.add(values, most_values=self._limit, most_bytes=MOST_BYTES, are_distinct=are_distinct)
            if codes is None:
                self.overflowed = True
                return None
            if self._current is None or len(self._texts) > before:
                self._current = self._snapshot()
            narrow = as_dtype(codes, _code_dtype(len(self._current)))
            translation = Translation(narrow, np.array_equal(codes.numpy(), np.arange(len(codes))))
            if place is not None and self._kept_codes + len(codes) <= _MOST_KEPT_CODES:
                self._translations[place] = translation
                self._kept_codes += len(codes)
            return translation, self._current

    @property
    def _limit(self) -> int:
        return self._most_values if native.library() is not None else min(self._most_values, _MOST_UNCOMPILED_VALUES)

    def _snapshot(self) -> Dictionary:
        assert self._texts is not None
        return Dictionary(self._texts.values, family=self._texts)

    def _kept(self, place: Hashable, length: int) -> tuple[Translation, Dictionary] | None:
        kept = self._translations.get(place)
        if kept is None or len(kept.codes) != length or self._current is None:
            return None
        return kept, self._current


def over(dictionary: Dictionary, translation: Translation, column: DictionaryColumn) -> DictionaryColumn:
    """The column's rows over another dictionary, in which its values have the codes of the translation."""
    if len(translation.codes) == 0:
        codes = torch.zeros(len(column), dtype=torch.int8)
    elif translation.is_identity and translation.codes.dtype == column.codes.dtype:
        codes = column.codes
    else:
        codes = translation.codes.index_select(0, index(column.codes))
    return DictionaryColumn(column.type, codes, dictionary, column.validity)


def _code_dtype(size: int) -> torch.dtype:
    if size <= 1 << 7:
        return torch.int8
    return torch.int16 if size <= 1 << 15 else torch.int32
