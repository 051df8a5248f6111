"""Files through kvikio: straight into GPU memory (cuFile, GPUDirect Storage), or by its own threads into host memory.

kvikio needs a CUDA driver even for host memory, so it is imported only where `driver_is_loadable`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from time import sleep
from typing import Any

from pystachio.errors import Cancelled, DataError, InternalError, PystachioError, Unsupported
from pystachio.io_scheduler.core.request import Direction, LinkLimits, PathTaken
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest
from pystachio.io_scheduler.devices.posix import OPEN_FLAGS, PRIVATE, WORK, stopped_short
from pystachio.io_scheduler.os_errors import from_os_error

CHUNK_BYTES = 2 << 20
WINDOW_BYTES = 16 << 20
THREADS = 4
SWEEP_SECONDS = 0.0002

GDS_STATISTICS = Path("/proc/driver/nvidia-fs/stats")
"""There when the kernel module is, without which cuFile itself copies through host memory."""

_KVIKIO_FLAGS = {Direction.READ: "r", Direction.WRITE: "r+"}
"""Its flag for writing, "w", empties the file."""

_NUMBER_BY_TEXT = {os.strerror(number): number for number in errno.errorcode}


def driver_is_loadable() -> bool:
    """Whether there is a CUDA driver library. Loading it initialises nothing."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def load_kvikio() -> Any:
    """kvikio, set up for this engine. Raises Unsupported where it cannot move a byte."""
    if not driver_is_loadable():
        raise Unsupported("the nvme device without a CUDA driver", hint="the posix device reads everywhere")
    # One pool for all disks lets a slow one block the others; the variable is read once, at the import.
    os.environ.setdefault("KVIKIO_THREAD_POOL_PER_BLOCK_DEVICE", "1")
    try:
        kvikio = import_module("kvikio")
        import_module("kvikio.defaults").set("num_threads", THREADS)
    except (ImportError, OSError, RuntimeError) as error:
        raise Unsupported("the nvme device without kvikio", hint="pip install kvikio-cu13") from error
    return kvikio


@dataclass(frozen=True, slots=True)
class KvikioReport:
    """What `doctor` says about kvikio. `version` is None when it is not installed."""

    version: str | None
    driver: bool
    gds: bool


def kvikio_report() -> KvikioReport:
    """Import kvikio where it is installed and ask it; slow (0.2 s), for reports only."""
    try:
        kvikio = import_module("kvikio")
    except (ImportError, OSError):
        return KvikioReport(None, driver_is_loadable(), gds=False)
    driver = driver_is_loadable()
    return KvikioReport(str(kvikio.__version__), driver, gds=driver and _uses_gds())


def _uses_gds() -> bool:
    return GDS_STATISTICS.exists() and not import_module("kvikio.defaults").is_compat_mode_preferred()


class NvmeFile:
    """Opened by the device's thread at the first chunk, and closed there (`later`): both can wait for a server."""

    def __init__(
        self, path: str, kvikio: Any, *, direction: Direction, later: Callable[[Callable[[], object]], None]
    ) -> None:
        self.path = path
        self.direction = direction
        self._kvikio = kvikio
        self._later = later
        self._handle: Any = None
        self._size = 0

    def handle(self) -> Any:
        """kvikio's handle. Raises OSError as the system gives it, which kvikio would turn into text."""
        if self._handle is None:
            descriptor = os.open(self.path, OPEN_FLAGS[self.direction], PRIVATE)
            try:
                if self.direction is Direction.READ:
                    self._size = os.fstat(descriptor).st_size
                    # A directory opens, and reads of it fail with EISDIR.
                    os.pread(descriptor, 0, 0)
            finally:
                os.close(descriptor)
            self._handle = self._kvikio.CuFile(self.path, _KVIKIO_FLAGS[self.direction])
        return self._handle

    def begin(self, request: ChunkRequest) -> Any:
        """kvikio's future for the bytes of the chunk. Raises OSError, DataError for a file that ends early."""
        handle, length = self.handle(), len(request.buffer)
        if self.direction is Direction.WRITE:
            return handle.pwrite(request.buffer, length, request.offset, max(length, 1))
        # kvikio reports the end of a file as an error without a number.
        length = max(0, min(length, self._size - request.offset))
        if length < request.required:
            raise stopped_short(self.path, request.offset + length, self.direction)
        return handle.pread(request.buffer[:length], length, request.offset, max(length, 1))

    def close(self) -> None:
        if self._handle is not None:
            self._later(partial(_close, self._handle))
            self._handle = None


@dataclass(slots=True, eq=False)
class _Operation:
    """A chunk inside kvikio, whose future keeps neither its buffer nor its file alive: this does."""

    request: ChunkRequest
    file: NvmeFile
    ended: Callable[[ChunkEnd], None]
    future: Any
    path: PathTaken


