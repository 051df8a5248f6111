"""The hash tables of native/hash.c, over int64 keys and over strings. Memory is allocated here, loops run there."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from pystachio.operators.column import BytesColumn
from pystachio.operators.kernels.host_memory import copied, empty
from pystachio.operators.kernels.numbering import capacity_for, expected_groups

MOST_ROWS: Final = 2**31 - 1
MOST_WORDS: Final = 16
"""As in native/groups.h."""

_FIRST_CAPACITY: Final = 1 << 13
_LARGEST_STEP: Final = 8
"""Tables grow by no more at a time: the first keys say little about the others."""


@dataclass(frozen=True, slots=True, eq=False)
class KeyTable:
    """`slots` (int64 [capacity, 2]): keys and their numbers from 1, 0 where a slot is free."""

    library: ctypes.CDLL
    slots: torch.Tensor

    @property
    def nbytes(self) -> int:
        return int(self.slots.nbytes)

    def lookup(self, keys: torch.Tensor) -> torch.Tensor:
        """See `numbering.HashTable`."""
        keys, found = keys.contiguous(), empty(keys.shape[0], torch.int32)
        self.library.pystachio_find_keys(
            keys.data_ptr(), len(keys), self.slots.data_ptr(), len(self.slots), found.data_ptr()
        )
        return found


@dataclass(frozen=True, slots=True, eq=False)
class KeyNumbering:
    """See `numbering.Numbering`. Groups are numbered as they appear."""

    library: ctypes.CDLL
    slots: torch.Tensor
    numbers: torch.Tensor
    first: torch.Tensor

    def table(self) -> KeyTable:
        return KeyTable(self.library, self.slots)


@dataclass(frozen=True, slots=True, eq=False)
class TextTable:
    """`slots` (int64 [capacity]): the upper half of a string's hash and its number from 1; number n is row n - 1 of
    `texts`."""

    library: ctypes.CDLL
    slots: torch.Tensor
    texts: BytesColumn

    @property
    def nbytes(self) -> int:
        return int(self.slots.nbytes)

    def lookup(self, column: BytesColumn) -> torch.Tensor:
        """int32 [rows]: the number of each string, 0 where the table does not have it or it is NULL."""
        found = empty(len(column), torch.int32)
        offsets, data, validity = _contiguous(column)
        own = self.texts.offsets
        self.library.pystachio_find_texts(
            offsets.data_ptr(),
            data.data_ptr(),
            None if validity is None else validity.data_ptr(),
            len(column),
            self.slots.data_ptr(),
            len(self.slots),
            own.data_ptr(),
            self.texts.data.data_ptr(),
            found.data_ptr(),
        )
        return found


@dataclass(frozen=True, slots=True, eq=False)
class TextNumbering:
    """`numbers` (int32 [rows], 0 for NULL) and `first` (int32 [groups]) are as for keys; `slots` those of a table."""

    slots: torch.Tensor
    numbers: torch.Tensor
    first: torch.Tensor


def number_keys(library: ctypes.CDLL, keys: torch.Tensor) -> KeyNumbering:
    """The distinct ones of `keys` (int64 [rows], at most MOST_ROWS)."""
    keys = keys.contiguous()
    numbers, first = (empty(keys.shape[0], torch.int32) for _ in range(2))

    def number(row: int, slots: torch.Tensor, groups: ctypes.c_int64) -> int:
        return int(
            library.pystachio_number_keys(
                keys.data_ptr(),
                row,
                len(keys),
                slots.data_ptr(),
                len(slots),
                numbers.data_ptr(),
                first.data_ptr(),
                ctypes.byref(groups),
            )
        )

    slots, groups = _number(library, len(keys), 2, number, library.pystachio_grow_keys)
    return KeyNumbering(library, slots, numbers, copied(first[:groups]))


def number_words(
    library: ctypes.CDLL, words: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `portable.number_words`. At most MOST_WORDS of MOST_ROWS."""
    words = [word.contiguous() for word in words]
    rows = words[0].shape[0]
    pointers = (ctypes.c_void_p * len(words))(*[word.data_ptr() for word in words])
    numbers, first = (empty(rows, torch.int32) for _ in range(2))
    counts, known = empty(rows, torch.int64), empty(rows * len(words), torch.int64)

    def number(row: int, slots: torch.Tensor, groups: ctypes.c_int64) -> int:
        return int(
            library.pystachio_number_words(
                pointers,
                len(words),
                row,
                rows,
                slots.data_ptr(),
                len(slots),
                known.data_ptr(),
                numbers.data_ptr(),
                first.data_ptr(),
                counts.data_ptr(),
                ctypes.byref(groups),
            )
        )

    _, groups = _number(library, rows, 1, number, library.pystachio_grow_texts)
    return numbers, copied(first[:groups]), copied(counts[:groups])


