"""What the build side of a join tells the scans of its probe side: keys that cannot match.

A filter only ever removes rows that the join would drop, so applying it is optional and any part of it may be missing.
The idea is "sideways information passing" (Beeri and Ramakrishnan, "On the power of magic", 1991); bounds prune whole
row groups, the set of keys prunes rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from pystachio.operators.arrow import column_to_arrow, dictionary_from_arrow, dictionary_to_arrow
from pystachio.operators.batch import column_nbytes
from pystachio.operators.column import (
    Bounds,
    BytesColumn,
    Column,
    Dictionary,
    DictionaryColumn,
    FixedColumn,
    ViewColumn,
)
from pystachio.operators.kernels.key_sets import KeySet, key_set
from pystachio.operators.kernels.texts import find_texts

_MEMBERS = "members of runtime filters"
_MOST_MEMBERS = 8
"""Filters whose members a dictionary keeps: most runs of a plan bring new ones."""

MOST_STRINGS = 1 << 16
"""String keys (rows of plain ones, distinct ones) beyond which a filter costs more than it saves."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class RuntimeFilter:
    """The keys of a join's build side, of logical type `type`; a NULL key never passes.

    `empty`: there is no key at all, nothing passes. `bounds`: inclusive range of the keys in `expressions.Literal`
    encoding (integer-like types), None when unknown. `keys`: those in the range, None when all values of it may be one.
    `values`: the distinct keys of a string column (instead of bounds and keys).
    """

    type: pa.DataType
    bounds: Bounds | None = None
    keys: KeySet | None = None
    values: Dictionary | None = None
    empty: bool = False

    @property
    def nbytes(self) -> int:
        """What it holds besides the build side."""
        return (0 if self.keys is None else self.keys.nbytes) + (
            0 if self.values is None else column_nbytes(self.values.values)
        )

    def may_match(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """For each of these inclusive ranges (int64) a bool: False when no integer-like key lies in it."""
        if self.empty or self.bounds is None:
            return np.full(len(low), not self.empty)
        first, last = np.maximum(low, self.bounds[0]), np.minimum(high, self.bounds[1])
        matching: np.ndarray = first <= last
        if self.keys is not None:
            matching[matching] = self.keys.may_have(first[matching], last[matching])
        return matching

    def select(self, column: Column) -> torch.Tensor | None:
        """int64 positions of the rows that may match, ascending; None when all may."""
        if self.empty:
            return torch.empty(0, dtype=torch.int64)
        match column:
            case FixedColumn(values=values) if self.bounds is not None and not values.dtype.is_floating_point:
                return _select_integers(values, column.validity, column.bounds, self.bounds, self.keys)
            case DictionaryColumn() if self.values is not None:
                return _select_codes(column, self.values)
            case BytesColumn() if self.values is not None:
                # NULL has no code.
                return _positions(find_texts(column, self.values).numpy() >= 0)
            case _:
                return None if column.validity is None else _positions(column.validity.numpy())


def filter_of_keys(columns: Sequence[Column], parts: int = 1) -> RuntimeFilter | None:
    """A filter over the key column of a build side, given as its batches' columns (all of one type and encoding scale);
    one of so many `parts` of the whole filter.

    None when nothing useful can be said (floats, wide decimals).
    """
    if not columns:
        return None
    type_ = columns[0].type
    if all(isinstance(column, FixedColumn) and not column.values.dtype.is_floating_point for column in columns):
        return _filter_of_integers(type_, [column for column in columns if isinstance(column, FixedColumn)], parts)
    strings = [column for column in columns if isinstance(column, DictionaryColumn | BytesColumn | ViewColumn)]
    return _filter_of_strings(type_, strings) if len(strings) == len(columns) else None


def _filter_of_integers(type_: pa.DataType, columns: Sequence[FixedColumn], parts: int) -> RuntimeFilter:
    keys = [_valid_values(column) for column in columns]
    keys = [values for values in keys if len(values)]
    if not keys:
        return RuntimeFilter(type_, empty=True)
    low, high = min(int(values.min()) for values in keys), max(int(values.max()) for values in keys)
    return RuntimeFilter(type_, (low, high), key_set(keys, (low, high), parts))


def _valid_values(column: FixedColumn) -> np.ndarray:
    values: np.ndarray = column.values.numpy()
    return values if column.validity is None else values[column.validity.numpy()]


def _filter_of_strings(
    type_: pa.DataType, columns: Sequence[DictionaryColumn | BytesColumn | ViewColumn]
) -> RuntimeFilter:
    """The distinct keys, when they are few; else only that NULL does not pass."""
    if sum(len(column) for column in columns if not isinstance(column, DictionaryColumn)) > MOST_STRINGS:
        return RuntimeFilter(type_)
    distinct = pa.concat_arrays([_distinct(column) for column in columns]).unique()
    if len(distinct) == 0:
        return RuntimeFilter(type_, empty=True)
    if len(distinct) > MOST_STRINGS:
        return RuntimeFilter(type_)
    return RuntimeFilter(type_, values=dictionary_from_arrow(distinct))


def _distinct(column: DictionaryColumn | BytesColumn | ViewColumn) -> pa.Array:
    """The values in use, without NULL."""
    if not isinstance(column, DictionaryColumn):
        return column_to_arrow(column).drop_null().unique()
    used = np.zeros(len(column.dictionary), dtype=np.bool_)
    codes = column.codes.numpy()
    if len(used):
        used[codes if column.validity is None else codes[column.validity.numpy()]] = True
    return dictionary_to_arrow(column.dictionary).filter(pa.array(used))


def _select_integers(
    column: torch.Tensor,
    validity: torch.Tensor | None,
    known: Bounds | None,
    bounds: Bounds,
    keys: KeySet | None,
) -> torch.Tensor | None:
    values = column.numpy()
    limits = np.iinfo(np.uint8 if values.dtype == np.bool_ else values.dtype)
    low, high = max(bounds[0], int(limits.min)), min(bounds[1], int(limits.max))
    if low > high:
        return torch.empty(0, dtype=torch.int64)
    inside = known is not None and low <= known[0] and known[1] <= high and validity is None
    if inside:
        return None if keys is None else _positions(keys.contains(values))
    passing = (values >= low) & (values <= high)
    if validity is not None:
        passing &= validity.numpy()
    if keys is None:
        return _positions(passing)
    rows = np.flatnonzero(passing)
    return torch.from_numpy(rows[keys.contains(values[rows])])


def _select_codes(column: DictionaryColumn, values: Dictionary) -> torch.Tensor | None:
    if len(column.dictionary) == 0:
        return torch.empty(0, dtype=torch.int64)
    members = members_of(column.dictionary, values).numpy()
    if members.all() and column.validity is None:
        return None
    passing = members[column.codes.numpy()]
    if column.validity is not None:
        passing &= column.validity.numpy()
    return _positions(passing)


def members_of(dictionary: Dictionary, values: Dictionary) -> torch.Tensor:
    """bool [len(dictionary)]: which of its values are among `values`; kept with it."""
    known = cast(tuple[tuple[Dictionary, torch.Tensor], ...], dictionary.derived.get(_MEMBERS, ()))
    for others, members in known:
        if others is values:
            return members
    wanted = dictionary_to_arrow(values).cast(dictionary_to_arrow(dictionary).type)
    found = pc.is_in(dictionary_to_arrow(dictionary), value_set=wanted).to_numpy(zero_copy_only=False)
    members = torch.from_numpy(found)
    # What two threads find at once, one of them finds again.
    dictionary.derived[_MEMBERS] = (*known[1 - _MOST_MEMBERS :], (values, members))
    return members


def _positions(passing: np.ndarray) -> torch.Tensor | None:
    rows = np.flatnonzero(passing)
    return None if len(rows) == len(passing) else torch.from_numpy(rows)
