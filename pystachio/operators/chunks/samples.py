"""Samples of tables in the chunk cache on disk: the planner of the next process need not take them again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from weakref import WeakSet

from pystachio.errors import PystachioError
from pystachio.io_scheduler.client import HostBuffer
from pystachio.operators.chunks.cache import ChunkCache
from pystachio.operators.chunks.decoding import NotUsable, decode
from pystachio.operators.chunks.place import ChunkPlace
from pystachio.operators.chunks.store import StoredChunk
from pystachio.operators.column import Column
from pystachio.operators.table import ParquetFile

FetchAll = Callable[[Sequence[tuple[str, int]], str], Callable[[], Sequence[HostBuffer | None]]]
"""Begins to read the whole of files of so many bytes, on the disk of the folder that is named last; what it returns
waits for them. None stands for one that cannot be read."""

MOST_BYTES_AT_ONCE = 32 << 20

_SECONDS_PER_GROUP = 1e-3
"""What it costs to read some rows of another row group, beside its bytes: a request of its own, and its headers."""


class ChunkSamples:
    """`planner.sample.KeptSamples`. Safe for several threads; blocking."""

    def __init__(self, cache: ChunkCache, fetch: FetchAll) -> None:
        self._cache = cache
        self._fetch = fetch
        self._lock = threading.Lock()
        self._seen: WeakSet[ParquetFile] = WeakSet()

    def ask(self, places: Sequence[ChunkPlace]) -> Callable[[], list[Column | None]]:
        """Begin to read what is kept there, all at once. What is returned waits for it; None where it is missing or
        broken: Parquet has it. Of more than `MOST_BYTES_AT_ONCE` the rest is left out, too."""
        for file in {id(place.file): place.file for place in places}.values():
            self._look(file)
        chunks = [self._cache.store.find(place) for place in places]
        nbytes = 0
        for number, chunk in enumerate(chunks):
            nbytes += 0 if chunk is None else chunk.nbytes
            if number and nbytes > MOST_BYTES_AT_ONCE:
                chunks[number] = None
        wanted = [chunk for chunk in chunks if chunk is not None]
        if not wanted:
            return lambda: [None] * len(places)
        fetched = self._fetch([(chunk.path, chunk.nbytes) for chunk in wanted], self._cache.store.root)

        def wait() -> list[Column | None]:
            buffers: Iterator[HostBuffer | None]
            try:
                buffers = iter(fetched())
            except PystachioError:  # the whole folder is gone
                buffers = repeat(None)
            return [None if chunk is None else self._decoded(chunk, next(buffers)) for chunk in chunks]

        return wait

    def _look(self, file: ParquetFile) -> None:
        with self._lock:
            is_new = file not in self._seen
            self._seen.add(file)
        if is_new:
            self._cache.look((file,))

    def _decoded(self, chunk: StoredChunk, buffer: HostBuffer | None) -> Column | None:
        if buffer is None:
            self._cache.store.forget(chunk)
            return None
        column = decode(buffer.view, chunk.key)
        if isinstance(column, NotUsable):
            self._cache.store.discard(chunk)
            return None
        self._cache.store.used(chunk)
        return column

    def offer(self, place: ChunkPlace, column: Column, *, source_bytes: int, seconds: float) -> None:
        """A sample that took so much to read and to decode. Does not wait."""
        seconds += _SECONDS_PER_GROUP * len(place.groups)
        self._cache.offer(place, column, source_bytes=source_bytes, seconds=seconds)
