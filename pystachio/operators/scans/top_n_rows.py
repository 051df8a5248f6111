"""The worker's half of a top-N over a scan: which rows may be among the first, and the best of them so far.

Once as many rows are there as are wanted, the last of them is a threshold for all others: row groups whose statistics
lie behind it are not read, and of the others only rows before it are tested and kept.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch

from pystachio.operators.batch import Batch
from pystachio.operators.column import BytesColumn, Column, FixedColumn
from pystachio.operators.evaluate import select
from pystachio.operators.kernels.ordering import Direction, sort_order
from pystachio.operators.kernels.selection import concat_batches, plain, slice_column, take, take_batch
from pystachio.operators.kernels.thresholds import KeyThreshold, Threshold, may_be_first
from pystachio.operators.parquet.statistics import ChunkStatistics
from pystachio.operators.scans.rows import Piece, RowReader, ScanRows, narrow
from pystachio.operators.scans.top_n_codes import CodeTest
from pystachio.operators.scans.units import Unit

_FIRST_ROWS: Final = 1 << 12
"""So many rows are tested before there is a threshold, then more and more until it is known how many that lets pass."""

_LEAST_FOUND: Final = 64
"""Rows before the threshold that are found before they are cut to the best, which brings it forward."""

_FEW_ROWS: Final = 512
"""So many are sorted by all keys; of more, those are chosen first that may be the best by one."""

_CLEARLY_LESS: Final = 0.5

SKIPPED_GROUPS: Final = "row groups skipped by threshold"
SKIPPED_ROWS: Final = "rows skipped by threshold"


@dataclass(eq=False)
class BestRows:
    """The first `wanted` rows, in the order of `directions` and then of their numbers, of those that were added.

    Rows are batches of their plain keys and their number (int64) in the table. Several threads may add.
    """

    directions: Sequence[Direction]
    wanted: int
    threshold: Threshold | None = None
    _parts: list[Batch] = field(default_factory=list)
    _found: int = 0
    """Rows before the threshold, since they were last cut."""
    _held: int = 0
    _is_cut: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, rows: Batch, found: int) -> None:
        """The best of `found` rows before the threshold."""
        with self._lock:
            self._parts.append(rows)
            self._held += rows.nbytes
            self._is_cut = False
            self._found += found
            if self._found >= (self.wanted if self.threshold is None else max(_LEAST_FOUND, self.wanted)):
                self._cut()

    def taken(self) -> Batch | None:
        """All of them, in order; None when there are none."""
        with self._lock:
            if self._parts and not self._is_cut:
                self._cut()
            return self._parts[0] if self._parts else None

    @property
    def nbytes(self) -> int:
        """What the rows take, and take again while they are cut; does not wait for that."""
        return 2 * self._held

    def _cut(self) -> None:
        whole = concat_batches(self._parts)
        ascending = Direction(descending=False, nulls_first=False)
        keys = [*zip(whole.columns, (*self.directions, ascending), strict=True)]
        best = take_batch(whole, sort_order(keys, whole.length, self.wanted))
        self._parts, self._is_cut, self._held = [best], True, best.nbytes
        self._found = 0
        if best.length == self.wanted:
            last = self.wanted - 1
            by_key = zip(best.columns[:-1], self.directions, strict=True)
            values = tuple(KeyThreshold.of(column, last, direction) for column, direction in by_key)
            self.threshold = Threshold(values, int(numbers_of(best)[last]))
        else:
            self._found = best.length


@dataclass(slots=True, eq=False)
class _Passed:
    """How many rows a test has let pass. Several threads count; a count that is lost does no harm."""

    seen: int = 0
    passed: int = 0

    def count(self, seen: int, passed: int) -> None:
        self.seen += seen
        self.passed += passed

    @property
    def is_known(self) -> bool:
        return self.seen > 0

    @property
    def share(self) -> float:
        return self.passed / self.seen if self.seen else 1.0


class Beginning:
    """Lets one thread alone into its block before it lets in all: what the first one finds spares the others' work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._alone: int | None = None

    def __enter__(self) -> None:
        if not self._over.is_set():
            self._lock.acquire()
            if self._over.is_set():
                self._lock.release()
            else:
                self._alone = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        if self._alone == threading.get_ident():
            self._alone = None
            self._over.set()
            self._lock.release()