def number_runs(
    library: ctypes.CDLL, words: Sequence[torch.Tensor], edges: np.ndarray, *, counted: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """As `number_words`, of one word or more, for rows in runs that share no key: run r of piece p has the rows from
    edges[p, r] to edges[p, r + 1] (int64 [pieces, runs + 1]). Numbers ascend from run to run. Where no two rows are
    equal, row i has number i. How many rows each has is None for one word unless it is to be `counted`."""
    words = [word.contiguous() for word in words]
    rows, width = words[0].shape[0], len(words)
    edges = np.ascontiguousarray(edges)
    most = capacity_for(int(np.diff(edges).sum(0).max()))
    numbers, first = (empty(rows, torch.int32) for _ in range(2))
    counts = empty(rows, torch.int64) if counted or width > 1 else None
    of_runs = edges.ctypes.data, edges.shape[0], edges.shape[1] - 1
    to = numbers.data_ptr(), first.data_ptr(), None if counts is None else counts.data_ptr()
    if width == 1:
        slots = empty(2 * most, torch.int64)
        groups = int(library.pystachio_number_key_runs(words[0].data_ptr(), *of_runs, slots.data_ptr(), most, *to))
    else:
        slots, known = empty(most, torch.int64), empty(rows * width, torch.int64)
        pointers = (ctypes.c_void_p * width)(*[word.data_ptr() for word in words])
        of = slots.data_ptr(), most, known.data_ptr()
        groups = int(library.pystachio_number_word_runs(pointers, width, *of_runs, *of, *to))
    counts = None if counts is None else copied(counts[:groups])
    if groups == rows:
        numbers = torch.arange(rows, dtype=torch.int32)
        return numbers, numbers, counts
    return numbers, copied(first[:groups]), counts


def number_texts(library: ctypes.CDLL, column: BytesColumn) -> TextNumbering:
    """The distinct values of the strings (at most MOST_ROWS rows), NULLs left out."""
    offsets, data, validity = _contiguous(column)
    rows = len(column)
    numbers, first = (empty(rows, torch.int32) for _ in range(2))
    places = torch.empty(rows, 2, dtype=torch.int64)
    library.pystachio_use_large_pages(places.data_ptr(), places.nbytes)

    def number(row: int, slots: torch.Tensor, groups: ctypes.c_int64) -> int:
        return int(
            library.pystachio_number_texts(
                offsets.data_ptr(),
                data.data_ptr(),
                None if validity is None else validity.data_ptr(),
                row,
                rows,
                slots.data_ptr(),
                len(slots),
                places.data_ptr(),
                numbers.data_ptr(),
                first.data_ptr(),
                ctypes.byref(groups),
            )
        )

    slots, groups = _number(library, rows, 1, number, library.pystachio_grow_texts)
    return TextNumbering(slots.view(-1), numbers, copied(first[:groups]))


def _number(
    library: ctypes.CDLL,
    rows: int,
    width: int,
    number: Callable[[int, torch.Tensor, ctypes.c_int64], int],
    grow: Callable[[int, int, int, int], None],
) -> tuple[torch.Tensor, int]:
    """Slots (int64 [capacity, width]) after numbering all rows, and how many groups there are."""
    largest = capacity_for(rows)
    slots, groups = free_slots(library, min(_FIRST_CAPACITY, largest), width), ctypes.c_int64(0)
    row = number(0, slots, groups)
    while row < rows:
        wanted = capacity_for(expected_groups(groups.value, row, rows))
        capacity = min(max(wanted, 2 * len(slots)), _LARGEST_STEP * len(slots), largest)
        larger = free_slots(library, capacity, width)
        grow(slots.data_ptr(), len(slots), larger.data_ptr(), len(larger))
        slots = larger
        row = number(row, slots, groups)
    return slots, groups.value


def free_slots(library: ctypes.CDLL, capacity: int, width: int) -> torch.Tensor:
    """int64 [capacity, width] of a table that has nothing."""
    slots = torch.empty(capacity, width, dtype=torch.int64)
    library.pystachio_clear(slots.data_ptr(), slots.nbytes)
    return slots


def _contiguous(column: BytesColumn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    validity = None if column.validity is None else column.validity.contiguous()
    return column.offsets.contiguous(), column.data.contiguous(), validity
