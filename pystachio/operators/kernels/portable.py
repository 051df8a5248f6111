"""Inner loops in torch: run on every device and say what the faster twins in `host` must do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import torch

from pystachio.operators.column import Bounds
from pystachio.operators.kernels.hash_rounds import number_groups
from pystachio.operators.kernels.hash_rounds import number_keys as number_keys
from pystachio.operators.kernels.numbering import row_dtype, row_numbers

Scalar = bool | int | float

_COMPARE: Final[dict[str, Callable[..., torch.Tensor]]] = {
    "equal": torch.eq,
    "not_equal": torch.ne,
    "lt": torch.lt,
    "lte": torch.le,
    "gt": torch.gt,
    "gte": torch.ge,
}

_ARITHMETIC: Final[dict[str, Callable[..., torch.Tensor]]] = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
}


def compare(function: str, left: torch.Tensor, right: torch.Tensor | Scalar) -> torch.Tensor:
    """`left function right` per row as bool, in IEEE order for floats. A scalar must fit the dtype of `left`."""
    return _COMPARE[function](left, right)


def arithmetic(
    function: str, left: torch.Tensor | Scalar, right: torch.Tensor | Scalar, dtype: torch.dtype
) -> torch.Tensor:
    """add, subtract or multiply in `dtype`, wrapping on overflow. At least one operand is a tensor."""
    if isinstance(left, torch.Tensor):
        left = left.to(dtype)
    if isinstance(right, torch.Tensor):
        right = right.to(dtype)
    if not isinstance(left, torch.Tensor):
        assert isinstance(right, torch.Tensor)
        left = torch.full((), left, dtype=dtype, device=right.device)
    return _ARITHMETIC[function](left, right)


def indices_of_true(mask: torch.Tensor) -> torch.Tensor:
    """Positions of the true rows in order, int64."""
    return torch.nonzero(mask).squeeze(1)


def compact(mask: torch.Tensor, columns: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The rows of each column (of any dtype, [rows]) where `mask` (bool [rows]) is true, in order."""
    rows = indices_of_true(mask)
    if rows.shape[0] == mask.shape[0]:
        return tuple(columns)
    return tuple(column.index_select(0, rows) for column in columns)


def minimum_and_maximum(values: torch.Tensor) -> Bounds:
    """Of a non-empty integer tensor."""
    low, high = torch.stack(torch.aminmax(values)).tolist()
    return low, high


def all_true(mask: torch.Tensor) -> bool:
    return bool(mask.all())


def any_true(mask: torch.Tensor) -> bool:
    return bool(mask.any())


def offsets_within(values: torch.Tensor, low: int, span: int) -> torch.Tensor:
    """`values - low` where that is in [0, span), else `span`. All of `values` (int32 or int64), `low` and `low + span`
    fit the dtype, which is kept."""
    inside = (values >= low) & (values <= low + span - 1)
    return torch.where(inside, values - low, span)


def lookup_within(
    table: torch.Tensor, values: torch.Tensor, low: int, kept: torch.Tensor | None = None
) -> torch.Tensor:
    """`table[value - low]` where that is before the last entry of `table` ([span + 1], span > 0) and the row is `kept`
    (None: all), else that entry. `values` are integers of any width; `low` and `low + span - 1` fit int64."""
    span, values = table.shape[0] - 1, values.to(torch.int64)
    inside = (values >= low) & (values <= low + span - 1)
    if kept is not None:
        inside &= kept
    return table.index_select(0, torch.where(inside, values - low, span))


def group_sums(values: torch.Tensor, codes: torch.Tensor, slots: int, kept: torch.Tensor | None = None) -> torch.Tensor:
    """int64 [slots]: the sums, wrapping, of the integer `values` by their integer `codes` in [0, slots), of the rows
    that are `kept` (None: all)."""
    if kept is not None:
        values = torch.where(kept, values, 0)
    total = torch.zeros(slots, dtype=torch.int64, device=values.device)
    return total.scatter_add_(0, codes.to(torch.int64), values.to(torch.int64))


