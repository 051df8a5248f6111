"""Files through preadv and pwritev in a few threads: by way of the page cache, or around it with O_DIRECT."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue

from pystachio.errors import Cancelled, DataError, InternalError, InvalidRequest, ResourceExhausted
from pystachio.io_scheduler.core.request import Direction, LinkLimits, PathTaken
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest
from pystachio.io_scheduler.devices.page_cache import Admission
from pystachio.io_scheduler.os_errors import Work, from_os_error

DIRECT_ALIGNMENT = 4096
CHUNK_BYTES = 2 << 20
WINDOW_BYTES = 16 << 20
CHUNK_DEVICE_SECONDS = 0.002
"""More than usual, while nobody urgent is expected: each chunk takes some 0.1 ms of processor time."""
THREADS = 4

PRIVATE = 0o600
"""The mode of files that are created: what is spilled is as secret as what was read."""

OPEN_FLAGS = {
    Direction.READ: os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK,
    Direction.WRITE: os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK,
}
"""Not to block matters for a named pipe only: its open would wait for the other end, and moving its bytes is refused.

A file that is written is not emptied: it is opened anew whenever transfers come after a pause.
"""

WORK: dict[Direction, Work] = {Direction.READ: "read", Direction.WRITE: "written"}


class PosixFile:
    """Opened once, by the first thread that needs it; `direct` is what was achieved, not what was asked for.

    `admission` decides which aligned reads of a direct file are direct; without it all are.

    `close_descriptor` may close later, on a thread: a close can wait for a file server, or free a large removed file.
    """

    def __init__(
        self,
        path: str,
        *,
        direct: bool,
        direction: Direction = Direction.READ,
        admission: Admission | None = None,
        close_descriptor: Callable[[int], object] = os.close,
    ) -> None:
        self.path = path
        self.admission = admission
        self.direction = direction
        self._direct = direct
        self._close_descriptor = close_descriptor
        self._lock = threading.Lock()
        self._buffered_descriptor: int | None = None
        self._direct_descriptor: int | None = None

    def descriptor(self, *, direct: bool) -> tuple[int, PathTaken]:
        """A descriptor and the path that bytes take through it: direct when the file can be. Raises OSError."""
        with self._lock:
            if self._direct and direct:
                if self._direct_descriptor is None:
                    self._direct_descriptor = self._open_direct()
                if self._direct_descriptor is not None:
                    return self._direct_descriptor, PathTaken.DIRECT
            if self._buffered_descriptor is None:
                self._buffered_descriptor = os.open(self.path, OPEN_FLAGS[self.direction], PRIVATE)
            return self._buffered_descriptor, PathTaken.BUFFERED

    def goes_around(self, offset: int, length: int) -> bool:
        """Whether an aligned read is to be direct, as far as the file can be. Raises OSError."""
        if self.admission is None:
            return True
        descriptor, path = self.descriptor(direct=True)
        return path is PathTaken.DIRECT and self.admission.goes_around(self.path, descriptor, offset, length)

    def close(self) -> None:
        with self._lock:
            for descriptor in (self._buffered_descriptor, self._direct_descriptor):
                if descriptor is not None:
                    self._close_descriptor(descriptor)
            self._buffered_descriptor = self._direct_descriptor = None

    def _open_direct(self) -> int | None:
        try:
            return os.open(self.path, OPEN_FLAGS[self.direction] | os.O_DIRECT, PRIVATE)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            self._direct = False
            return None


class PosixDevice:
    """Moves chunks in one direction; starts at most `threads` threads, each when there is work for it.

    With `direct` chunks go around the page cache; with `admission`, those that it decides on.

    A write has ended when the system has taken its bytes. With `direct` they are with the disk by then, and its errors
    are known; otherwise a later failure to write the page cache back is not heard of.
    """

    def __init__(
        self,
        *,
        name: str = "disk",
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
        self._name = name
        self._direct = direct
        self._admission = admission
        self._most_threads = threads
        self._threads: list[threading.Thread] = []
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()

    def open(self, path: str) -> PosixFile:
        require_name(path)
        return PosixFile(
            path,
            direct=self._direct,
            direction=self.direction,
            admission=self._admission,
            close_descriptor=self._close_later,
        )

    def start(self, request: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> None:
        if not self._threads:
            # Before the job is there: one that no thread will do must not be taken.
            self._start_thread()
        self._jobs.put(partial(_serve, request, ended))
        if len(self._threads) < self._most_threads and self._jobs.qsize() > 0:
            with suppress(ResourceExhausted):  # Those that run will do it.
                self._start_thread()

    def _start_thread(self) -> None:
        name = f"posix-{self._name}-{self.direction}-{len(self._threads)}"
        thread = threading.Thread(target=self._run_jobs, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise no_thread(str(error)) from None
        self._threads.append(thread)

    def abandon(self, request: ChunkRequest) -> None:
        request.abandoned = True

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _close_later(self, descriptor: int) -> None:
        self._jobs.put(partial(_close, descriptor))

    def _run_jobs(self) -> None:
        while self._run_one_job():
            pass

    def _run_one_job(self) -> bool:
        # A function of its own, so that an idle thread keeps no buffer alive.
        job = self._jobs.get()
        if job is None:
            return False
        tell = job()
        # Whoever hears of the end may count the buffer as his alone.
        del job
        if tell is not None:
            tell()
        return True


_Job = Callable[[], "Callable[[], None] | None"]
"""What is returned is called when the job's references are gone."""