@dataclass(frozen=True, eq=False)
class CandidateReader(RowReader):
    """Reads the sort keys first, at `keys`; what the predicate and the filters read only for rows before the threshold.

    `numbers[id(unit)]`: the number of the unit's first row in the table.
    """

    keys: tuple[int, ...] = ()
    best: BestRows = field(kw_only=True)
    numbers: dict[int, int] = field(kw_only=True)
    _keys: _Passed = field(default_factory=_Passed, init=False)
    _tests: _Passed = field(default_factory=_Passed, init=False)
    _beginning: Beginning = field(default_factory=Beginning, init=False)
    _codes: CodeTest = field(default_factory=CodeTest, init=False)

    @staticmethod
    def of(reader: RowReader, keys: tuple[int, ...], best: BestRows, numbers: dict[int, int]) -> CandidateReader:
        """What `reader` would read, of which the best are wanted."""
        same = {each.name: getattr(reader, each.name) for each in fields(RowReader)}
        return CandidateReader(**same, keys=keys, best=best, numbers=numbers)

    @cached_property
    def first(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.keys)))

    @cached_property
    def rest(self) -> tuple[int, ...]:
        tested = {use.position for use in self.filters} | set(self.tested)
        return tuple(sorted(tested - set(self.keys)))

    @property
    def narrows(self) -> bool:
        return True

    def rules_out(self, unit: Unit) -> bool:
        """Whether all rows of the unit are behind the threshold, by its statistics."""
        threshold = self.best.threshold
        if threshold is None:
            return False
        key = threshold.keys[0]
        return all(
            key.is_before(known.low, known.high, known.nulls, rows) for known, rows in statistics_of(unit, self.keys[0])
        )

    def skipped(self, unit: Unit, start: int, stop: int) -> None:
        self._count(SKIPPED_GROUPS, len(unit.groups) if stop - start == unit.rows else 0)
        self._count(SKIPPED_ROWS, stop - start)

    def select(self, columns: dict[int, Column], start: int, stop: int) -> Piece:
        """The rows before the threshold, or that tie with it."""
        return Piece(start, stop, self._before(columns, start, stop, None, -1))

    def offer(self, rows: ScanRows) -> None:
        """Add the best of them; on a worker."""
        assert rows.unit is not None
        unit, piece = rows.unit.unit, rows.piece
        if rows.is_tested:
            passing = self._passing(rows.columns, piece.start, piece.stop, piece.survivors)
            self._add(rows, piece.start, piece.stop, passing)
            return
        start, size = piece.start, _FIRST_ROWS
        while start < piece.stop:
            with self._beginning:
                if self.rules_out(unit):
                    self.skipped(unit, start, piece.stop)
                    return
                stop = piece.stop if self._keys.is_known else min(piece.stop, start + size)
                self._add(rows, start, stop, self._chosen(rows, start, stop))
            start, size = stop, min(2 * size, max(_FIRST_ROWS, self.batch_rows))

    def _chosen(self, rows: ScanRows, start: int, stop: int) -> torch.Tensor | None:
        """By codes where that says enough, else by the threshold first, unless the predicate is cheap and is known to
        leave fewer rows."""
        assert rows.unit is not None
        columns, first = rows.columns, self.numbers[id(rows.unit.unit)] + start
        test = self.test if self.tested == self.keys[:1] else None
        coded = self._codes.rows(self.best.threshold, columns[self.keys[0]], start, stop, first, test)
        if coded is not None:
            if not coded.are_tested:
                self._count(SKIPPED_ROWS, stop - start - len(coded.rows))
            if coded.are_before:
                self._keys.count(stop - start, len(coded.rows))
                chosen: torch.Tensor | None = coded.rows
            else:
                chosen = self._before(columns, start, stop, coded.rows, first, seen=stop - start)
            return self._passing(columns, start, stop, chosen, is_tested=coded.are_tested)
        in_bytes = any(isinstance(columns[position], BytesColumn) for position in self.tested)
        if not in_bytes and self._keys.is_known and self._tests.share < _CLEARLY_LESS * self._keys.share:
            return self._before(columns, start, stop, self._passing(columns, start, stop, None), first)
        return self._passing(columns, start, stop, self._before(columns, start, stop, None, first))

    def _before(
        self,
        columns: dict[int, Column],
        start: int,
        stop: int,
        chosen: torch.Tensor | None,
        first: int,
        *,
        seen: int | None = None,
    ) -> torch.Tensor | None:
        """Those of the rows `chosen` (None: all from `start` to `stop`, of which the first has the number `first`) that
        are before the threshold; None: all. They are what another look at keys has left of `seen` rows, if there was
        one."""
        threshold = self.best.threshold
        rows = stop - start if chosen is None else len(chosen)
        before = None
        if threshold is not None:
            if rows:
                keys = [slice_column(columns[position], start, stop) for position in self.keys]
                before = threshold.select(keys if chosen is None else [take(key, chosen) for key in keys], first)
            self._keys.count(rows if seen is None else seen, rows if before is None else len(before))
        if before is None:
            return chosen
        self._count(SKIPPED_ROWS, rows - len(before))
        return before if chosen is None else chosen.index_select(0, before)

    def _passing(
        self,
        columns: dict[int, Column],
        start: int,
        stop: int,
        chosen: torch.Tensor | None,
        *,
        is_tested: bool = False,
    ) -> torch.Tensor | None:
        """Those of the rows (None: all) that pass the predicate, if that is not known, and the filters."""
        rows = stop - start if chosen is None else len(chosen)
        if self.test is not None and not is_tested and rows:
            sliced = tuple(slice_column(columns[position], start, stop) for position in self.tested)
            if chosen is not None:
                sliced = tuple(take(column, chosen) for column in sliced)
            passing = select(self.test, Batch(sliced, rows, None))
            self._tests.count(rows, rows if passing is None else len(passing))
            if passing is not None:
                chosen = passing if chosen is None else chosen.index_select(0, passing)
        for use in self.filters:
            if chosen is not None and len(chosen) == 0:
                break
            if use.is_useful:
                chosen = narrow(chosen, use, slice_column(columns[use.position], start, stop))
        return chosen

    def _count(self, what: str, count: int) -> None:
        if self.metrics is not None:
            self.metrics.count(what, count)

    def _add(self, rows: ScanRows, start: int, stop: int, chosen: torch.Tensor | None) -> None:
        """The rows `chosen` of those from `start` to `stop`; None: all."""
        assert rows.unit is not None
        count = stop - start if chosen is None else len(chosen)
        if not count:
            return
        rows.found(count)
        if count > max(self.best.wanted, _FEW_ROWS):
            key = slice_column(rows.columns[self.keys[0]], start, stop)
            few = may_be_first(key if chosen is None else take(key, chosen), self.best.wanted, self.best.directions[0])
            if few is not None:
                chosen = few if chosen is None else chosen.index_select(0, few)
        where = torch.arange(start, stop) if chosen is None else chosen + start
        keys = [plain(take(rows.columns[position], where)) for position in self.keys]
        numbers = FixedColumn(pa.int64(), where + self.numbers[id(rows.unit.unit)])
        self.best.add(Batch((*keys, numbers), len(where), None), count)


