"""Orders of rows: values as integers that compare alike, keys packed into one, permutations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, cast

import numpy as np
import pyarrow.compute as pc
import torch

from pystachio.operators.column import (
    BytesColumn,
    Column,
    Dictionary,
    DictionaryColumn,
    FixedColumn,
    ViewColumn,
    WideDecimalColumn,
)
from pystachio.operators.kernels import radix_sort
from pystachio.operators.kernels.bounds import bounds_of
from pystachio.operators.kernels.floats import ordered_floats
from pystachio.operators.kernels.selection import device_of, plain, take
from pystachio.operators.kernels.strings import arrow_view, index, to_codes
from pystachio.operators.placement import table_on

_SPAN_LIMIT: Final = 1 << 62
_FEW_ROWS: Final = 256
"""So many rows of a host are in order before the steps of a large sort have begun."""
_FEW_CANDIDATES: Final = 1024
"""So many rows are sorted as they are."""
_SIGN: Final = -(2**63)
_FEW_VALUES: Final = 1 << 14
_COMPARISONS: Final = 64
"""With a value of a dictionary, which take as long as its share of sorting them all. Threads may miscount."""


def are_ranks_due(dictionary: Dictionary) -> bool:
    """Whether `ranks` are there, or cost little, or have been asked for so often that they pay: putting a value of a
    large dictionary in order takes as long as comparing it many times."""
    if "ranks" in dictionary.derived or len(dictionary) <= _FEW_VALUES:
        return True
    asked = cast(int, dictionary.derived.get("asked for ranks", 0)) + 1
    dictionary.derived["asked for ranks"] = asked
    return asked > _COMPARISONS


def ranks(dictionary: Dictionary, device: torch.device) -> torch.Tensor:
    """int32 or int64 [values]: the position of each value in ascending byte order; kept with the dictionary."""
    known = dictionary.derived.get("ranks")
    if known is None:
        order = torch.from_numpy(pc.sort_indices(arrow_view(dictionary.values)).to_numpy().astype("int64"))
        numbers = torch.arange(len(dictionary), dtype=torch.int32 if len(dictionary) < 2**31 else torch.int64)
        places = torch.empty_like(numbers).index_copy_(0, order, numbers)
        known = dictionary.derived.setdefault("ranks", places)
    return table_on(dictionary, "ranks", cast(torch.Tensor, known), device)


def values_by_rank(dictionary: Dictionary, device: torch.device) -> torch.Tensor:
    """The code of each rank: the inverse of `ranks`."""
    places = ranks(dictionary, device)
    codes = torch.arange(places.shape[0], dtype=places.dtype, device=places.device)
    return torch.empty_like(places).index_copy_(0, places.to(torch.int64), codes)


def ordered_bits(values: torch.Tensor) -> torch.Tensor:
    """int64 that order as the floats do: -0.0 equals 0.0, NaN is above everything."""
    found = ordered_floats(values) if values.device.type == "cpu" and values.itemsize >= 4 else None
    if found is not None:
        return found
    wide = values.to(torch.float64) + 0.0
    bits = torch.where(torch.isnan(wide), torch.nan, wide).view(torch.int64)
    return bits ^ ((bits >> 63) & (2**63 - 1))


def floats_of_bits(ordered: torch.Tensor) -> torch.Tensor:
    """The inverse of `ordered_bits`."""
    return (ordered ^ ((ordered >> 63) & (2**63 - 1))).view(torch.float64)


def is_text(column: Column) -> bool:
    """Whether the column's values are bytes, plain or behind codes."""
    return isinstance(column, BytesColumn | ViewColumn) or (
        isinstance(column, DictionaryColumn) and isinstance(column.dictionary.values, BytesColumn)
    )


def text_ranks(column: Column) -> tuple[torch.Tensor, Dictionary, torch.Tensor | None]:
    """Ranks of a text column's values within its dictionary, the dictionary, and the validity."""
    assert isinstance(column, BytesColumn | ViewColumn | DictionaryColumn)
    coded = to_codes(column)
    if len(coded.dictionary) == 0:
        return torch.zeros(len(coded), dtype=torch.int32, device=coded.codes.device), coded.dictionary, coded.validity
    places = ranks(coded.dictionary, coded.codes.device)
    return places.index_select(0, index(coded.codes)), coded.dictionary, coded.validity


