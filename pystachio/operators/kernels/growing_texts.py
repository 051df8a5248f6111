"""Distinct strings that become more: each keeps the number that it got when it came. On a CPU, in C where that is
built, else in Arrow."""

from __future__ import annotations

import ctypes
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import torch

from pystachio.operators.arrow import column_from_arrow, large_array
from pystachio.operators.column import BytesColumn, FixedColumn
from pystachio.operators.kernels import native
from pystachio.operators.kernels.hash_compiled import TextTable, free_slots
from pystachio.operators.kernels.host_memory import copied, empty
from pystachio.operators.kernels.numbering import capacity_for
from pystachio.operators.kernels.texts import encode_texts, take_texts

_FIRST_VALUES: Final = 256
_FIRST_BYTES: Final = 4096


class GrowingTexts:
    """The distinct strings among all that were added, without NULL. Not safe for several threads.

    `values` are those of so far. What `values` were before stays as it is: additions go behind it, into the same memory
    as long as that has room.
    """

    def __init__(self, type_: pa.DataType) -> None:
        self._offsets = torch.zeros(_FIRST_VALUES, dtype=torch.int64)
        self._data = empty(_FIRST_BYTES, torch.uint8)
        self._library = native.library()
        self._slots = None if self._library is None else free_slots(self._library, capacity_for(0), 1)
        self._entered = 0
        """Of the values, those that the table has: the others are entered when somebody looks for one."""
        self.values = BytesColumn(type_, self._offsets[:1], self._data[:0])

    def __len__(self) -> int:
        return len(self.values)

    def add(
        self, texts: BytesColumn, *, most_values: int, most_bytes: int, are_distinct: bool = False
    ) -> torch.Tensor | None:
        """int32 [rows]: the number of each string, of which none is NULL, from 0. None when they would then be too many
        or take too many bytes: nothing is added. Strings that `are_distinct` begin at offset 0; nobody looks whether
        the first ones are."""
        if are_distinct and not len(self):
            if len(texts) > most_values or len(texts.data) > most_bytes:
                return None
            self._offsets, self._data = copied(texts.offsets), copied(texts.data)
            self.values = BytesColumn(texts.type, self._offsets, self._data)
            return torch.arange(len(texts), dtype=torch.int32)
        numbers = self._find(texts)
        missing = torch.nonzero(numbers < 0).view(-1)
        if not len(missing):
            return numbers
        found, fresh = encode_texts(take_texts(texts, missing))
        assert isinstance(fresh.values, BytesColumn)
        before, values, nbytes = len(self), len(self) + len(fresh), len(self.values.data) + len(fresh.values.data)
        if values > most_values or nbytes > most_bytes:
            return None
        self._append(fresh.values, values, nbytes)
        numbers[missing] = found + before
        return numbers

    def _find(self, texts: BytesColumn) -> torch.Tensor:
        if self._library is not None and self._slots is not None:
            if self._entered < len(self):
                self._enter(self._library)
            return TextTable(self._library, self._slots, self.values).lookup(texts).sub_(1)
        positions = pc.index_in(large_array(texts), value_set=large_array(self.values)).fill_null(-1)
        found = column_from_arrow(positions)
        assert isinstance(found, FixedColumn)
        return found.values.to(torch.int32, copy=True)

    def _append(self, fresh: BytesColumn, values: int, nbytes: int) -> None:
        """`fresh` begins at offset 0."""
        before, held = len(self), len(self.values.data)
        self._offsets = _with_room(self._offsets, before + 1, values + 1)
        self._data = _with_room(self._data, held, nbytes)
        self._offsets[before + 1 : values + 1] = fresh.offsets[1:] + held
        self._data[held:nbytes] = fresh.data
        self.values = BytesColumn(fresh.type, self._offsets[: values + 1], self._data[:nbytes])

    def _enter(self, library: ctypes.CDLL) -> None:
        """Put the values that it has not into the table."""
        assert self._slots is not None
        first, values = self._entered, self.values
        capacity = capacity_for(len(values))
        if capacity > len(self._slots):
            larger = free_slots(library, capacity, 1)
            library.pystachio_grow_texts(self._slots.data_ptr(), len(self._slots), larger.data_ptr(), len(larger))
            self._slots = larger
        texts = values.offsets[first:].data_ptr(), values.data.data_ptr(), len(values) - first
        library.pystachio_enter_texts(*texts, first + 1, self._slots.data_ptr(), len(self._slots))
        self._entered = len(values)


def _with_room(values: torch.Tensor, used: int, wanted: int) -> torch.Tensor:
    """The same first `used` values, in other memory where there is none for `wanted`."""
    if wanted <= values.shape[0]:
        return values
    larger = torch.empty(max(wanted, 2 * values.shape[0]), dtype=values.dtype)
    larger[:used] = values[:used]
    return larger
