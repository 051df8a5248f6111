"""Which reads take the way by the system's page cache.

A read by way of the cache takes two copies' worth of memory and several times the processor time of one around it, so
bytes that are read once are read around it. What is there already is taken from there, and what is read a second time
is put there: whoever asks again has not kept it. On a slow disk every byte goes through the cache, which the next
process will be glad of; whether it is slow still is tried now and then, since others may have kept it busy.

The system tells a process what of a file is cached since Linux 6.5, by now only of files that it owns or may write.
Where it does not tell, everything goes through the cache.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from collections.abc import Callable
from typing import Final

SLOW_RATE: Final = 200e6
"""Bytes per second of one chunk among others. Above it, reading again costs about what copying costs."""
_TRIALS: Final = 8
TRIAL_BYTES: Final = 128 << 10
RETRIAL_SECONDS: Final = 10.0
"""So long a disk counts as slow before chunks are read around the cache again to see."""
_GRANULE_BYTES: Final = 256 << 10
_MOST_REMEMBERED: Final = 1 << 16

_CACHESTAT: Final = 451
"""The number of the system call, the same on all architectures; since Linux 6.5."""


class _Range(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _Pages(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "under_write_back", "evicted", "evicted_lately")
    ]


_C = ctypes.CDLL(None)


def cached_bytes(descriptor: int, offset: int, length: int) -> int | None:
    """How much of the range is in the page cache, in whole pages; None where the system does not say."""
    pages = _Pages()
    where = _Range(offset, length)
    if _C.syscall(_CACHESTAT, descriptor, ctypes.byref(where), ctypes.byref(pages), 0) != 0:
        return None
    return int(pages.cached) * mmap.PAGESIZE


class Admission:
    """Decides for the chunks of one disk. For several threads.

    `cached` is as `cached_bytes`, `now` a clock in seconds.
    """

    def __init__(
        self,
        *,
        cached: Callable[[int, int, int], int | None] = cached_bytes,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cached = cached
        self._now = now
        self._slow_until: float | None = None
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, int], None] = {}
        self._trials = 0
        self._best_rate = 0.0

    @property
    def disk_is_slow(self) -> bool:
        with self._lock:
            return self._is_slow()

    def _is_slow(self) -> bool:
        if self._slow_until is not None and self._now() >= self._slow_until:
            self._slow_until, self._trials, self._best_rate = None, 0, 0.0
        return self._slow_until is not None

    def goes_around(self, path: str, descriptor: int, offset: int, length: int) -> bool:
        """Whether this chunk of the open file is to be read around the page cache."""
        if not self.may_go_around(path, offset):
            return False
        cached = self._cached(descriptor, offset, length)
        if cached is None or 2 * cached >= length:
            return False
        self.note_around(path, offset, length)
        return True

    def may_go_around(self, path: str, offset: int) -> bool:
        """Whether a chunk of the file is to be read around the page cache if less than half of it is there."""
        with self._lock:
            return not self._is_slow() and (path, offset // _GRANULE_BYTES) not in self._seen

    def note_around(self, path: str, offset: int, length: int) -> None:
        """The chunk is read around the page cache: the next time it is not, nor is what begins inside it."""
        with self._lock:
            for granule in range(offset // _GRANULE_BYTES, -(-(offset + length) // _GRANULE_BYTES)):
                if len(self._seen) >= _MOST_REMEMBERED:
                    del self._seen[next(iter(self._seen))]
                self._seen[path, granule] = None

    def note_direct(self, length: int, seconds: float) -> None:
        """A chunk was read around the cache: tells how quick the disk is."""
        if length >= TRIAL_BYTES:
            with self._lock:
                self._trials += 1
                self._best_rate = max(self._best_rate, length / max(seconds, 1e-9))
                if self._best_rate >= SLOW_RATE:
                    self._slow_until = None
                elif self._trials >= _TRIALS and self._slow_until is None:
                    self._slow_until = self._now() + RETRIAL_SECONDS
