"""What of a scan is read, ready for workers, and left to put out. All but `Left` belong to the loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from pystachio.operators.scans.hot_rows import HotRows
from pystachio.operators.scans.rows import ScanRows

T = TypeVar("T")


class Left:
    """What of a scan is not put out yet. Whoever puts out the last of it, on a worker, ends the stages behind it."""

    def __init__(self, units: int, hot: Sequence[HotRows] = ()) -> None:
        """`units` that may yet become hot, and what is `hot` already."""
        self._lock = threading.Lock()
        self._units = units
        self._hot = list(hot)
        self._jobs = 0
        self._told = False

    def became_hot(self, rows: HotRows) -> None:
        """A unit is among `rows`, to be put out by jobs that take from them."""
        with self._lock:
            self._units -= 1
            if not self._hot or self._hot[-1] is not rows:
                self._hot.append(rows)

    def job_began(self) -> None:
        with self._lock:
            self._jobs += 1

    def job_ended(self) -> bool:
        """A job has taken from hot rows what there was; True when nothing is left."""
        with self._lock:
            self._jobs -= 1
            return self._tell()

    def unit_ended(self) -> bool:
        """A unit that is not hot is done with; True when nothing is left."""
        with self._lock:
            self._units -= 1
            return self._tell()

    def _tell(self) -> bool:
        """Whether nothing is left: once, because a job may begin after the last rows were taken."""
        if self._told or self._units or self._jobs or not all(rows.is_empty for rows in self._hot):
            return False
        self._told = True
        return True


class Ready(Generic[T]):
    """What may be worked on, in order: a unit is for one taker, rows in memory for as many as there is work for."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._waiting: deque[T | HotRows] = deque()
        self._hot_jobs = 0
        self._changed = asyncio.Event()
        self._closed = False

    def put(self, unit: T) -> None:
        self._waiting.append(unit)
        self._changed.set()

    def put_hot(self, rows: ScanRows) -> HotRows:
        """Together with those before, if nothing else came between."""
        last = self._waiting[-1] if self._waiting else None
        if not isinstance(last, HotRows):
            last = HotRows(self._workers, rows.reader.pace)
            self._waiting.append(last)
        last.add(rows)
        self._changed.set()
        return last

    def close(self) -> None:
        """There is nothing more to come."""
        self._closed = True
        self._changed.set()

    @property
    def is_complete(self) -> bool:
        """All that there is has come, and waits together."""
        return self._closed and len(self._waiting) == 1

    def hot_job_ended(self) -> None:
        """Whoever took hot rows has finished."""
        self._hot_jobs -= 1
        self._changed.set()

    async def take(self) -> T | HotRows | None:
        """The next one; None at the end."""
        while self._waiting or not self._closed:
            first = self._waiting[0] if self._waiting else None
            if isinstance(first, HotRows):
                if first.is_empty:
                    self._waiting.popleft()
                    continue
                if self._hot_jobs < min(self._workers, first.jobs):
                    self._hot_jobs += 1
                    return first
                read = next((each for each in self._waiting if not isinstance(each, HotRows)), None)
                if read is not None:
                    self._waiting.remove(read)
                    return read
            elif first is not None:
                self._waiting.popleft()
                return first
            self._changed.clear()
            await self._changed.wait()
        return None


class Window:
    """Units that are read and not yet taken up; one task enters, others leave."""

    def __init__(self, most_bytes: int, units: int) -> None:
        self._most_bytes = most_bytes
        self._least_units = units
        self._bytes = 0
        self._units = 0
        self._left = asyncio.Event()

    async def enter(self, nbytes: int) -> None:
        """Waits until there is room in bytes or in units."""
        while self._units >= self._least_units and self._bytes + nbytes > self._most_bytes:
            self._left.clear()
            await self._left.wait()
        self._bytes += nbytes
        self._units += 1

    def leave(self, nbytes: int) -> None:
        self._bytes -= nbytes
        self._units -= 1
        self._left.set()
