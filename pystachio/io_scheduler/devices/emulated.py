"""A slower device in front of another one, so that scheduling is measurable where the real one is too fast."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from pystachio.errors import Cancelled
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRead, Device, DeviceFile
from pystachio.io_scheduler.request import LinkLimits, PathTaken


class Timers(Protocol):
    """Time as an event loop has it; an asyncio loop is one, also one whose time is virtual."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], object]) -> asyncio.TimerHandle: ...

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> asyncio.Handle: ...


@dataclass(slots=True, eq=False)
class _Operation:
    read: ChunkRead
    ended: Callable[[ChunkEnd], None]
    timer: asyncio.TimerHandle | None = None
    end: ChunkEnd | None = None
    is_due: bool = False


class EmulatedDevice:
    """Serves at most `depth` chunks at once: each waits for `latency_seconds`, then for its turn on a wire that carries
    `bytes_per_second`. The bytes come from `inner`; where that is slower, it shows.
    """

    def __init__(
        self,
        inner: Device,
        *,
        bytes_per_second: float,
        latency_seconds: float = 0.0,
        depth: int = 32,
        timers: Timers,
        limits: LinkLimits | None = None,
    ) -> None:
        self.limits = limits if limits is not None else inner.limits
        self._inner = inner
        self._bytes_per_second = bytes_per_second
        self._latency_seconds = latency_seconds
        self._depth = depth
        self._timers = timers
        self._free_at = 0.0
        self._waiting: deque[_Operation] = deque()
        self._inside: dict[int, _Operation] = {}

    def open(self, path: str) -> DeviceFile:
        return self._inner.open(path)

    def start(self, read: ChunkRead, ended: Callable[[ChunkEnd], None]) -> None:
        self._waiting.append(_Operation(read, ended))
        self._begin_waiting()

    def abandon(self, read: ChunkRead) -> None:
        operation = self._inside.get(id(read))
        if operation is not None:
            if operation.end is None:
                self._inner.abandon(read)
            if operation.timer is not None:
                operation.timer.cancel()
            self._note_due(operation)
            return
        for waiting in self._waiting:
            if waiting.read is read:
                self._waiting.remove(waiting)
                error = Cancelled("the read was given up before it began")
                waiting.ended(ChunkEnd(0, PathTaken.EMULATED, error))
                return

    def close(self) -> None:
        self._inner.close()

    def _begin_waiting(self) -> None:
        while self._waiting and len(self._inside) < self._depth:
            operation = self._waiting.popleft()
            self._inside[id(operation.read)] = operation
            ready_at = self._timers.time() + self._latency_seconds
            self._free_at = max(ready_at, self._free_at) + len(operation.read.destination) / self._bytes_per_second
            operation.timer = self._timers.call_at(self._free_at, partial(self._note_due, operation))
            self._inner.start(operation.read, partial(self._pass_on, operation))

    def _pass_on(self, operation: _Operation, end: ChunkEnd) -> None:
        # The inner device may end chunks on threads of its own, and the books here belong to the loop.
        self._timers.call_soon_threadsafe(partial(self._note_end, operation, end))

    def _note_due(self, operation: _Operation) -> None:
        operation.is_due = True
        self._finish(operation)

    def _note_end(self, operation: _Operation, end: ChunkEnd) -> None:
        operation.end = end
        self._finish(operation)

    def _finish(self, operation: _Operation) -> None:
        if operation.end is None or not operation.is_due:
            return
        if self._inside.pop(id(operation.read), None) is None:
            return
        operation.ended(ChunkEnd(operation.end.transferred, PathTaken.EMULATED, operation.end.error))
        self._begin_waiting()