def _serve(request: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> Callable[[], None]:
    return partial(ended, move_chunk(request))


def _close(descriptor: int) -> None:
    with suppress(OSError):  # The descriptor is free all the same.
        os.close(descriptor)


def move_chunk(request: ChunkRequest) -> ChunkEnd:
    """Move between the file and host memory on the calling thread; every failure is in the returned record."""
    file, buffer = request.file, request.buffer
    if request.abandoned:
        return ChunkEnd(0, PathTaken.BUFFERED, Cancelled("the chunk was given up before it began"))
    if not isinstance(file, PosixFile) or not isinstance(buffer, memoryview):
        return ChunkEnd(0, PathTaken.BUFFERED, InternalError("the posix device serves its own files and host memory"))
    writes = file.direction is Direction.WRITE
    move = os.pwritev if writes else os.preadv
    wanted = len(buffer) if writes else request.required
    done, path, started = 0, PathTaken.BUFFERED, time.perf_counter()
    try:
        direct = _is_aligned(request.offset, len(buffer)) and file.goes_around(request.offset, len(buffer))
        while done < wanted:
            direct = direct and _is_aligned(request.offset + done, len(buffer) - done)
            descriptor, path = file.descriptor(direct=direct)
            try:
                count = move(descriptor, [buffer[done:]], request.offset + done)
            except OSError as error:
                # Some file systems take the flag and refuse the transfer; some memory is not aligned enough for a disk.
                if path is not PathTaken.DIRECT or error.errno != errno.EINVAL:
                    raise
                direct = False
                continue
            if count == 0:
                break
            done += count
    except OSError as error:
        return ChunkEnd(done, path, from_os_error(error, file.path, WORK[file.direction]))
    if done < wanted:
        return ChunkEnd(done, path, stopped_short(file.path, request.offset + done, file.direction))
    if file.admission is not None and path is PathTaken.DIRECT:
        file.admission.note_direct(done, time.perf_counter() - started)
    return ChunkEnd(done, path)


def _is_aligned(offset: int, length: int) -> bool:
    return offset % DIRECT_ALIGNMENT == 0 and length % DIRECT_ALIGNMENT == 0


def no_thread(reason: str) -> ResourceExhausted:
    """The error of a disk for which the system has no thread at all."""
    hint = "allow the user more threads, or the process more memory"
    return ResourceExhausted(f"there is no thread for the disk: {reason}", setting="ulimit -u", needed=1, hint=hint)


def require_name(path: str) -> None:
    """InvalidRequest for what the system would take for a shorter name."""
    if "\0" in path:
        raise InvalidRequest(f"no file has a zero byte in its name: {path!r}")


def stopped_short(path: str, at: int, direction: Direction) -> DataError:
    """The error of a file that gave or took no more bytes from offset `at` on."""
    if direction is Direction.WRITE:
        return DataError(f"the file took no more bytes, at byte {at:,}: {path}")
    return DataError(f"the file ends before the bytes that it should hold, at byte {at:,}: {path}")
