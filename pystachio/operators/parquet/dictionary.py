"""One growing dictionary per string column of a table, so that the batches of its scans share their codes.

Each row group of a Parquet file has a dictionary of its own. A batch's codes are translated into the shared
dictionary, which only ever grows: codes stay valid, and batches have the same `Dictionary` object as long as nothing
was added.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from pystachio.errors import DataError
from pystachio.operators.arrow import codes_from_arrow, dictionary_from_arrow, dictionary_to_arrow
from pystachio.operators.column import Dictionary, DictionaryColumn

MOST_VALUES = 1 << 16
"""A larger dictionary is no cheaper than the strings: adding to it hashes all of it once per row group."""

_MOST_KEPT_CODES = 1 << 20
"""Codes in the translations that are kept for the next scan: a few megabytes."""

_MOST_DERIVED = 64
"""Derived values (results of predicates on the dictionary) kept before a scan starts from a clean object."""


class SharedDictionary:
    """The codes of one column, shared by all scans of a table. Safe for several threads.

    `overflowed` says that the column has too many values: its scans put out plain strings from then on.
    """

    def __init__(self, *, most_values: int = MOST_VALUES) -> None:
        self._lock = threading.Lock()
        self._most_values = most_values
        self._current: Dictionary | None = None
        self._translations: dict[Hashable, torch.Tensor] = {}
        self._kept_codes = 0
        self.overflowed = False

    def encode(self, array: pa.DictionaryArray, type_: pa.DataType, place: Hashable = None) -> DictionaryColumn | None:
        """The array over the shared dictionary, after adding what is new in it; None when that would be too much.

        `place` says where the array's dictionary comes from, if it is always the same there: its translation is kept.
        DataError when a code is outside the array's own dictionary (a corrupt file).
        """
        translated = self.translate(array.dictionary, place)
        if translated is None:
            return None
        translation, dictionary = translated
        codes, validity = codes_from_arrow(array.indices, len(translation))
        if len(translation) == 0:
            return DictionaryColumn(type_, torch.zeros(len(codes), dtype=torch.int8), dictionary, validity)
        return DictionaryColumn(type_, translation.index_select(0, codes), dictionary, validity)

    def begin_scan(self) -> None:
        """Forget what earlier scans derived from the dictionary, when that is a lot: long-lived tables stay small."""
        with self._lock:
            if self._current is not None and len(self._current.derived) > _MOST_DERIVED:
                self._current = Dictionary(self._current.values)

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

    def kept(self, place: Hashable, length: int) -> tuple[torch.Tensor, Dictionary] | None:
        """What `translate` answered for the dictionary of so many values at this place, if that is still known."""
        with self._lock:
            return None if self.overflowed else self._kept(place, length)

    def translate(self, values: pa.Array, place: Hashable) -> tuple[torch.Tensor, Dictionary] | None:
        """For each of the values its shared code, in the narrowest integer dtype; see `encode`."""
        if values.null_count:
            raise DataError("a dictionary page contains NULL")
        with self._lock:
            if self.overflowed:
                return None
            kept = self._kept(place, len(values))
            if kept is not None:
                return kept
            codes = self._codes(values)
            if codes is None:
                return None
            dictionary = self._current
            assert dictionary is not None
            translation = torch.from_numpy(codes.astype(_code_dtype(len(dictionary))))
            if place is not None and self._kept_codes + len(translation) <= _MOST_KEPT_CODES:
                self._translations[place] = translation
                self._kept_codes += len(translation)
        return translation, dictionary

    def _codes(self, values: pa.Array) -> np.ndarray[Any, np.dtype[np.integer[Any]]] | None:
        """Those of the values, after adding what is new; None when that would be too much."""
        if self._current is None:
            grown = pc.unique(values)
            if not self._adopt(grown):
                return None
            if len(grown) == len(values):
                return np.arange(len(values))
        else:
            grown = dictionary_to_arrow(self._current)
            codes = pc.index_in(values, value_set=grown)
            if not codes.null_count:
                return _numbers(codes)
            grown = pa.concat_arrays([grown, pc.unique(values.filter(pc.is_null(codes)))])
            if not self._adopt(grown):
                return None
        return _numbers(pc.index_in(values, value_set=grown))

    def _adopt(self, values: pa.Array) -> bool:
        """Take them as the dictionary from here on; False when they are too many, and nobody shares codes any more."""
        if len(values) > self._most_values:
            self.overflowed = True
            return False
        self._current = dictionary_from_arrow(values)
        return True

    def _kept(self, place: Hashable, length: int) -> tuple[torch.Tensor, Dictionary] | None:
        kept = self._translations.get(place)
        if kept is None or len(kept) != length or self._current is None:
            return None
        return kept, self._current


def _numbers(codes: pa.Array) -> np.ndarray[Any, np.dtype[np.integer[Any]]]:
    numbers: np.ndarray[Any, np.dtype[np.integer[Any]]] = codes.to_numpy(zero_copy_only=False)
    return numbers


def _code_dtype(size: int) -> type[np.signedinteger[Any]]:
    if size <= 1 << 7:
        return np.int8
    return np.int16 if size <= 1 << 15 else np.int32