@dataclass(frozen=True, slots=True)
class Direction:
    """How one sort key orders."""

    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Digit:
    """int64 `values` in [low, high] that order as the key does."""

    values: torch.Tensor
    low: int
    high: int

    @property
    def span(self) -> int:
        return self.high - self.low + 1


def sort_order(keys: Sequence[tuple[Column, Direction]], rows: int, count: int | None = None) -> torch.Tensor:
    """The positions of the rows (int64) in the order of `keys`, ties in the order they stand; the first `count`."""
    if rows <= _FEW_ROWS and all(device_of(column).type == "cpu" for column, _ in keys):
        return _order_of_few(keys, rows)[:count]
    words = order_words(keys)
    if not words:
        return torch.arange(rows, device=device_of(keys[0][0]))[:count]
    if radix_sort.is_available(words[0].device):
        return radix_sort.sorted_rows(words, count)
    order = torch.sort(words[-1], stable=True).indices
    for word in reversed(words[:-1]):
        order = order.index_select(0, torch.sort(word.index_select(0, order), stable=True).indices)
    return order[:count]


def order_words(keys: Sequence[tuple[Column, Direction]]) -> list[torch.Tensor]:
    """int64 [rows] each, the most significant first, that compare like the keys; none where all rows are equal."""
    return _packed([digit for column, direction in keys for digit in _digits(column, direction)])


def _order_of_few(keys: Sequence[tuple[Column, Direction]], rows: int) -> torch.Tensor:
    """`sort_order` on a host, with texts as objects."""
    words = [word for column, direction in keys for word in _few_words(column, direction)]
    return torch.from_numpy(np.lexsort(words[::-1]) if words else np.arange(rows))


def _few_words(column: Column, direction: Direction) -> list[np.ndarray]:
    """The key as integers, most significant first, one for NULL before them."""
    if is_text(column):
        values = [_ranks_of_few(column)]
    else:
        column = plain(column)
        match column:
            case WideDecimalColumn(high=high, low=low):
                values = [high.numpy(), low.numpy() ^ np.int64(_SIGN)]
            case FixedColumn(values=numbers) if numbers.dtype.is_floating_point:
                values = [ordered_bits(numbers).numpy()]
            case FixedColumn(values=numbers):
                values = [numbers.numpy().astype(np.int64)]
            case BytesColumn():
                raise AssertionError("text has ranks")
    if direction.descending:
        values = [~each for each in values]
    if column.validity is None:
        return values
    valid = column.validity.numpy()
    return [valid if direction.nulls_first else ~valid, *(np.where(valid, each, 0) for each in values)]


def _ranks_of_few(column: Column) -> np.ndarray:
    """int64 [rows]: which of the different texts each is, in ascending byte order."""
    if isinstance(column, DictionaryColumn):
        codes = column.codes.numpy()
        if len(column.dictionary) == 0:
            return np.zeros(len(codes), np.int64)
        used, places = np.unique(codes, return_inverse=True)
        values = take(column.dictionary.values, torch.from_numpy(used.astype(np.int64)))
        return _ranks_of_few(values)[places]
    texts = plain(column)
    assert isinstance(texts, BytesColumn)
    data, offsets = texts.data.numpy(), texts.offsets.tolist()
    found = [data[start:stop].tobytes() for start, stop in pairwise(offsets)]
    rank = {text: number for number, text in enumerate(sorted(set(found)))}
    return np.array([rank[text] for text in found], np.int64)


def first_of_order(keys: Sequence[tuple[Column, Direction]], rows: int, count: int) -> torch.Tensor:
    """The first `count` positions of `sort_order`. On a CPU what cannot be among them is dropped key by key."""
    chosen, candidates, wanted = [], None, count
    for column, direction in keys:
        left = rows if candidates is None else len(candidates)
        if device_of(column).type != "cpu" or wanted == 0 or left <= max(_FEW_CANDIDATES, 2 * wanted):
            break
        digits = _digits(column if candidates is None else take(column, candidates), direction)
        values = digits[0].values.numpy()
        limit = np.partition(values, wanted - 1)[wanted - 1]
        before, ties = (torch.from_numpy(np.flatnonzero(mask)) for mask in (values < limit, values == limit))
        if candidates is not None:
            before, ties = candidates.index_select(0, before), candidates.index_select(0, ties)
        chosen.append(before)
        candidates, wanted = ties, wanted - len(before)
        if len(digits) > 1:
            break
    if candidates is None:
        return sort_order(keys, rows, count)
    positions = torch.cat((*chosen, candidates)).sort().values
    taken = [(take(column, positions), direction) for column, direction in keys]
    return positions.index_select(0, sort_order(taken, len(positions), count))


