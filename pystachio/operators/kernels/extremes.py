"""The smallest, the largest and the first value per group, for every type."""

from __future__ import annotations

from typing import Final

import torch

from pystachio.operators.column import (
    Bounds,
    BytesColumn,
    Column,
    DictionaryColumn,
    FixedColumn,
    ViewColumn,
    WideDecimalColumn,
)
from pystachio.operators.kernels.grouping import Grouping
from pystachio.operators.kernels.ordering import floats_of_bits, is_text, ordered_bits, text_ranks, values_by_rank
from pystachio.operators.kernels.selection import all_null, plain, take_or_null

_SIGN: Final = -(2**63)


def extreme(column: Column, grouping: Grouping, *, largest: bool) -> Column:
    """The smallest or largest valid value of each group, NULL where there is none. Text orders by bytes, NaN last."""
    validity = grouping.any_of(column.validity)
    if is_text(column):
        return _extreme_text(column, grouping, validity, largest)
    column = plain(column)
    match column:
        case WideDecimalColumn():
            return _extreme_limbs(column, grouping, validity, largest)
        case FixedColumn(type=type_, values=values) if values.dtype.is_floating_point:
            best = grouping.extreme_floats(values, column.validity, largest=largest)
            if best is None:
                best = _extreme_integers(ordered_bits(values), column.validity, grouping, largest)
            return FixedColumn(type_, _where_valid(floats_of_bits(best).to(values.dtype), validity), validity)
        case FixedColumn(type=type_, values=values, bounds=bounds):
            whole = values.view(torch.int8) if values.dtype == torch.bool else values
            best = _where_valid(_extreme_integers(whole, column.validity, grouping, largest), validity)
            return FixedColumn(type_, best.view(values.dtype), validity, _with_zero(bounds, validity))
    raise AssertionError(f"no order on {column.type}")


def first(column: Column, seen: torch.Tensor | None, grouping: Grouping) -> Column:
    """The value (or NULL) of each group's first row where `seen` (None: everywhere); NULL without such a row."""
    rows = torch.arange(grouping.rows, dtype=torch.int64, device=grouping.device)
    if seen is not None:
        rows = torch.where(seen, rows, grouping.rows)
    earliest = grouping.extremes(rows, grouping.rows, largest=False)
    return take_or_null(column, torch.where(earliest == grouping.rows, -1, earliest))


def _extreme_integers(
    values: torch.Tensor, validity: torch.Tensor | None, grouping: Grouping, largest: bool
) -> torch.Tensor:
    limits = torch.iinfo(values.dtype)
    worst = limits.min if largest else limits.max
    return grouping.extremes(
        values if validity is None else torch.where(validity, values, worst), worst, largest=largest
    )


def _extreme_text(column: Column, grouping: Grouping, validity: torch.Tensor | None, largest: bool) -> Column:
    if isinstance(column, BytesColumn | ViewColumn):
        rows = grouping.extreme_texts(column, largest=largest)
        if rows is not None:
            # In memory of their own: what they were found in is not kept for them.
            return plain(take_or_null(column, rows))
    places, dictionary, valid = text_ranks(column)
    if len(dictionary) == 0:
        return all_null(column.type, grouping.groups, grouping.device)
    best = _where_valid(_extreme_integers(places, valid, grouping, largest), validity)
    codes = values_by_rank(dictionary, best.device).index_select(0, best)
    return DictionaryColumn(column.type, codes, dictionary, validity)


def _extreme_limbs(
    column: WideDecimalColumn, grouping: Grouping, validity: torch.Tensor | None, largest: bool
) -> WideDecimalColumn:
    """The best high limb first, then the best low one among the rows that have it."""
    high = _extreme_integers(column.high, column.validity, grouping, largest)
    candidates = column.high == grouping.spread(high)
    if column.validity is not None:
        candidates &= column.validity
    low = _extreme_integers(column.low ^ _SIGN, candidates, grouping, largest) ^ _SIGN
    return WideDecimalColumn(column.type, _where_valid(high, validity), _where_valid(low, validity), validity)


def _where_valid(values: torch.Tensor, validity: torch.Tensor | None) -> torch.Tensor:
    """Zero under NULLs, so that a code or a day is in range there too."""
    return values if validity is None else torch.where(validity, values, 0)


def _with_zero(bounds: Bounds | None, validity: torch.Tensor | None) -> Bounds | None:
    if bounds is None or validity is None:
        return bounds
    return min(bounds[0], 0), max(bounds[1], 0)
