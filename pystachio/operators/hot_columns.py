"""Decoded columns that the node keeps for the scans to come: neither read nor decoded again."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Final

from pystachio.errors import ResourceExhausted
from pystachio.operators.batch import column_nbytes
from pystachio.operators.column import Bounds, Column, Dictionary, DictionaryColumn
from pystachio.operators.kernels.block_offsets import packed
from pystachio.operators.kernels.host_memory import Memory
from pystachio.operators.narrowing import narrowest_dtype
from pystachio.operators.parquet.dictionary import SharedDictionary
from pystachio.operators.scans.units import ScanUnits, Unit
from pystachio.runtime.hot_cache import HotCache

_MOST_GROUPS: Final = 4
"""Ways to read the units of a scan of which their columns are kept as one."""


@dataclass(frozen=True, slots=True, eq=False)
class HotUnit:
    """A unit whose columns are all in memory, by position. `derived` is what was made of them, and goes with them."""

    unit: Unit
    columns: dict[int, Column]
    derived: dict[Hashable, object] = field(default_factory=dict, init=False)


@dataclass(frozen=True, slots=True, eq=False)
class HotUnits:
    """All units of a scan, `nbytes` in memory. `dictionaries` are those of coded columns."""

    units: tuple[HotUnit, ...]
    rows: int
    nbytes: int
    dictionaries: tuple[Dictionary | None, ...]


@dataclass(frozen=True, eq=False)
class HotColumns:
    """The columns of one scan. `dictionaries` and `bounds` are those of `RowReader`, by position.

    A column is kept under the version of its file and under how it was decoded: as codes of a certain dictionary, or in
    a dtype that depends on the other files of its table. Offsets that are packed for it lie in `memory`.
    """

    cache: HotCache[Column]
    memory: Memory
    dictionaries: dict[int, SharedDictionary]
    bounds: tuple[Bounds | None, ...]

    def find_all(self, planned: ScanUnits, positions: tuple[int, ...]) -> HotUnits | None:
        """All units with these columns, where nothing of them is missing: one step, from the second time on."""
        if not self.cache.enabled or not positions:
            return None
        coded = self._coded
        known = (positions, coded, tuple(self.dictionaries), self._widths)
        group = planned.hot.get(known)
        if group is None or not self.cache.ask_again(group):
            group = self.cache.group([key for unit in planned.units for key in self._keys(unit, positions, coded)])
            if group is None:
                return None
            if len(planned.hot) >= _MOST_GROUPS:
                planned.hot.clear()
            planned.hot[known] = group
        derived = group.derived
        values = group.values  # if there still are some, nothing was dropped before this
        if not values:
            return None
        found = derived.get("units")
        dictionaries = tuple(shared.current for shared in self.dictionaries.values())
        if not isinstance(found, HotUnits) or any(
            a is not b for a, b in zip(found.dictionaries, dictionaries, strict=True)
        ):
            found = derived["units"] = HotUnits(
                tuple(self._units(planned.units, positions, values)),
                sum(unit.rows for unit in planned.units),
                group.nbytes,
                dictionaries,
            )
        return found

    def _units(self, units: Sequence[Unit], positions: tuple[int, ...], values: Sequence[Column]) -> Iterator[HotUnit]:
        width = len(positions)
        for number, unit in enumerate(units):
            columns = zip(positions, values[number * width : (number + 1) * width], strict=True)
            yield HotUnit(unit, {position: self._renewed(position, column) for position, column in columns})

    def find(self, unit: Unit, positions: tuple[int, ...]) -> tuple[dict[int, Column], int]:
        """Those of the unit's columns that are kept, by position, and their bytes."""
        if not self.cache.enabled:
            return {}, 0
        columns: dict[int, Column] = {}
        nbytes = 0
        for position, kept in zip(positions, self.cache.get_all(self._keys(unit, positions, self._coded)), strict=True):
            if kept is not None:
                columns[position] = self._renewed(position, kept[0])
                nbytes += kept[1]
        return columns, nbytes

    @property
    def _coded(self) -> tuple[int, ...]:
        """The positions whose columns are read as codes, which may change while a scan runs."""
        return tuple(position for position, shared in self.dictionaries.items() if not shared.overflowed)

    def _keys(self, unit: Unit, positions: tuple[int, ...], coded: tuple[int, ...]) -> tuple[Hashable, ...]:
        # The same for most scans of a plan, however often it runs.
        known = (positions, coded, self._widths)
        keys = unit.cache_keys.get(known)
        if keys is None:
            keys = tuple(self._key(unit, position, coded=position in coded) for position in positions)
            unit.cache_keys[known] = keys
        return keys

    def _renewed(self, position: int, column: Column) -> Column:
        """Over the present dictionary, if it has codes of one."""
        if isinstance(column, DictionaryColumn) and position in self.dictionaries:
            return self.dictionaries[position].renewed(column)
        return column

    def keep(self, unit: Unit, position: int, column: Column, seconds: float) -> None:
        """A column that took so long to decode is offered to the cache. Never fails: nobody waits for it."""
        if self.cache.enabled:
            key = self._key(unit, position, coded=isinstance(column, DictionaryColumn))
            with suppress(ResourceExhausted):  # Then it is kept as it is.
                column = packed(column, self.memory)
            self.cache.offer(key, column, nbytes=column_nbytes(column), seconds=seconds)

    def _key(self, unit: Unit, position: int, *, coded: bool) -> Hashable:
        decoded_as = self.dictionaries[position] if coded else self._widths[position]
        version = unit.file.version
        # Of values that hash without Python code: this is asked for each column of each unit.
        return version.path, version.size, version.mtime_ns, unit.groups, unit.columns[position], decoded_as

    @cached_property
    def _widths(self) -> tuple[int | None, ...]:
        return _widths_of(self.bounds)


@lru_cache(maxsize=1024)
def _widths_of(bounds: tuple[Bounds | None, ...]) -> tuple[int | None, ...]:
    """Of integer-like columns that are not coded, by position: the same for all scans of some columns."""
    return tuple(None if known is None else narrowest_dtype(known).itemsize for known in bounds)
