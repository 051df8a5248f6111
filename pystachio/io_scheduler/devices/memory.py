"""Memory as the other end of a link: what an emulated PCIe bus or network card in one process copies from and to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np

from pystachio.errors import Cancelled, DataError, InternalError, NotFound
from pystachio.io_scheduler.core.request import Direction, LinkLimits, PathTaken
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest

CHUNK_BYTES = 2 << 20
WINDOW_BYTES = 16 << 20


class MemoryFile:
    """`memory` is None where nothing is known by that name."""

    def __init__(self, path: str, memory: memoryview | None) -> None:
        self.path = path
        self.memory = memory

    def close(self) -> None:
        self.memory = None


class MemoryDevice:
    """Copies chunks on a thread, without the interpreter's lock, between buffers and the `memories` by name.

    `memories` may change while the device is used: a name is looked up when transfers open it.
    """

    def __init__(
        self,
        memories: dict[str, memoryview],
        *,
        direction: Direction = Direction.READ,
        name: str = "memory",
        chunk_bytes: int = CHUNK_BYTES,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self.limits = LinkLimits(chunk_bytes=chunk_bytes, window_bytes=window_bytes)
        self._memories = memories
        self._direction = direction
        self._name = name
        self._thread: threading.Thread | None = None
        self._work: SimpleQueue[tuple[ChunkRequest, Callable[[ChunkEnd], None]] | None] = SimpleQueue()

    def open(self, path: str) -> MemoryFile:
        return MemoryFile(path, self._memories.get(path))

    def start(self, request: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name=f"memory-{self._name}-{self._direction}", daemon=True)
            thread.start()
            self._thread = thread
        self._work.put((request, ended))

    def abandon(self, request: ChunkRequest) -> None:
        request.abandoned = True

    def close(self) -> None:
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None

    def _serve(self) -> None:
        while self._serve_one():
            pass

    def _serve_one(self) -> bool:
        # A function of its own, so that an idle thread keeps no buffer alive.
        work = self._work.get()
        if work is None:
            return False
        request, ended = work
        end = _copy(request, self._direction)
        del work, request
        ended(end)
        return True


def _copy(request: ChunkRequest, direction: Direction) -> ChunkEnd:
    file, buffer = request.file, request.buffer
    if request.abandoned:
        return ChunkEnd(0, PathTaken.EMULATED, Cancelled("the chunk was given up before it began"))
    if not isinstance(file, MemoryFile) or not isinstance(buffer, memoryview):
        return ChunkEnd(0, PathTaken.EMULATED, InternalError("the memory device copies between its own memories"))
    if file.memory is None:
        return ChunkEnd(0, PathTaken.EMULATED, NotFound(f"no such memory: {file.path}"))
    there = file.memory[request.offset : request.offset + len(buffer)]
    if len(there) < (len(buffer) if direction is Direction.WRITE else request.required):
        return ChunkEnd(0, PathTaken.EMULATED, DataError(f"the memory ends before the chunk: {file.path}"))
    source, target = (buffer[: len(there)], there) if direction is Direction.WRITE else (there, buffer[: len(there)])
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
    return ChunkEnd(len(there), PathTaken.EMULATED)
