"""Files through preadv in a few threads: buffered, or past the page cache with O_DIRECT."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

from pystachio.errors import Cancelled, DataError, InternalError
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRead
from pystachio.io_scheduler.os_errors import from_os_error
from pystachio.io_scheduler.request import LinkLimits, PathTaken

DIRECT_ALIGNMENT = 4096
CHUNK_BYTES = 2 << 20
WINDOW_BYTES = 16 << 20
THREADS = 4

_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""Not to block matters for a named pipe only: its open would wait for a writer, and its read is refused."""


class PosixFile:
    """Opened once, by the first thread that needs it; `direct` is what was achieved, not what was asked for."""

    def __init__(self, path: str, *, direct: bool) -> None:
        self.path = path
        self._direct = direct
        self._lock = threading.Lock()
        self._buffered_descriptor: int | None = None
        self._direct_descriptor: int | None = None

    def descriptor(self, *, direct: bool) -> tuple[int, PathTaken]:
        """A descriptor and the path that reads through it take: direct when the file can be. Raises OSError."""
        with self._lock:
            if self._direct and direct:
                if self._direct_descriptor is None:
                    self._direct_descriptor = self._open_direct()
                if self._direct_descriptor is not None:
                    return self._direct_descriptor, PathTaken.DIRECT
            if self._buffered_descriptor is None:
                self._buffered_descriptor = os.open(self.path, _OPEN_FLAGS)
            return self._buffered_descriptor, PathTaken.BUFFERED

    def close(self) -> None:
        with self._lock:
            for descriptor in (self._buffered_descriptor, self._direct_descriptor):
                if descriptor is not None:
                    os.close(descriptor)
            self._buffered_descriptor = self._direct_descriptor = None

    def _open_direct(self) -> int | None:
        try:
            return os.open(self.path, _OPEN_FLAGS | os.O_DIRECT)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            self._direct = False
            return None


class PosixDevice:
    """Starts at most `threads` threads, each when there is work for it."""

    def __init__(
        self,
        *,
        name: str = "disk",
        threads: int = THREADS,
        direct: bool = False,
        chunk_bytes: int = CHUNK_BYTES,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self.limits = LinkLimits(
            chunk_bytes=chunk_bytes, window_bytes=window_bytes, alignment=DIRECT_ALIGNMENT if direct else 1
        )
        self._name = name
        self._direct = direct
        self._most_threads = threads
        self._threads: list[threading.Thread] = []
        self._work: SimpleQueue[tuple[ChunkRead, Callable[[ChunkEnd], None]] | None] = SimpleQueue()

    def open(self, path: str) -> PosixFile:
        return PosixFile(path, direct=self._direct)

    def start(self, read: ChunkRead, ended: Callable[[ChunkEnd], None]) -> None:
        self._work.put((read, ended))
        if len(self._threads) < self._most_threads and self._work.qsize() > 0:
            name = f"posix-{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def abandon(self, read: ChunkRead) -> None:
        read.abandoned = True

    def close(self) -> None:
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _serve(self) -> None:
        while self._serve_one():
            pass

    def _serve_one(self) -> bool:
        # A function of its own, so that an idle thread keeps no destination alive.
        work = self._work.get()
        if work is None:
            return False
        read, ended = work
        end = read_chunk(read)
        # Whoever hears of the end may count the destination as his alone.
        del work, read
        ended(end)
        return True


def read_chunk(read: ChunkRead) -> ChunkEnd:
    """Read into host memory on the calling thread; every failure is in the returned record."""
    if read.abandoned:
        return ChunkEnd(0, PathTaken.BUFFERED, Cancelled("the read was given up before it began"))
    file, destination = read.file, read.destination
    if not isinstance(file, PosixFile) or not isinstance(destination, memoryview):
        return ChunkEnd(0, PathTaken.BUFFERED, InternalError("the posix device reads its own files into host memory"))
    done, path, direct = 0, PathTaken.BUFFERED, True
    try:
        while done < read.required:
            direct = direct and _is_aligned(read.offset + done, len(destination) - done)
            descriptor, path = file.descriptor(direct=direct)
            try:
                count = os.preadv(descriptor, [destination[done:]], read.offset + done)
            except OSError as error:
                # Some file systems take the flag and refuse the reads, some memory is not aligned enough for a disk.
                if path is not PathTaken.DIRECT or error.errno != errno.EINVAL:
                    raise
                direct = False
                continue
            if count == 0:
                break
            done += count
    except OSError as error:
        return ChunkEnd(done, path, from_os_error(error, file.path))
    if done < read.required:
        return ChunkEnd(done, path, _short(read, done))
    return ChunkEnd(done, path)


def _is_aligned(offset: int, length: int) -> bool:
    return offset % DIRECT_ALIGNMENT == 0 and length % DIRECT_ALIGNMENT == 0


def _short(read: ChunkRead, done: int) -> DataError:
    end = read.offset + done
    return DataError(f"the file ends before the bytes that it should hold, at byte {end:,}: {read.file.path}")
