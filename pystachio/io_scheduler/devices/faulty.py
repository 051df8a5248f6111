"""A device in front of another one that fails as real ones do, by a script or by a seeded chance."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, assert_never

from pystachio.io_scheduler.core.request import Direction, LinkLimits, PathTaken
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest, Device, DeviceFile
from pystachio.io_scheduler.devices.posix import WORK
from pystachio.io_scheduler.devices.timers import Timers
from pystachio.io_scheduler.os_errors import from_os_error


@dataclass(frozen=True, slots=True)
class Stall:
    """The chunk ends `seconds` later than it would; None: not before `FaultyDevice.release`."""

    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Slow:
    """The device needs `factor` times as long for the chunk, and meanwhile serves no other faster."""

    factor: float


@dataclass(frozen=True, slots=True)
class Fail:
    """The system reports `number`, when `after_bytes` of the chunk have moved."""

    number: int
    after_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Short:
    """The device moves only `nbytes` of the chunk and reports no error."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class Vanish:
    """The device is gone: this chunk, those inside and all that follow fail with `number`."""

    number: int = errno.ENODEV


Fault: TypeAlias = Stall | Slow | Fail | Short | Vanish

ChooseFault: TypeAlias = Callable[[int, float], Fault | None]
"""What happens to the chunk that is started as the nth (from 0) at this time."""


def scripted(faults: Mapping[int, Fault]) -> ChooseFault:
    """By the chunks' numbers in the order in which they are started."""
    return lambda number, now: faults.get(number)


def during(fault: Fault, since: float, until: float = float("inf")) -> ChooseFault:
    """For all chunks that are started in this time."""
    return lambda number, now: fault if since <= now < until else None


def by_chance(seed: int, chances: Mapping[Fault, float]) -> ChooseFault:
    """Each fault with its probability; the same seed gives the same faults to the same numbers."""
    chance = random.Random(seed)

    def choose(number: int, now: float) -> Fault | None:
        left = chance.random()
        for fault, probability in chances.items():
            left -= probability
            if left < 0.0:
                return fault
        return None

    return choose


@dataclass(slots=True, eq=False)
class _Operation:
    """`given` is what the inner device has of the chunk; None when it got nothing."""

    request: ChunkRequest
    ended: Callable[[ChunkEnd], None]
    fault: Fault | None
    started_at: float
    given: ChunkRequest | None = None


class FaultyDevice:
    """Every chunk ends exactly once, and never while the inner device still touches its buffer. `timers` give the time.

    `bytes_moved` counts what the inner device has moved.
    """

    def __init__(
        self,
        inner: Device,
        choose: ChooseFault,
        *,
        timers: Timers,
        direction: Direction = Direction.READ,
        limits: LinkLimits | None = None,
    ) -> None:
        self.limits = limits if limits is not None else inner.limits
        self.bytes_moved = 0
        self._inner = inner
        self._choose = choose
        self._timers = timers
        self._direction = direction
        self._started = 0
        self._gone: int | None = None
        self._inside: dict[int, _Operation] = {}
        self._held: list[Callable[[], None]] = []
        self._last_left_at = 0.0
        self._busy_until = 0.0

    @property
    def held(self) -> int:
        """Chunks that stall for ever."""
        return len(self._held)

    def open(self, path: str) -> DeviceFile:
        return self._inner.open(path)

    def start(self, request: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> None:
        now = self._timers.time()
        fault = self._choose(self._started, now)
        self._started += 1
        operation = _Operation(request, ended, fault, now)
        self._inside[id(request)] = operation
        match fault:
            case Vanish(number):
                self._gone = number
            case Fail(_, nbytes) | Short(nbytes):
                operation.given = _part(request, nbytes)
            case None | Stall() | Slow():
                operation.given = request
            case _:
                assert_never(fault)
        if self._gone is not None or operation.given is None:
            operation.given = None
            path = PathTaken.EMULATED
            self._timers.call_soon_threadsafe(partial(self._note_end, operation, ChunkEnd(0, path)))
        else:
            self._inner.start(operation.given, partial(self._pass_on, operation))

    def abandon(self, request: ChunkRequest) -> None:
        operation = self._inside.get(id(request))
        if operation is not None and operation.given is not None:
            self._inner.abandon(operation.given)

    def release(self) -> None:
        """Let go of what stalls for ever: it ends late."""
        held, self._held = self._held, []
        for leave in held:
            leave()

    def close(self) -> None:
        self._inner.close()

    def _pass_on(self, operation: _Operation, end: ChunkEnd) -> None:
        self._timers.call_soon_threadsafe(partial(self._note_end, operation, end))

    def _note_end(self, operation: _Operation, end: ChunkEnd) -> None:
        del self._inside[id(operation.request)]
        self.bytes_moved += end.transferred
        end = self._falsified(operation, end)
        leave = partial(operation.ended, end)
        now = self._timers.time()
        match operation.fault:
            case Stall(None):
                self._held.append(leave)
            case Stall(seconds) if seconds is not None:
                self._timers.call_at(now + seconds, leave)
            case Slow(factor):
                # The chunk has kept the device busy since the one before it left, or since it came.
                busy = now - max(operation.started_at, self._last_left_at)
                self._busy_until = max(self._busy_until, now - busy) + busy * factor
                self._timers.call_at(self._busy_until, leave)
            case _:
                leave()
        self._last_left_at = now

    def _falsified(self, operation: _Operation, end: ChunkEnd) -> ChunkEnd:
        number = self._gone
        if number is None and isinstance(operation.fault, Fail):
            number = operation.fault.number
        if number is None:
            return end
        failure = OSError(number, os.strerror(number))
        error = from_os_error(failure, operation.request.file.path, WORK[self._direction])
        return ChunkEnd(end.transferred, end.path, error)


def _part(request: ChunkRequest, nbytes: int) -> ChunkRequest | None:
    """The first bytes of the chunk, as a chunk; None for nothing."""
    if nbytes <= 0:
        return None
    return ChunkRequest(request.file, request.offset, request.buffer[:nbytes], min(nbytes, request.required))