@dataclass(eq=False)
class LateRows:
    """Columns of a few rows, fetched after these have been chosen.

    `numbers` (int64 [rows]) are those of the rows in the table, `starts` (ascending) of the `units`' first rows.
    """

    units: Sequence[Unit]
    starts: np.ndarray
    output: tuple[int, ...]
    numbers: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    _parts: list[tuple[np.ndarray, Batch]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def needed(self) -> list[Unit]:
        """The units that the rows are in."""
        places = np.searchsorted(self.starts, self.numbers, side="right") - 1
        return [self.units[place] for place in np.unique(places).tolist()]

    def take(self, rows: ScanRows, numbers: dict[int, int]) -> None:
        """Keep the wanted ones of them; on a worker. `numbers` are those of the units' first rows, by their ids."""
        assert rows.unit is not None
        start = numbers[id(rows.unit.unit)] + rows.piece.start
        found = np.flatnonzero((self.numbers >= start) & (self.numbers < start + rows.length))
        if not len(found):
            return
        where = torch.from_numpy(self.numbers[found] - start + rows.piece.start)
        columns = tuple(take(rows.columns[position], where) for position in self.output)
        with self._lock:
            self._parts.append((found, Batch(columns, len(found), None)))

    def taken(self) -> Batch:
        """The columns `output` of all rows, in their order."""
        order = np.empty(len(self.numbers), np.int64)
        order[np.concatenate([found for found, _ in self._parts])] = np.arange(len(self.numbers))
        return take_batch(concat_batches([batch for _, batch in self._parts]), torch.from_numpy(order))

    @property
    def nbytes(self) -> int:
        with self._lock:
            return sum(batch.nbytes for _, batch in self._parts)


def statistics_of(unit: Unit, position: int) -> list[tuple[ChunkStatistics, int]]:
    """Of the column at the scan's `position`, with the number of rows, for each row group of the unit."""
    known = unit.file.chunks(unit.columns[position]).statistics
    return [(known[group], unit.file.row_group_rows[group]) for group in unit.groups]


def best_first(units: Sequence[Unit], position: int, direction: Direction) -> list[Unit]:
    """The units with those first whose best key may be the best; in their order where nothing is known."""
    limits: list[Any] = []
    for unit in units:
        known = [statistics for statistics, _ in statistics_of(unit, position)]
        ends = [each.high if direction.descending else each.low for each in known]
        if any(end is None for end in ends):
            return list(units)
        limits.append(max(ends) if direction.descending else min(ends))
    places = sorted(range(len(units)), key=limits.__getitem__, reverse=direction.descending)
    return [units[place] for place in places]


def numbers_of(rows: Batch) -> np.ndarray:
    """int64: the rows' numbers in the table, the last column of `BestRows`."""
    numbers = rows.columns[-1]
    assert isinstance(numbers, FixedColumn)
    array: np.ndarray = numbers.values.numpy()
    return array
