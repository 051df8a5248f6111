"""Files through preadv and pwritev in threads without Python, which wait for none of its threads (native/disk.h).

As `PosixDevice` in everything that can be seen but the time: a chunk takes a tenth of the processor time, and none of
it with the interpreter's lock, for which loop and workers would wait at each of the chunk's steps.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from array import array
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Final

import numpy as np

from pystachio.compiled import CompiledLibrary
from pystachio.errors import Cancelled, InternalError, PystachioError, ResourceExhausted
from pystachio.io_scheduler.core.request import Direction, LinkLimits, PathTaken
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest, FileSeries
from pystachio.io_scheduler.devices.native import ABANDONED, END, Way
from pystachio.io_scheduler.devices.page_cache import TRIAL_BYTES, Admission
from pystachio.io_scheduler.devices.posix import (
    CHUNK_BYTES,
    CHUNK_DEVICE_SECONDS,
    DIRECT_ALIGNMENT,
    THREADS,
    WINDOW_BYTES,
    WORK,
    no_thread,
    require_name,
    stopped_short,
)
from pystachio.io_scheduler.os_errors import from_os_error

_PATHS: Final[Mapping[int, PathTaken]] = {Way.BUFFERED: PathTaken.BUFFERED, Way.DIRECT: PathTaken.DIRECT}
_ENDS_AT_ONCE = 64
_END = struct.Struct(END)

_BUSY: Final[set[CompiledDevice]] = set()
"""Devices with chunks under way. A thread that is stuck in a file server's read outlives the service and its loop, and
the memory that it writes to must do so too."""


class CompiledFile:
    """A file, or a series of files, by its handle in the library. Closed by a thread of its device."""

    def __init__(self, name: str | FileSeries, handle: int, close: Callable[[int], None]) -> None:
        self.path = str(name)
        self.handle = handle
        self._series = name if isinstance(name, FileSeries) else None
        self._close = close

    def pieces(self, offset: int, length: int) -> Iterable[tuple[str, int, int]]:
        """Path, offset and length of what is in each file."""
        if self._series is None:
            return ((self.path, offset, length),)
        found, start, end = [], 0, offset + length
        for path, nbytes in self._series.files:
            first, last = max(offset, start), min(end, start + nbytes)
            if first < last:
                found.append((path, first - start, last - first))
            start += nbytes
        return found

    def close(self) -> None:
        if self.handle:
            self._close(self.handle)
            self.handle = 0


@dataclass(slots=True, eq=False)
class _Operation:
    request: ChunkRequest
    ended: Callable[[ChunkEnd], None]


class CompiledDevice:
    """Moves chunks in one direction, and tells of their ends on `loop`; in everything else as `PosixDevice`."""

    def __init__(
        self,
        compiled: CompiledLibrary,
        loop: asyncio.AbstractEventLoop,
        *,
        direction: Direction = Direction.READ,
        threads: int = THREADS,
        direct: bool = False,
        admission: Admission | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self.limits = LinkLimits(
            chunk_bytes=chunk_bytes,
            window_bytes=window_bytes,
            alignment=DIRECT_ALIGNMENT if direct else 1,
            device_seconds=CHUNK_DEVICE_SECONDS,
        )
        self.direction = direction
        assert compiled.library is not None
        assert compiled.brief is not None
        self._library = compiled.library
        self._brief = compiled.brief
        self._loop = loop
        self._threads = threads
        self._direct = direct
        self._admission = admission
        self._disk: int | None = None
        self._wake = -1
        self._numbers = count()
        self._under_way: dict[int, _Operation] = {}
        self._ends = ctypes.create_string_buffer(_ENDS_AT_ONCE * _END.size)

    def open(self, path: str) -> CompiledFile:
        require_name(path)
        return self._opened(path, self._brief.pystachio_disk_file(os.fsencode(path), self._direct))

    def open_series(self, series: FileSeries) -> CompiledFile:
        for path, _ in series.files:
            require_name(path)
        paths = b"".join(os.fsencode(path) + b"\0" for path, _ in series.files)
        lengths = array("q", [nbytes for _, nbytes in series.files])
        address, count = lengths.buffer_info()
        return self._opened(series, self._brief.pystachio_disk_series(paths, address, count, self._direct))

    def _opened(self, name: str | FileSeries, handle: int | None) -> CompiledFile:
        if not handle:
            raise ResourceExhausted("the system has no memory for an open file", setting="memory", needed=1)
        return CompiledFile(name, handle, self._close_file)

    def start(self, request: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> None:
        file, buffer = request.file, request.buffer
        if request.abandoned:
            ended(ChunkEnd(0, PathTaken.BUFFERED, Cancelled("the chunk was given up before it began")))
            return
        reads = self.direction is Direction.READ
        if not isinstance(file, CompiledFile) or not isinstance(buffer, memoryview) or (reads and buffer.readonly):
            error = InternalError("the compiled device serves its own files and host memory")
            ended(ChunkEnd(0, PathTaken.BUFFERED, error))
            return
        disk = self._disk or self._open_disk()
        number, way = next(self._numbers), self._way(file, request.offset, buffer.nbytes)
        self._under_way[number] = _Operation(request, ended)
        _BUSY.add(self)
        failure = self._brief.pystachio_disk_start(
            disk, file.handle, number, request.offset, _address(buffer), buffer.nbytes, request.required, way
        )
        if failure:
            self._pop(number)
            raise no_thread(os.strerror(failure))

    def abandon(self, request: ChunkRequest) -> None:
        request.abandoned = True
        if self._disk is not None:
            for number, operation in tuple(self._under_way.items()):
                if operation.request is request:
                    self._brief.pystachio_disk_abandon(self._disk, number)

    def close(self) -> None:
        if self._disk is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._wake)
            self._library.pystachio_disk_close(self._disk)
            self._disk = None
            os.close(self._wake)

    def _open_disk(self) -> int:
        try:
            wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError as error:
            message = f"there is no descriptor for the disk: {error.strerror}"
            raise ResourceExhausted(message, setting="ulimit -n", needed=1) from None
        disk = self._brief.pystachio_disk_open(self._threads, self.direction is Direction.WRITE, wake)
        if not disk:
            os.close(wake)
            raise ResourceExhausted("the system has no memory for a queue of chunks", setting="memory", needed=0)
        try:
            # Perhaps not on the loop: a device may be opened, and its first chunks started, on a thread.
            self._loop.call_soon_threadsafe(self._loop.add_reader, wake, self._tell)
        except RuntimeError:  # it is closed
            self._brief.pystachio_disk_close(disk)
            os.close(wake)
            raise
        self._disk, self._wake = disk, wake
        return int(disk)

    def _way(self, file: CompiledFile, offset: int, length: int) -> Way:
        """Of a chunk of several files, all go the same way."""
        if not self._direct:
            return Way.BUFFERED
        admission = self._admission
        if admission is None:
            return Way.DIRECT
        around = all(admission.may_go_around(path, at) for path, at, _ in file.pieces(offset, length))
        return Way.SPARING if around else Way.BUFFERED

    def _close_file(self, handle: int) -> None:
        library = self._library if self._disk is None else self._brief
        library.pystachio_disk_close_file(self._disk, handle)

    def _tell(self) -> None:
        """Tell of all chunks that have ended."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        found = _ENDS_AT_ONCE
        while found == _ENDS_AT_ONCE and self._disk is not None:
            found = self._brief.pystachio_disk_ended(self._disk, self._ends, _ENDS_AT_ONCE)
            for number, transferred, seconds, error, way in _END.iter_unpack(self._ends.raw[: found * _END.size]):
                operation = self._pop(number)
                end, ended = self._end(operation, transferred, seconds, error, way), operation.ended
                # Whoever hears of the end may count the buffer as his alone.
                del operation
                try:
                    ended(end)
                except Exception as failure:  # a defect, but the others have ended too
                    message = "a chunk's end was not taken"
                    self._loop.call_exception_handler({"message": message, "exception": failure})

    def _pop(self, number: int) -> _Operation:
        operation = self._under_way.pop(number)
        if not self._under_way:
            _BUSY.discard(self)
        return operation

    def _end(self, operation: _Operation, transferred: int, seconds: float, error: int, way: int) -> ChunkEnd:
        request, file, taken = operation.request, operation.request.file, _PATHS[way]
        if error:
            return ChunkEnd(transferred, taken, _typed(error, file.path, self.direction))
        wanted = request.buffer.nbytes if self.direction is Direction.WRITE else request.required
        if transferred < wanted:
            return ChunkEnd(transferred, taken, stopped_short(file.path, request.offset + transferred, self.direction))
        if self._admission is not None and way == Way.DIRECT and isinstance(file, CompiledFile):
            longest = 0
            for path, offset, length in file.pieces(request.offset, transferred):
                self._admission.note_around(path, offset, length)
                longest = max(longest, length)
            if longest >= TRIAL_BYTES:  # small files are opened for longer than they are read
                self._admission.note_direct(transferred, seconds)
        return ChunkEnd(transferred, taken)


def _typed(number: int, path: str, direction: Direction) -> PystachioError:
    if number == ABANDONED:
        return Cancelled("the chunk was given up before it began")
    return from_os_error(OSError(number, os.strerror(number)), path, WORK[direction])


def _address(buffer: memoryview) -> int | None:
    return np.frombuffer(buffer, np.uint8).__array_interface__["data"][0] if buffer.nbytes else None
