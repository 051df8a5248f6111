"""Inner loops in numpy and C, on views of CPU tensors: 2 to 10 times faster than torch's, with less dispatch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch

from pystachio.operators.column import Bounds
from pystachio.operators.kernels import hash_compiled, native, portable
from pystachio.operators.kernels.hash_compiled import MOST_ROWS, MOST_WORDS
from pystachio.operators.kernels.host_memory import NUMPY, copied, empty, zeros
from pystachio.operators.kernels.numbering import Numbering

Scalar = bool | int | float

_SIGNED: Final = (torch.bool, torch.int8, torch.int16, torch.int32, torch.int64)

_COMPARE: Final[dict[str, Callable[..., Any]]] = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "lt": np.less,
    "lte": np.less_equal,
    "gt": np.greater,
    "gte": np.greater_equal,
}

_ARITHMETIC: Final[dict[str, Callable[..., Any]]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
}


def compare(function: str, left: torch.Tensor, right: torch.Tensor | Scalar) -> torch.Tensor:
    """`left function right` per row as bool, in IEEE order for floats. A scalar must fit the dtype of `left`."""
    other = right.numpy() if isinstance(right, torch.Tensor) else right
    return torch.from_numpy(_COMPARE[function](left.numpy(), other))


def arithmetic(
    function: str, left: torch.Tensor | Scalar, right: torch.Tensor | Scalar, dtype: torch.dtype
) -> torch.Tensor:
    """add, subtract or multiply in `dtype`, of integers, wrapping on overflow. At least one operand is a tensor."""
    kind = NUMPY[dtype]
    first = left.numpy() if isinstance(left, torch.Tensor) else kind(left)
    second = right.numpy() if isinstance(right, torch.Tensor) else kind(right)
    return torch.from_numpy(_ARITHMETIC[function](first, second, dtype=kind))


def indices_of_true(mask: torch.Tensor) -> torch.Tensor:
    """Positions of the true rows in order, int64."""
    return torch.from_numpy(np.flatnonzero(mask.numpy()))


def compact(mask: torch.Tensor, columns: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The rows of each column (of any dtype, [rows]) where `mask` (bool [rows]) is true, in order."""
    rows = indices_of_true(mask)
    if rows.shape[0] == mask.shape[0]:
        return tuple(columns)
    return tuple(column.index_select(0, rows) for column in columns)


def minimum_and_maximum(values: torch.Tensor) -> Bounds:
    """Of a non-empty integer tensor."""
    library = native.library(len(values))
    if library is None:
        return portable.minimum_and_maximum(values)
    assert len(values), "no values have no range"
    assert values.dtype in _SIGNED
    values, ends = values.contiguous(), (ctypes.c_int64 * 2)()
    status = library.pystachio_value_range(values.data_ptr(), values.itemsize, len(values), ends)
    assert status == native.Status.OK, "widths of integers"
    return ends[0], ends[1]


def all_true(mask: torch.Tensor) -> bool:
    return bool(mask.numpy().all())


def any_true(mask: torch.Tensor) -> bool:
    return bool(mask.numpy().any())


def offsets_within(values: torch.Tensor, low: int, span: int) -> torch.Tensor:
    """`values - low` where that is in [0, span), else `span`."""
    view = values.numpy()
    # Wrapping subtraction read as unsigned: everything outside the range is above it, on both sides.
    distance = np.subtract(view, view.dtype.type(low)).view(np.uint32 if values.dtype == torch.int32 else np.uint64)
    np.minimum(distance, distance.dtype.type(span), out=distance)
    return torch.from_numpy(distance.view(view.dtype))


def lookup_within(
    table: torch.Tensor, values: torch.Tensor, low: int, kept: torch.Tensor | None = None
) -> torch.Tensor:
    """`table[value - low]` where that is before the last entry of `table` ([span + 1], span > 0) and the row is `kept`
    (None: all), else that entry. `values` are integers of any width; `low` and `low + span - 1` fit int64."""
    span = table.shape[0] - 1
    places = offsets_within(values.to(torch.int64), low, span)
    return table.index_select(0, places if kept is None else torch.where(kept, places, span))


def group_sums(values: torch.Tensor, codes: torch.Tensor, slots: int, kept: torch.Tensor | None = None) -> torch.Tensor:
    """int64 [slots]: the sums, wrapping, of the integer `values` by their integer `codes` in [0, slots), of the rows
    that are `kept` (None: all)."""
    if kept is not None:
        values = torch.where(kept, values, 0)
    library = native.library(len(codes))
    if library is None:
        return portable.group_sums(values, codes, slots)
    values, codes, sums = values.contiguous(), codes.contiguous(), zeros(slots, torch.int64)
    status = library.pystachio_group_sums(
        values.data_ptr(), values.itemsize, codes.data_ptr(), codes.itemsize, len(codes), slots, sums.data_ptr()
    )
    assert status == native.Status.OK, "widths of integers"
    return sums


