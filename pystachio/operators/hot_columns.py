"""Decoded columns that the node keeps for the scans to come: neither read nor decoded again."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

from pystachio.operators.batch import column_nbytes
from pystachio.operators.column import Bounds, Column, DictionaryColumn
from pystachio.operators.narrowing import narrowest_dtype
from pystachio.operators.parquet.dictionary import SharedDictionary
from pystachio.operators.scans.units import Unit
from pystachio.runtime.hot_cache import HotCache


@dataclass(frozen=True, eq=False)
class HotColumns:
    """The columns of one scan. `dictionaries` and `bounds` are those of `RowReader`, by position.

    A column is kept under the version of its file and under how it was decoded: as codes of a certain dictionary, or in
    a dtype that depends on the other files of its table.
    """

    cache: HotCache[Column]
    dictionaries: dict[int, SharedDictionary]
    bounds: tuple[Bounds | None, ...]

    def find(self, unit: Unit, positions: tuple[int, ...]) -> tuple[dict[int, Column], int]:
        """Those of the unit's columns that are kept, by position, and their bytes."""
        if not self.cache.enabled:
            return {}, 0
        coded = tuple(position for position, shared in self.dictionaries.items() if not shared.overflowed)
        # The same for most scans of a plan, however often it runs.
        known = (positions, coded, self._widths)
        keys = unit.cache_keys.get(known)
        if keys is None:
            keys = tuple(self._key(unit, position, coded=position in coded) for position in positions)
            unit.cache_keys[known] = keys
        columns: dict[int, Column] = {}
        nbytes = 0
        for position, kept in zip(positions, self.cache.get_all(keys), strict=True):
            if kept is not None:
                column = kept[0]
                if isinstance(column, DictionaryColumn) and position in self.dictionaries:
                    column = self.dictionaries[position].renewed(column)
                columns[position] = column
                nbytes += kept[1]
        return columns, nbytes

    def keep(self, unit: Unit, position: int, column: Column, seconds: float) -> None:
        """A column that took so long to decode is offered to the cache."""
        if self.cache.enabled:
            key = self._key(unit, position, coded=isinstance(column, DictionaryColumn))
            self.cache.offer(key, column, nbytes=column_nbytes(column), seconds=seconds)

    def _key(self, unit: Unit, position: int, *, coded: bool) -> Hashable:
        decoded_as = self.dictionaries[position] if coded else self._widths[position]
        version = unit.file.version
        # Of values that hash without Python code: this is asked for each column of each unit.
        return version.path, version.size, version.mtime_ns, unit.groups, unit.columns[position], decoded_as

    @cached_property
    def _widths(self) -> tuple[int | None, ...]:
        """Of integer-like columns that are not coded, by position."""
        return tuple(None if bounds is None else narrowest_dtype(bounds).itemsize for bounds in self.bounds)
