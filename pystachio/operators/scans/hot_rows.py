"""Rows of a scan that are in memory, for workers to take from."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pystachio.operators.batch import Batch
from pystachio.operators.hot_columns import HotUnit, HotUnits
from pystachio.operators.scans.pace import Pace
from pystachio.operators.scans.rows import Piece, RowReader, ScanRows, UnitRows
from pystachio.operators.scans.units import Unit
from pystachio.operators.small import are_small, is_light

_SMALL_SCAN_ROWS: Final = 1 << 12


class HotRows:
    """Rows for all workers to take from, as many at once as `pace` says."""

    def __init__(self, workers: int, pace: Pace) -> None:
        self._workers = workers
        self._pace = pace
        self._lock = threading.Lock()
        self._waiting: deque[ScanRows | HotUnit] = deque()
        self._rows = 0
        self._reader: RowReader | None = None

    @staticmethod
    def of_all(reader: RowReader, units: HotUnits, workers: int, order: Sequence[Unit] = ()) -> HotRows:
        """All rows of the units; in this `order`, if there is one."""
        rows = HotRows(workers, reader.pace)
        rows._reader = reader
        if order:
            by_unit = {id(hot.unit): hot for hot in units.units}
            rows._waiting.extend([by_unit[id(unit)] for unit in order])
        else:
            rows._waiting.extend(units.units)
        rows._rows = units.rows
        return rows

    @property
    def is_empty(self) -> bool:
        return self._rows == 0

    @property
    def length(self) -> int:
        """Rows that nobody has taken."""
        return self._rows

    @property
    def jobs(self) -> int:
        """How many jobs they are worth."""
        return self._pace.jobs_for(self._rows)

    @property
    def is_small(self) -> bool:
        """Whether it takes no longer to test them and go through them than to send them to a worker and back."""
        if not self._pace.is_brief(self._rows) and (
            self._rows > _SMALL_SCAN_ROWS
            or not are_small(column for rows in self._waiting for column in rows.columns.values())
        ):
            return False
        return self._reader is None or self._reader.predicate is None or is_light((self._reader.predicate,))

    def add(self, rows: ScanRows) -> None:
        """Untested rows of a unit; in the order of the file."""
        with self._lock:
            self._reader = rows.reader
            self._waiting.append(rows)
            self._rows += rows.length

    def take(self) -> list[ScanRows]:
        """The next ones for a worker; none when all are taken."""
        taken: list[ScanRows] = []
        with self._lock:
            waiting, reader = self._waiting, self._reader
            if not waiting or reader is None:
                return taken
            least = self._pace.least_rows
            left = self._pace.turn(self._rows, self._workers, narrows=reader.narrows)
            while left > 0 and waiting:
                rows = waiting.popleft()
                if isinstance(rows, HotUnit):
                    rows = _all_of(reader, rows)
                length = rows.piece.stop - rows.piece.start
                if length > left + least:
                    rows, rest = rows.split(left)
                    waiting.appendleft(rest)
                    length = left
                taken.append(rows)
                left -= length
                self._rows -= length
        return taken

    def took(self, taken: Sequence[ScanRows], seconds: float) -> None:
        """Going through what was taken has taken a worker so many seconds of processor time."""
        self._pace.note(sum([rows.piece.stop - rows.piece.start for rows in taken]), seconds)


def _all_of(reader: RowReader, hot: HotUnit) -> ScanRows:
    whole = Piece(0, hot.unit.rows, None)
    return ScanRows(reader, hot.columns, whole, is_tested=False, unit=UnitRows(reader, hot.unit, hot.columns), hot=hot)


def gathered(rows: Iterable[Batch | ScanRows | HotRows]) -> Iterator[Batch]:
    """Everything as batches."""
    for part in rows:
        if isinstance(part, HotRows):
            while taken := part.take():
                yield from gathered(taken)
        elif isinstance(part, ScanRows):
            yield from part.batches()
        else:
            yield part