def group_rows(codes: torch.Tensor, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 [slots], twice: how many rows have the code, and 1 + the position of one of them (0: none)."""
    library = native.library(len(codes))
    if library is None:
        return portable.group_rows(codes, slots)
    codes, counts, last = codes.contiguous(), *torch.zeros(2, slots, dtype=torch.int64)
    status = library.pystachio_group_rows(
        codes.data_ptr(), codes.itemsize, len(codes), slots, counts.data_ptr(), last.data_ptr()
    )
    assert status == native.Status.OK, "widths of integers"
    return counts, last


def group_extremes(values: torch.Tensor, codes: torch.Tensor, start: torch.Tensor, *, largest: bool) -> torch.Tensor:
    """[slots]: the largest or smallest of `start` [slots] and the integer `values` of that dtype with the slot's code.
    `start` is given up."""
    library = native.library(len(codes))
    if library is None:
        return portable.group_extremes(values, codes, start, largest=largest)
    assert values.dtype == start.dtype
    values, codes = values.contiguous(), codes.contiguous()
    status = library.pystachio_group_extremes(
        values.data_ptr(), values.itemsize, codes.data_ptr(), codes.itemsize, len(codes), largest, start.data_ptr()
    )
    assert status == native.Status.OK, "widths of integers"
    return start


def number_words(words: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`numbers` and `first` as in `numbering.Numbering` of rows that are equal where all `words` (int64 [rows] each, at
    least two) are, and how many rows each has (int64 [groups])."""
    library = native.library()
    if library is None or words[0].shape[0] > MOST_ROWS or len(words) > MOST_WORDS:
        return portable.number_words(words)
    return hash_compiled.number_words(library, words)


def number_keys(keys: torch.Tensor) -> Numbering:
    """The distinct ones of `keys` (int64 [rows])."""
    library = native.library()
    if library is None or keys.shape[0] > MOST_ROWS:
        return portable.number_keys(keys)
    return hash_compiled.number_keys(library, keys)


def number_codes(codes: torch.Tensor, span: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[span + 1] 1 + the number of each code of `codes` (int32 or int64 [rows], in [0, span)), 0 for none; the number
    of each row; the position of one row of each number."""
    rows = codes.shape[0]
    library = native.library(rows)
    if library is None or rows > MOST_ROWS:
        return portable.number_codes(codes, span)
    codes = codes.contiguous()
    occupants = zeros(span + 1, torch.int32)
    numbers, first = (empty(rows, torch.int32) for _ in range(2))
    groups = library.pystachio_number_codes(
        codes.data_ptr(), codes.itemsize, rows, span, occupants.data_ptr(), numbers.data_ptr(), first.data_ptr()
    )
    assert groups >= 0, "codes in their span"
    return occupants, numbers, first if groups == rows else copied(first[:groups])


def ranges(groups: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rows by `groups` (int32 or int64 [rows], in [0, count)): where those of each begin ([count + 1]), and their
    positions in that order (None: they stand so)."""
    rows = groups.shape[0]
    library = native.library(rows + count)
    view = groups.numpy()
    if library is None or rows > MOST_ROWS:
        return portable.ranges(groups, count)
    groups, offsets = groups.contiguous(), empty(count + 1, torch.int32)
    following, order = empty(count, torch.int32), empty(rows, torch.int32)
    status = library.pystachio_ranges(
        groups.data_ptr(),
        groups.itemsize,
        rows,
        count,
        offsets.data_ptr(),
        following.data_ptr(),
        order.data_ptr(),
    )
    assert status == native.Status.OK, "groups in their range"
    return offsets, None if bool((view[1:] >= view[:-1]).all()) else order


def ranges_of(offsets: torch.Tensor, groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the range of each group (in [0, len(offsets) - 1)) begins, and how long it is."""
    library = native.library(len(groups))
    if library is None or offsets.dtype != torch.int32:
        return portable.ranges_of(offsets, groups)
    groups = groups.contiguous()
    starts, counts = (empty(groups.shape[0], torch.int32) for _ in range(2))
    status = library.pystachio_ranges_of(
        offsets.data_ptr(),
        len(offsets),
        groups.data_ptr(),
        groups.itemsize,
        len(groups),
        starts.data_ptr(),
        counts.data_ptr(),
    )
    assert status == native.Status.OK, "groups in their range"
    return starts, counts


def pairs(
    starts: torch.Tensor, counts: torch.Tensor, order: torch.Tensor | None, limit: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Each row with each place of its range of `order` (None: with each number of the range), at most `limit` pairs
    at a time: int32 or int64."""
    library = native.library()
    places = starts if order is None else order
    if library is None or starts.shape[0] > MOST_ROWS or places.dtype != torch.int32:
        yield from portable.pairs(starts, counts, order, limit)
        return
    starts, counts = starts.to(torch.int32).contiguous(), counts.to(torch.int32).contiguous()
    order_rows = MOST_ROWS if order is None else order.shape[0]
    left, cursor = int(counts.sum()), (ctypes.c_int64 * 2)()
    while left:
        size = min(limit, left)
        probe, build = (empty(size, torch.int32) for _ in range(2))
        made = library.pystachio_pairs(
            starts.data_ptr(),
            counts.data_ptr(),
            len(starts),
            None if order is None else order.data_ptr(),
            order_rows,
            size,
            cursor,
            probe.data_ptr(),
            build.data_ptr(),
        )
        assert made == size, "ranges within the order"
        yield probe, build
        left -= size