def group_rows(codes: torch.Tensor, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 [slots], twice: how many rows have the code, and 1 + the position of one of them (0: none)."""
    ids = codes.to(torch.int64)
    holders = torch.zeros(slots, dtype=torch.int64, device=codes.device)
    numbers = torch.arange(1, len(ids) + 1, device=codes.device)
    return count_ids(ids, slots), holders.scatter_(0, ids, numbers)


def count_ids(ids: torch.Tensor, slots: int) -> torch.Tensor:
    """int64 [slots]: how often each of [0, slots) is in `ids` (int64). Unlike bincount it waits for no device."""
    total = torch.zeros(slots, dtype=torch.int64, device=ids.device)
    return total.scatter_add_(0, ids, torch.ones_like(ids))


def group_extremes(values: torch.Tensor, codes: torch.Tensor, start: torch.Tensor, *, largest: bool) -> torch.Tensor:
    """[slots]: the largest or smallest of `start` [slots] and the integer `values` of that dtype with the slot's code.
    `start` is given up."""
    return start.scatter_reduce_(0, codes.to(torch.int64), values, "amax" if largest else "amin")


def number_words(words: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`numbers` and `first` as in `numbering.Numbering` of rows that are equal where all `words` (int64 [rows] each, at
    least two) are, and how many rows each has (int64 [groups])."""
    numbering = number_keys(words[0])
    for word in words[1:]:
        other = number_keys(word)
        both = numbering.numbers.to(torch.int64) * other.first.shape[0] + other.numbers
        numbering = number_keys(both)
    numbers, first = numbering.numbers, numbering.first
    return numbers, first, torch.bincount(numbers.to(torch.int64), minlength=first.shape[0])


def number_codes(codes: torch.Tensor, span: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[span + 1] 1 + the number of each code of `codes` (int32 or int64 [rows], in [0, span)), 0 for none; the number
    of each row; the position of one row of each number."""
    occupants = torch.zeros(span + 1, dtype=row_dtype(codes.shape[0]), device=codes.device)
    occupants.scatter_(0, codes.to(torch.int64), row_numbers(codes.shape[0], occupants))
    numbers, first = number_groups(occupants.index_select(0, codes))
    if first.shape[0] < codes.shape[0]:
        occupants = torch.cat((numbers.new_zeros(1), numbers + 1)).index_select(0, occupants)
    return occupants, numbers, first


def ranges(groups: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rows by `groups` (int32 or int64 [rows], in [0, count)): where those of each begin ([count + 1]), and their
    positions in that order (None: they stand so)."""
    rows = groups.shape[0]
    offsets = torch.zeros(count + 1, dtype=row_dtype(rows), device=groups.device)
    offsets[1:] = torch.cumsum(count_ids(groups.to(torch.int64), count), 0)
    if bool((groups[1:] >= groups[:-1]).all()):
        return offsets, None
    return offsets, torch.sort(groups, stable=True).indices.to(offsets.dtype)


def ranges_of(offsets: torch.Tensor, groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the range of each group (in [0, len(offsets) - 1)) begins, and how long it is."""
    starts = offsets.index_select(0, groups)
    return starts, offsets.index_select(0, groups + 1) - starts


def pairs(
    starts: torch.Tensor, counts: torch.Tensor, order: torch.Tensor | None, limit: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Each row with each place of its range of `order` (None: with each number of the range), at most `limit` pairs
    at a time: int32 or int64."""
    ends = torch.cumsum(counts, 0, dtype=torch.int64)
    total = int(ends[-1]) if ends.shape[0] else 0
    if total == 0:
        return
    first_rows, last_rows = _rows_of_slices(ends, total, limit)
    for first, first_row, last_row in zip(range(0, total, limit), first_rows, last_rows, strict=True):
        last, of = min(first + limit, total), slice(first_row, last_row + 1)
        whole_begins = ends[of] - counts[of]
        begins = whole_begins.clamp(min=first)
        lengths = ends[of].clamp(max=last) - begins
        rows = torch.arange(first_row, last_row + 1, dtype=row_dtype(last_row + 1), device=ends.device)
        shifts = starts[of] + (begins - whole_begins) - (begins - first)
        size = last - first  # known here, so that no device is asked for it
        positions = torch.arange(size, device=ends.device)
        positions += torch.repeat_interleave(shifts, lengths, output_size=size)
        found = positions if order is None else order.index_select(0, positions)
        yield torch.repeat_interleave(rows, lengths, output_size=size), found


def _rows_of_slices(ends: torch.Tensor, total: int, limit: int) -> tuple[list[int], list[int]]:
    """The first and the last row of each `limit` of the `total` pairs; `ends` are the pairs up to each row."""
    if total <= limit:
        return [0], [ends.shape[0] - 1]
    firsts = torch.arange(0, total, limit, device=ends.device)
    edges = torch.stack((firsts, (firsts + limit).clamp_(max=total) - 1))
    first_rows, last_rows = torch.searchsorted(ends, edges, right=True).tolist()
    return first_rows, last_rows