def precedes_or_ties(column: Column, row: Column, direction: Direction) -> torch.Tensor | None:
    """bool [rows]: which rows do not come after the single row of `row`; None when that is all, or not cheap to say."""
    first, last = plain_numbers(column), plain_numbers(row)
    if first is None or last is None:
        return None
    if last.validity is not None and not bool(last.validity[0]):
        return ~column.validity if direction.nulls_first and column.validity is not None else None
    bound = last.values.to(first.values.dtype) if first.values.dtype.is_floating_point else last.values
    values, limit = (ordered_bits(v) if v.dtype.is_floating_point else v for v in (first.values, bound))
    mask = values >= limit if direction.descending else values <= limit
    if column.validity is None:
        return mask
    return mask | ~column.validity if direction.nulls_first else mask & column.validity


def ordered_numbers(column: Column) -> torch.Tensor | None:
    """int64 that order as the values, where each is one number; what stands under NULLs is arbitrary."""
    numbers = plain_numbers(column)
    if numbers is None:
        return None
    values = numbers.values
    return ordered_bits(values) if values.dtype.is_floating_point else values.to(torch.int64)


def plain_numbers(column: Column) -> FixedColumn | None:
    """The column as one number per row, where it is that."""
    if is_text(column):
        return None
    numbers = plain(column)
    return numbers if isinstance(numbers, FixedColumn) else None


def _packed(digits: Sequence[_Digit]) -> list[torch.Tensor]:
    """The digits in as few int64 per row as their spans allow, most significant first."""
    words: list[torch.Tensor] = []
    span = _SPAN_LIMIT
    for digit in digits:
        if digit.span == 1:
            continue
        if digit.span < _SPAN_LIMIT and span * digit.span < _SPAN_LIMIT:
            words[-1] = words[-1] * digit.span + (digit.values - digit.low)
            span *= digit.span
        else:
            small = digit.span < _SPAN_LIMIT
            words.append(digit.values - digit.low if small else digit.values)
            span = digit.span
    return words


def _digits(column: Column, direction: Direction) -> list[_Digit]:
    """The key as numbers, most significant first: one for NULL where it does not fit among the values."""
    values = _ordered(column)
    if direction.descending:
        values = [_Digit(~digit.values, ~digit.high, ~digit.low) for digit in values]
    if column.validity is None:
        return values
    first = values[0]
    null = first.low - 1 if direction.nulls_first else first.high + 1
    if len(values) == 1 and first.span < _SPAN_LIMIT and _SIGN <= null <= ~_SIGN:
        filled = torch.where(column.validity, first.values, null)
        return [_Digit(filled, min(first.low, null), max(first.high, null))]
    flag = column.validity if direction.nulls_first else ~column.validity
    valued = [_Digit(torch.where(column.validity, d.values, d.low), d.low, d.high) for d in values]
    return [_Digit(flag.to(torch.int64), 0, 1), *valued]


def _ordered(column: Column) -> list[_Digit]:
    """Ascending order as int64 numbers; what stands under NULLs is arbitrary."""
    if is_text(column):
        places, dictionary, _ = text_ranks(column)
        return [_Digit(places.to(torch.int64), 0, max(0, len(dictionary) - 1))]
    column = plain(column)
    match column:
        case WideDecimalColumn(high=high, low=low):
            return [_Digit(high, _SIGN, ~_SIGN), _Digit(low ^ _SIGN, _SIGN, ~_SIGN)]
        case FixedColumn(values=values) if values.dtype.is_floating_point:
            return [_Digit(ordered_bits(values), _SIGN, ~_SIGN)]
        case FixedColumn(values=values):
            low_high = bounds_of(column)
            assert low_high is not None
            return [_Digit(values.to(torch.int64), *low_high)]
        case BytesColumn():
            raise AssertionError("text has ranks")
