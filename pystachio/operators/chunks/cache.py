"""The node's side of the chunk cache on disk: takes decoded columns from the scans and writes them behind their backs.

A column is stored when reading it back takes less time than what was just done: reading its Parquet bytes and decoding
them, both at the rate of a usual disk. It happens at the first touch: a column that stays in memory is not decoded a
second time, and the next process knows of no touch. (`ChunkStore.admits` asks for two when there is no room left.)

Encoding and checksums run on one thread beside the workers, a few columns at a time; the bytes go in the write-back
lane. The same thread looks which columns of new files are there, before scans ask. What waits to be written is
reserved; where it is too much it is dropped, and stored when it is decoded again.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from pystachio.errors import NotFound, PystachioError, Unauthorized
from pystachio.io_scheduler.os_errors import from_os_error
from pystachio.operators.batch import column_nbytes
from pystachio.operators.chunks.encoding import encode, stored_bytes
from pystachio.operators.chunks.place import ChunkPlace
from pystachio.operators.chunks.store import ChunkStore, ChunkStoreStatistics
from pystachio.operators.column import Column
from pystachio.operators.table import ParquetFile
from pystachio.runtime.context import Context
from pystachio.runtime.failures import root_cause
from pystachio.runtime.logging import get_logger
from pystachio.runtime.memory import Reservation, Tier

USUAL_RATE = 2e9
"""Bytes per second of a fast local disk. It only decides what is worth storing."""
FILE_SECONDS = 5e-4
"""What a file costs beside its bytes: to find and open it, and a transfer of its own; measured on all threads."""
MOST_WAITING_BYTES = 64 << 20
MOST_TOGETHER = 16
MOST_BYTES_TOGETHER = 8 << 20
MOST_ERRANDS = 64
MOST_EXPECTED = 64
"""Files that are looked at before scans ask. Of a table of many files, most may never be read."""


Errand = Callable[[Context], Awaitable[None]]
"""What writes something, as work of the plan of the context."""


def is_worth_storing(nbytes: int, source_bytes: int, seconds: float) -> bool:
    """Whether so many bytes are read sooner than `source_bytes` are read and then decoded in `seconds`."""
    return FILE_SECONDS + nbytes / USUAL_RATE < source_bytes / USUAL_RATE + seconds


@dataclass(frozen=True, slots=True)
class ChunkCacheStatistics:
    """`waiting_bytes` are accepted and not yet in the store, `dropped` columns were not stored, mostly for lack of
    time."""

    waiting_bytes: int
    dropped: int
    store: ChunkStoreStatistics


@dataclass(slots=True, eq=False)
class _Waiting:
    place: ChunkPlace
    column: Column
    nbytes: int
    reservation: Reservation


class ChunkCache:
    """`store` and its writer. Made on the node's loop by `opened`."""

    def __init__(self, ctx: Context, store: ChunkStore) -> None:
        self.store = store
        self._ctx = ctx
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._expected: deque[ParquetFile] = deque(maxlen=MOST_EXPECTED)
        self._errands: deque[Errand] = deque()
        self._runs_errands = True
        self._places: set[ChunkPlace] = set()
        self._waiting_bytes = 0
        self._came = asyncio.Event()
        self._closed = False
        self._dropped = 0

    def statistics(self) -> ChunkCacheStatistics:
        return ChunkCacheStatistics(self._waiting_bytes, self._dropped, self.store.statistics())

    def expect(self, files: Sequence[ParquetFile]) -> None:
        """On the loop: scans of these files may come. What they ask first is found out behind everybody's back."""
        self._expected.extend(files)
        self._came.set()

    def do_later(self, errand: Errand) -> None:
        """From any thread: something small to be written when nobody waits for it. Does not wait."""
        with self._lock:
            if self._closed or len(self._errands) >= MOST_ERRANDS:
                return
            self._errands.append(errand)
        self._loop.call_soon_threadsafe(self._came.set)

    def look(self, files: Iterable[ParquetFile]) -> None:
        """On a worker: see which chunks of the files are there. A folder of somebody else ends all use of it."""
        try:
            for file in files:
                self.store.look(file)
        except Unauthorized as error:
            self._stop(error)

    def is_own(self) -> bool:
        """Whether there is a folder, and nobody else's. Not on the loop."""
        try:
            self.store.require_own()
        except Unauthorized as error:
            self._stop(error)
            return False
        except OSError:
            return False
        return True

    def offer(self, place: ChunkPlace, column: Column, *, source_bytes: int, seconds: float) -> None:
        """From any thread: a column that was decoded from so many bytes in so many seconds. Does not wait."""
        nbytes = stored_bytes(column)
        if not is_worth_storing(nbytes, source_bytes, seconds) or not self.store.admits(place, nbytes):
            return
        with self._lock:
            if self._closed or place in self._places:
                return
            reservation = None
            if self._waiting_bytes + nbytes <= MOST_WAITING_BYTES:
                memory = self._ctx.memory
                # The column, which the scan no longer counts, and its encoded form.
                reservation = memory.reserve_nowait(column_nbytes(column) + nbytes, tier=Tier.HOST, transient=True)
            if reservation is None:
                self._dropped += 1
                return
            self._waiting.append(_Waiting(place, column, nbytes, reservation))
            self._places.add(place)
            self._waiting_bytes += nbytes
        self._loop.call_soon_threadsafe(self._came.set)

    async def keep(
        self,
        ctx: Context,
        columns: Sequence[tuple[ChunkPlace, Column]],
        displace_before_ns: int | None = None,
    ) -> list[int]:
        """Store columns, as work of the plan of `ctx`; the bytes of each file.

        0 where the format has no place for it or the budget no room (`ChunkStore.prepare`).
        Raises the typed errors of writing a file.
        """
        temporaries = [self.store.temporary(place) for place, _ in columns]
        try:
            contents = await ctx.stream.run(self._encoded, temporaries, columns, displace_before_ns)
            async with asyncio.TaskGroup() as group:
                for temporary, content in zip(temporaries, contents, strict=True):
                    if content is not None:
                        group.create_task(ctx.transfers.write(temporary, 0, content, spill=True))
            complete = [
                (temporary, place)
                for temporary, (place, _), content in zip(temporaries, columns, contents, strict=True)
                if content is not None
            ]
            await ctx.stream.run(self._publish, complete)
        except BaseExceptionGroup as failures:
            raise root_cause(failures) from None
        finally:
            for temporary in temporaries:
                self.store.abandon(temporary)
        return [0 if content is None else len(content) for content in contents]

    async def write_all(self) -> None:
        """Store what is offered, until cancelled."""
        while True:
            self._came.clear()
            while self._expected:
                await self._look_ahead(self._expected.popleft())
            while self._errands:
                errand = self._errands.popleft()
                if self._runs_errands:
                    await self._run(errand)
            while self._waiting:
                together = self._next()
                try:
                    if self.store.writing:
                        await self._write(together)
                finally:
                    self._done(together)
                    del together
            await self._came.wait()

    async def _look_ahead(self, file: ParquetFile) -> None:
        """A failure ends writing, as in `_write`."""
        try:
            await self._ctx.stream.run(self._prepare, file)
        except Exception as error:
            if threading.main_thread().is_alive():
                self._stop(error)

    async def _run(self, errand: Errand) -> None:
        """What fails once is not tried again."""
        try:
            await errand(self._ctx)
        except NotFound:  # as in `_write`
            pass
        except Exception as error:
            self._runs_errands = False
            if threading.main_thread().is_alive():
                get_logger().warning("plans are no longer kept on disk", reason=str(error))

    def _next(self) -> list[_Waiting]:
        """A few of those that wait: what is done for all at once costs the loop less."""
        together = [self._waiting.popleft()]
        nbytes = together[0].nbytes
        while self._waiting and len(together) < MOST_TOGETHER:
            nbytes += self._waiting[0].nbytes
            if nbytes > MOST_BYTES_TOGETHER:
                break
            together.append(self._waiting.popleft())
        return together

    def close(self) -> None:
        """Nothing more is taken, and what waits is dropped."""
        with self._lock:
            self._closed = True
        self._dropped += len(self._waiting)
        self._done(list(self._waiting))
        self._waiting.clear()
        self._errands.clear()

    async def _write(self, together: list[_Waiting]) -> None:
        """A failure ends writing, not the node. A folder that a sweep has removed meanwhile is none."""
        stored: list[int] = []
        try:
            stored = await self.keep(self._ctx, [(waiting.place, waiting.column) for waiting in together])
        except NotFound:
            pass
        except Exception as error:
            # A program that ends without closing the node takes the threads away under it: nobody asked to keep more.
            if threading.main_thread().is_alive():
                self._stop(error)
        self._dropped += len(together) - sum(nbytes > 0 for nbytes in stored)

    def _stop(self, error: Exception) -> None:
        if self.store.writing:
            self.store.stop_writing()
            get_logger().warning("decoded columns are no longer stored on disk", reason=str(error))

    def _done(self, together: list[_Waiting]) -> None:
        with self._lock:
            for waiting in together:
                self._places.discard(waiting.place)
                self._waiting_bytes -= waiting.nbytes
        for waiting in together:
            waiting.reservation.release()

    def _prepare(self, file: ParquetFile) -> None:
        self.look((file,))
        with suppress(PystachioError):  # whoever reads the file is told
            file.describe()

    def _encoded(
        self,
        temporaries: Sequence[str],
        columns: Sequence[tuple[ChunkPlace, Column]],
        displace_before_ns: int | None,
    ) -> list[memoryview | None]:
        """The contents of the files to be; None for those that are not to be."""
        contents: list[memoryview | None] = []
        for temporary, (place, column) in zip(temporaries, columns, strict=True):
            content = encode(column, self.store.names.key(place))
            try:
                if content is not None and not self.store.prepare(
                    temporary, place, len(content), displace_before_ns=displace_before_ns
                ):
                    content = None
            except OSError as error:
                raise from_os_error(error, str(error.filename), "written") from error
            contents.append(content)
        return contents

    def _publish(self, complete: Sequence[tuple[str, ChunkPlace]]) -> None:
        for temporary, place in complete:
            try:
                self.store.publish(temporary, place)
            except OSError as error:
                raise from_os_error(error, temporary, "written") from error


@asynccontextmanager
async def opened(ctx: Context, store: ChunkStore) -> AsyncIterator[ChunkCache]:
    """The cache, with its writer as a task. At the end the chunk that is being written is given up."""
    cache = ChunkCache(ctx, store)
    writer = asyncio.create_task(cache.write_all(), name="chunk cache")
    try:
        yield cache
    finally:
        store.close()
        writer.cancel()
        with suppress(asyncio.CancelledError):
            await writer
        cache.close()
