"""Rows against one row of an order: which stand before it, or tie with it. Only host columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from pystachio.operators.arrow import literal_at
from pystachio.operators.column import (
    BytesColumn,
    Column,
    Dictionary,
    DictionaryColumn,
    FixedColumn,
    WideDecimalColumn,
)
from pystachio.operators.kernels.ordering import Direction, are_ranks_due, ordered_bits, ranks, values_by_rank
from pystachio.operators.kernels.selection import plain, take
from pystachio.operators.kernels.strings import arrow_view, index

Masks = tuple[np.ndarray, np.ndarray]
"""bool [rows]: who stands before the threshold, and who ties with it."""


@dataclass(frozen=True, slots=True, eq=False)
class KeyThreshold:
    """One key's `value` in the encoding of `expressions.Literal` (text as its bytes); None is NULL."""

    value: Any
    direction: Direction

    @staticmethod
    def of(column: Column, row: int, direction: Direction) -> KeyThreshold:
        """The value of a plain column's row."""
        if isinstance(column, BytesColumn) and (column.validity is None or bool(column.validity[row])):
            first, last = int(column.offsets[row]), int(column.offsets[row + 1])
            return KeyThreshold(column.data[first:last].numpy().tobytes(), direction)
        return KeyThreshold(literal_at(column, row).value, direction)

    def masks(self, column: Column) -> Masks:
        """Each row of the column against the threshold."""
        valid = None if column.validity is None else column.validity.numpy()
        if self.value is None:
            nulls = np.zeros(len(column), np.bool_) if valid is None else ~valid
            return (np.zeros(len(column), np.bool_) if self.direction.nulls_first else ~nulls), nulls
        before, ties = self._of_values(column)
        if valid is None:
            return before, ties
        return (before | ~valid if self.direction.nulls_first else before & valid), ties & valid

    def masks_of_values(self, dictionary: Dictionary) -> Masks:
        """Each value of the dictionary against the threshold."""
        is_text = self.value is not None and isinstance(dictionary.values, BytesColumn)
        if is_text and len(dictionary) and are_ranks_due(dictionary):
            return self._of_places(dictionary, ranks(dictionary, torch.device("cpu")).numpy())
        return self.masks(dictionary.values)

    def is_before(self, low: Any, high: Any, nulls: int | None, rows: int) -> bool:
        """Whether all of `rows` rows stand behind it, by their inclusive limits (None: unknown) and number of NULLs."""
        if self.value is None:
            return self.direction.nulls_first and nulls == 0
        if self.direction.nulls_first and nulls != 0:
            return False
        if nulls == rows:
            return True
        if low is None or (isinstance(low, bytes) is not isinstance(self.value, bytes)):
            return False
        if isinstance(self.value, float) and (math.isnan(self.value) or self.direction.descending):
            # Statistics leave out NaN, which is above everything.
            return False
        return bool(high < self.value if self.direction.descending else low > self.value)

    def _of_values(self, column: Column) -> Masks:
        """What stands under NULLs is arbitrary."""
        if isinstance(column, DictionaryColumn) and isinstance(column.dictionary.values, BytesColumn):
            return self._of_codes(column)
        column = plain(column)
        match column:
            case BytesColumn():
                return self._of_texts(column)
            case WideDecimalColumn(high=high, low=low):
                return self._of_wide(high.numpy(), low.numpy().view(np.uint64))
            case FixedColumn(values=values) if values.dtype.is_floating_point:
                return self._of_floats(values.numpy())
            case _:
                numbers = column.values.numpy()
                before = numbers > self.value if self.direction.descending else numbers < self.value
                return before, numbers == self.value

    def _of_floats(self, values: np.ndarray) -> Masks:
        """NaN is above everything and ties with NaN."""
        strange = np.isnan(values)
        if math.isnan(self.value):
            return (np.zeros(len(values), np.bool_) if self.direction.descending else ~strange), strange
        if self.direction.descending:
            return (values > self.value) | strange, values == self.value
        return values < self.value, values == self.value

    def _of_wide(self, high: np.ndarray, low: np.ndarray) -> Masks:
        wanted_high, wanted_low = self.value >> 64, np.uint64(self.value & (2**64 - 1))
        level = high == wanted_high
        if self.direction.descending:
            return (high > wanted_high) | (level & (low > wanted_low)), level & (low == wanted_low)
        return (high < wanted_high) | (level & (low < wanted_low)), level & (low == wanted_low)

    def _of_texts(self, column: BytesColumn) -> Masks:
        # Compared as bytes: so are the keys, and what stands under NULLs need be no text.
        texts = arrow_view(BytesColumn(pa.binary(), column.places, column.data))
        limit = pa.scalar(self.value, texts.type)
        compare = pc.greater if self.direction.descending else pc.less
        return _numpy(compare(texts, limit)), _numpy(pc.equal(texts, limit))

    def _of_codes(self, column: DictionaryColumn) -> Masks:
        dictionary = column.dictionary
        if len(dictionary) == 0:
            return np.zeros(len(column), np.bool_), np.zeros(len(column), np.bool_)
        if len(column) >= len(dictionary) and not are_ranks_due(dictionary):
            codes = column.codes.numpy()
            before, ties = self.masks_of_values(dictionary)
            return before[codes], ties[codes]
        places = ranks(dictionary, torch.device("cpu")).index_select(0, index(column.codes)).numpy()
        return self._of_places(dictionary, places)

    def _of_places(self, dictionary: Dictionary, places: np.ndarray) -> Masks:
        """`places` are those of values among the ones of a dictionary of texts."""
        rank, is_there = _rank_of(dictionary, self.value)
        ties = places == rank if is_there else np.zeros(len(places), np.bool_)
        if self.direction.descending:
            return (places > rank if is_there else places >= rank), ties
        return places < rank, ties