class NvmeDevice:
    """One thread opens files, starts chunks and sweeps over what kvikio has ended; kvikio's own threads move bytes.

    kvikio offers only `done()` and a blocking `get()`. Measured with the stand-in driver, warm files, 8 chunks
    inside, 2 busy cores, in chunks per second (CPU per chunk, microseconds):

        chunk    this sweep   one sweep for 4 disks   thread waiting for the oldest   8 waiting threads   preadv
        64 KiB   18,900 (40)       20,100 (35)                29,300 (43)               31,900 (45)     80,600 (13)
        256 KiB  19,500 (43)                                  21,800 (56)
        2 MiB     4,040 (241)       4,150 (234)                3,570 (272)               3,960 (286)     4,690 (212)

    A thread that waits for the oldest chunk would be faster for small chunks, but says nothing of the others while one
    is stuck, and a sweep shared by several disks waits with all of them while one opens a file. Chunks have 256 KiB or
    more, and there the sweep is as fast. It sleeps between sweeps only while something is under way.
    """

    def __init__(
        self,
        *,
        name: str = "disk",
        direction: Direction = Direction.READ,
        chunk_bytes: int = CHUNK_BYTES,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        """Imports kvikio, which takes 0.2 s the first time. Raises Unsupported where it cannot work."""
        self.limits = LinkLimits(chunk_bytes=chunk_bytes, window_bytes=window_bytes)
        self.direction = direction
        self._kvikio = load_kvikio()
        self._gds_bytes = int(self._kvikio.defaults.get("gds_threshold")) if _uses_gds() else None
        self._name = name
        self._thread: threading.Thread | None = None
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._under_way: deque[_Operation] = deque()

    def open(self, path: str) -> NvmeFile:
        return NvmeFile(path, self._kvikio, direction=self.direction, later=self._jobs.put)

    def start(self, request: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name=f"nvme-{self._name}-{self.direction}", daemon=True)
            thread.start()
            self._thread = thread
        self._jobs.put(partial(self._begin, request, ended))

    def abandon(self, request: ChunkRequest) -> None:
        request.abandoned = True

    def close(self) -> None:
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _serve(self) -> None:
        while self._do_jobs():
            _sweep(self._under_way)
            if self._under_way:
                sleep(SWEEP_SECONDS)

    def _do_jobs(self) -> bool:
        """Do all jobs that wait, or wait for one when nothing is under way; False when the device is closed."""
        try:
            job = self._jobs.get(block=not self._under_way)
            while job is not None:
                job()
                # An idle thread keeps no buffer alive.
                del job
                job = self._jobs.get(block=False)
        except Empty:
            return True
        return False

    def _begin(self, request: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> None:
        path, file = self._path(request), request.file
        error: PystachioError
        if request.abandoned:
            error = Cancelled("the chunk was given up before it began")
        elif not isinstance(file, NvmeFile):
            error = InternalError("the nvme device serves its own files")
        else:
            try:
                self._under_way.append(_Operation(request, file, ended, file.begin(request), path))
                return
            except Exception as failure:
                error = _typed(failure, file)
        ended(ChunkEnd(0, path, error))

    def _path(self, request: ChunkRequest) -> PathTaken:
        if self._gds_bytes is None or isinstance(request.buffer, memoryview):
            return PathTaken.KVIKIO_POSIX
        # kvikio copies what is smaller through host memory.
        return PathTaken.GDS if len(request.buffer) >= self._gds_bytes else PathTaken.KVIKIO_POSIX


def _close(handle: Any) -> None:
    # What was read or written is with its reader or the system; nobody waits for this.
    with suppress(OSError, RuntimeError):
        handle.close()


def _sweep(under_way: deque[_Operation]) -> None:
    """Take out what kvikio has done, and end it."""
    for _ in range(len(under_way)):
        operation = under_way.popleft()
        if not operation.future.done():
            under_way.append(operation)
            continue
        end, ended = _outcome(operation), operation.ended
        # Whoever hears of the end may count the buffer as his alone.
        del operation
        ended(end)


def _outcome(operation: _Operation) -> ChunkEnd:
    request, file = operation.request, operation.file
    try:
        transferred = int(operation.future.get())
    except Exception as error:
        return ChunkEnd(0, operation.path, _typed(error, file))
    if transferred < (len(request.buffer) if file.direction is Direction.WRITE else request.required):
        short = stopped_short(file.path, request.offset + transferred, file.direction)
        return ChunkEnd(transferred, operation.path, short)
    return ChunkEnd(transferred, operation.path)


def _typed(error: Exception, file: NvmeFile) -> PystachioError:
    if isinstance(error, PystachioError):
        # Without the traceback, whose frames would keep the chunk's buffer.
        return error.with_traceback(None)
    if isinstance(error, OSError):
        return from_os_error(error, file.path, WORK[file.direction])
    # kvikio puts the system's words at the end of its own.
    number = _NUMBER_BY_TEXT.get(str(error).rpartition(": ")[2])
    if number is not None:
        typed = from_os_error(OSError(number, os.strerror(number)), file.path, WORK[file.direction])
    else:
        typed = DataError(f"kvikio could not move the bytes of the file ({error}): {file.path}")
    typed.__cause__ = error.with_traceback(None)
    return typed
