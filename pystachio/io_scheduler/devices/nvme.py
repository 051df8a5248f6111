"""Files through kvikio: straight into GPU memory (cuFile, GPUDirect Storage), or by its own threads into host memory.

kvikio needs a CUDA driver even for host memory, so it is imported only where `driver_is_loadable`.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from queue import Empty, SimpleQueue
from time import sleep
from typing import Any

from pystachio.errors import Cancelled, DataError, InternalError, Unsupported
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRead, DeviceFile
from pystachio.io_scheduler.os_errors import from_os_error
from pystachio.io_scheduler.request import LinkLimits, PathTaken

CHUNK_BYTES = 2 << 20
WINDOW_BYTES = 16 << 20
THREADS = 4
SWEEP_SECONDS = 0.0002


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
    gds = driver and not import_module("kvikio.defaults").is_compat_mode_preferred()
    return KvikioReport(str(kvikio.__version__), driver, gds)


class NvmeFile:
    """Opened by the device's thread at the first chunk."""

    def __init__(self, path: str, kvikio: Any) -> None:
        self.path = path
        self._kvikio = kvikio
        self._handle: Any = None
        self.size = 0

    def handle(self) -> Any:
        """kvikio's handle. Raises OSError as the system gives it, which kvikio would turn into text."""
        if self._handle is None:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self.size = os.fstat(descriptor).st_size
                # A directory opens, and reads of it fail with EISDIR.
                os.pread(descriptor, 0, 0)
            finally:
                os.close(descriptor)
            self._handle = self._kvikio.CuFile(self.path, "r")
        return self._handle

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None


@dataclass(slots=True, eq=False)
class _Operation:
    """A read inside kvikio, whose future keeps neither its buffer nor its file alive: this does."""

    read: ChunkRead
    ended: Callable[[ChunkEnd], None]
    future: Any
    path: PathTaken


class NvmeDevice:
    """One thread opens files, starts reads and sweeps over what kvikio has ended; kvikio's own threads move bytes.

    kvikio offers only `done()` and a blocking `get()`: a sweep serves five times as many reads per second as waiting
    for each in a thread. The thread sleeps between sweeps only while something is under way.
    """

    def __init__(self, *, name: str = "disk", chunk_bytes: int = CHUNK_BYTES, window_bytes: int = WINDOW_BYTES) -> None:
        self.limits = LinkLimits(chunk_bytes=chunk_bytes, window_bytes=window_bytes)
        self._kvikio = load_kvikio()
        self._gds = not import_module("kvikio.defaults").is_compat_mode_preferred()
        self._name = name
        self._thread: threading.Thread | None = None
        self._work: SimpleQueue[tuple[ChunkRead, Callable[[ChunkEnd], None]] | None] = SimpleQueue()

    def open(self, path: str) -> NvmeFile:
        return NvmeFile(path, self._kvikio)

    def start(self, read: ChunkRead, ended: Callable[[ChunkEnd], None]) -> None:
        self._work.put((read, ended))
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=f"nvme-{self._name}", daemon=True)
            self._thread.start()

    def abandon(self, read: ChunkRead) -> None:
        read.abandoned = True

    def close(self) -> None:
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None

    def _serve(self) -> None:
        under_way: deque[_Operation] = deque()
        while self._begin(under_way):
            _sweep(under_way)
            if under_way:
                sleep(SWEEP_SECONDS)

    def _begin(self, under_way: deque[_Operation]) -> bool:
        """Start all reads that wait, or wait for one when nothing is under way; False when the device is closed."""
        try:
            work = self._work.get(block=not under_way)
            while work is not None:
                operation = self._start(*work)
                if operation is not None:
                    under_way.append(operation)
                work = self._work.get(block=False)
        except Empty:
            return True
        return False

    def _start(self, read: ChunkRead, ended: Callable[[ChunkEnd], None]) -> _Operation | None:
        path = PathTaken.GDS if self._gds and not isinstance(read.destination, memoryview) else PathTaken.KVIKIO_POSIX
        if read.abandoned:
            ended(ChunkEnd(0, path, Cancelled("the read was given up before it began")))
            return None
        file = read.file
        if not isinstance(file, NvmeFile):
            ended(ChunkEnd(0, path, InternalError("the nvme device reads its own files")))
            return None
        try:
            handle = file.handle()
            # kvikio reports the end of a file as an error without a number.
            length = max(0, min(len(read.destination), file.size - read.offset))
            if length < read.required:
                ended(ChunkEnd(0, path, _short(file)))
                return None
            future = handle.pread(read.destination[:length], length, read.offset, max(length, 1))
        except OSError as error:
            ended(ChunkEnd(0, path, from_os_error(error, file.path)))
            return None
        except Exception as error:
            ended(ChunkEnd(0, path, _kvikio_error(error, file.path)))
            return None
        return _Operation(read, ended, future, path)


def _sweep(under_way: deque[_Operation]) -> None:
    """Take out what kvikio has done, and end it."""
    for _ in range(len(under_way)):
        operation = under_way.popleft()
        if not operation.future.done():
            under_way.append(operation)
            continue
        end, ended = _outcome(operation), operation.ended
        # Whoever hears of the end may count the destination as his alone.
        del operation
        ended(end)


def _outcome(operation: _Operation) -> ChunkEnd:
    read = operation.read
    try:
        transferred = int(operation.future.get())
    except Exception as error:
        return ChunkEnd(0, operation.path, _kvikio_error(error, read.file.path))
    return ChunkEnd(transferred, operation.path, _short(read.file) if transferred < read.required else None)


def _kvikio_error(error: Exception, path: str) -> DataError:
    typed = DataError(f"kvikio could not read the file ({error}): {path}")
    typed.__cause__ = error.with_traceback(None)
    return typed


def _short(file: DeviceFile) -> DataError:
    return DataError(f"the file ends before the bytes that it should hold: {file.path}")
