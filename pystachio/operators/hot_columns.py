"""Decoded columns that the node keeps for the scans to come: neither read nor decoded again."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property

from pystachio.operators.batch import column_nbytes
from pystachio.operators.column import Bounds, Column, DictionaryColumn
from pystachio.operators.narrowing import narrowest_dtype
from pystachio.operators.parquet_dictionary import SharedDictionary
from pystachio.operators.scan_units import Unit
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

    def find(self, unit: Unit, positions: Iterable[int]) -> dict[int, Column]:
        """Those of the unit's columns that are kept, by position."""
        if not self.cache.enabled:
            return {}
        found: dict[int, Column] = {}
        for position in positions:
            shared = self.dictionaries.get(position)
            coded = shared is not None and not shared.overflowed
            column = self.cache.get(self._key(unit, position, coded=coded))
            if shared is not None and isinstance(column, DictionaryColumn):
                column = shared.renewed(column)
            if column is not None:
                found[position] = column
        return found

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
