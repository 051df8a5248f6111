"""A slower device in front of another one, so that scheduling is measurable where the real one is too fast."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pystachio.errors import Cancelled
from pystachio.io_scheduler.core.request import LinkLimits, PathTaken
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest, Device, DeviceFile
from pystachio.io_scheduler.devices.timers import PreciseTimers, Timer, Timers, timers_of_running_loop

CHUNK_BYTES = 2 << 20
WINDOW_BYTES = 16 << 20


@dataclass(slots=True, eq=False)
class NamedFile:
    """A file of a device that moves no bytes."""

    path: str

    def close(self) -> None:
        """Nothing is open."""


@dataclass(slots=True, eq=False)
class _Operation:
    """A chunk from its arrival on. `due_at` is when it has crossed the wire, `end` what the inner device said."""

    request: ChunkRequest
    ended: Callable[[ChunkEnd], None]
    arrived_at: float
    due_at: float = 0.0
    timer: Timer | None = None
    is_due: bool = False
    end: ChunkEnd | None = None


class EmulatedDevice:
    """Chunks wait for `latency_seconds` each, and then for their turn on a wire that carries `bytes_per_second`.

    At most `depth` chunks are served at once. The wire has `parallelism` lanes of an equal part of its rate: so many
    chunks cross side by side, each the longer. Bytes come from or go to `inner`; where that is slower, it shows.
    Without an inner device no byte moves: a link whose time alone matters.

    The schedule is that of the wire: what ends late in this process, because the loop was busy, makes no later chunk
    late as long as it was there in time. Rates hold in the long run whatever the timers' precision: within 0.1 % of
    100 MB/s and 1 GB/s, within 1.1 % of 10 GB/s (two links at once on an idle uvloop, chunks of 2 MiB, no device
    behind), and a lone chunk ends 0.05 ms late in the median, 0.12 ms in the 99th percentile. `timers` are those of the
    loop that the first chunk starts on, if not given.
    """

    def __init__(
        self,
        inner: Device | None,
        *,
        bytes_per_second: float,
        latency_seconds: float = 0.0,
        depth: int = 32,
        parallelism: int = 1,
        timers: Timers | None = None,
        limits: LinkLimits | None = None,
    ) -> None:
        if limits is None:
            limits = inner.limits if inner else LinkLimits(chunk_bytes=CHUNK_BYTES, window_bytes=WINDOW_BYTES)
        self.limits = limits
        self._inner = inner
        self._lane_rate = bytes_per_second / parallelism
        self._latency_seconds = latency_seconds
        self._depth = depth
        self._lanes = [0.0] * parallelism
        self._given_timers = timers
        self._own_timers: Timers | None = None
        self._waiting: deque[_Operation] = deque()
        self._inside: dict[int, _Operation] = {}

    def open(self, path: str) -> DeviceFile:
        return self._inner.open(path) if self._inner is not None else NamedFile(path)

    def start(self, request: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> None:
        operation = _Operation(request, ended, self._timers.time())
        if len(self._inside) < self._depth:
            self._begin(operation, operation.arrived_at)
        else:
            self._waiting.append(operation)

    def abandon(self, request: ChunkRequest) -> None:
        operation = self._inside.get(id(request))
        if operation is not None:
            if operation.end is None and self._inner is not None:
                self._inner.abandon(request)
            if operation.timer is not None:
                operation.timer.cancel()
            # The wire has been promised to it and stays taken, as a disk's would.
            operation.due_at = min(operation.due_at, self._timers.time())
            self._note_due(operation)
            return
        for waiting in self._waiting:
            if waiting.request is request:
                self._waiting.remove(waiting)
                error = Cancelled("the chunk was given up before it began")
                waiting.ended(ChunkEnd(0, PathTaken.EMULATED, error))
                return

    def close(self) -> None:
        if isinstance(self._own_timers, PreciseTimers):
            self._own_timers.close()
        self._own_timers = None
        if self._inner is not None:
            self._inner.close()

    @property
    def _timers(self) -> Timers:
        if self._given_timers is not None:
            return self._given_timers
        if self._own_timers is None:
            self._own_timers = timers_of_running_loop()
        return self._own_timers

    def _begin(self, operation: _Operation, now: float) -> None:
        """Promise a lane to the chunk, which has been in front of the wire since `now`, and move its bytes."""
        request = operation.request
        self._inside[id(request)] = operation
        lane = min(range(len(self._lanes)), key=self._lanes.__getitem__)
        begins = max(now + self._latency_seconds, self._lanes[lane])
        operation.due_at = self._lanes[lane] = begins + len(request.buffer) / self._lane_rate
        operation.timer = self._timers.call_at(operation.due_at, partial(self._note_due, operation))
        if self._inner is None:
            operation.end = ChunkEnd(len(request.buffer), PathTaken.EMULATED)
        else:
            self._inner.start(request, partial(self._pass_on, operation))

    def _pass_on(self, operation: _Operation, end: ChunkEnd) -> None:
        # The inner device may end chunks on threads of its own, and the books here belong to the loop.
        self._timers.call_soon_threadsafe(partial(self._note_end, operation, end))

    def _note_due(self, operation: _Operation) -> None:
        operation.is_due = True
        # The timer knows the operation: a ring would keep the chunk's buffer.
        operation.timer = None
        if operation.end is not None:
            self._finish(operation, operation.end, operation.due_at)

    def _note_end(self, operation: _Operation, end: ChunkEnd) -> None:
        operation.end = end
        if operation.is_due:
            self._finish(operation, end, self._timers.time())

    def _finish(self, operation: _Operation, end: ChunkEnd, left_at: float) -> None:
        if self._inside.pop(id(operation.request), None) is None:
            return
        operation.ended(ChunkEnd(end.transferred, PathTaken.EMULATED, end.error))
        # One that waited takes the place at the moment that it became free, which is not the moment of this callback.
        while self._waiting and len(self._inside) < self._depth:
            waiting = self._waiting.popleft()
            self._begin(waiting, max(waiting.arrived_at, left_at))