@dataclass(frozen=True, slots=True)
class Threshold:
    """A row by its `keys`, and by its `number` in the order that ties stand in."""

    keys: tuple[KeyThreshold, ...]
    number: int

    def select(self, columns: Sequence[Column], first: int) -> torch.Tensor | None:
        """int64 positions, ascending, of the rows that stand before the threshold; None: all of them.

        `columns` are the keys of rows numbered from `first` on. Ties with it count when their number may be lower.
        """
        before, ties = self.keys[0].masks(columns[0])
        if len(self.keys) > 1:
            undecided = np.flatnonzero(ties)
            for key, column in zip(self.keys[1:], columns[1:], strict=True):
                if not len(undecided):
                    break
                earlier, ties = key.masks(take(column, torch.from_numpy(undecided)))
                before[undecided[earlier]] = True
                undecided = undecided[ties]
            if first <= self.number:
                before[undecided] = True
        elif first <= self.number:
            before |= ties
        passing = np.flatnonzero(before)
        return None if len(passing) == len(before) else torch.from_numpy(passing)


def may_be_first(column: Column, count: int, direction: Direction) -> torch.Tensor | None:
    """int64 positions, ascending, of the rows that may be among the first `count` by this key; None where that is all
    or is not cheap to say."""
    if column.validity is not None or len(column) <= count:
        return None
    numbers = _numbers(column)
    if numbers is None:
        return None
    place = len(numbers) - count if direction.descending else count - 1
    limit = np.partition(numbers, place)[place]
    found = np.flatnonzero(numbers >= limit if direction.descending else numbers <= limit)
    return None if len(found) == len(numbers) else torch.from_numpy(found)


def _numbers(column: Column) -> np.ndarray | None:
    """Numbers that order as the values do."""
    found: torch.Tensor | None = None
    match column:
        case FixedColumn(values=values):
            found = ordered_bits(values) if values.dtype.is_floating_point else values
        case DictionaryColumn(dictionary=Dictionary(values=BytesColumn()) as known) if len(known) and are_ranks_due(
            known
        ):
            found = ranks(column.dictionary, column.codes.device).index_select(0, index(column.codes))
        case _:
            pass
    return None if found is None else found.numpy()


def _rank_of(dictionary: Dictionary, text: bytes) -> tuple[int, bool]:
    """How many values of a dictionary of texts are less, and whether `text` is the next one."""
    by_rank = dictionary.derived.get("values by rank")
    if by_rank is None:
        by_rank = dictionary.derived.setdefault("values by rank", values_by_rank(dictionary, torch.device("cpu")))
    codes = cast(torch.Tensor, by_rank).numpy()
    values = cast(BytesColumn, dictionary.values)
    offsets, data = values.offsets.numpy(), values.data.numpy()

    def at(rank: int) -> bytes:
        code = codes[rank]
        found: bytes = data[offsets[code] : offsets[code + 1]].tobytes()
        return found

    low, high = 0, len(codes)
    while low < high:
        middle = (low + high) // 2
        if at(middle) < text:
            low = middle + 1
        else:
            high = middle
    return low, low < len(codes) and at(low) == text


def _numpy(mask: pa.BooleanArray) -> np.ndarray:
    array: np.ndarray = mask.to_numpy(zero_copy_only=False)
    return array
