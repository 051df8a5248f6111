"""Samples of tables in the chunk cache on disk: the planner of the next process need not take them again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from weakref import WeakSet

from pystachio.errors import PystachioError
from pystachio.io_scheduler.client import HostBuffer
from pystachio.io_scheduler.core.request import Extent
from pystachio.operators.chunks.cache import ChunkCache
from pystachio.operators.chunks.format import NotUsable, decode
from pystachio.operators.chunks.place import ChunkPlace
from pystachio.operators.column import Column
from pystachio.operators.table import ParquetFile

_SECONDS_PER_GROUP = 1e-3
"""What it costs to read some rows of another row group, beside its bytes: a request of its own, and its headers."""


class ChunkSamples:
    """`planner.sample.KeptSamples`. Safe for several threads; blocking. `fetch` reads extents of a file, which lies on
    the disk of the folder that is named last."""

    def __init__(self, cache: ChunkCache, fetch: Callable[[str, Sequence[Extent], str], Sequence[HostBuffer]]) -> None:
        self._cache = cache
        self._fetch = fetch
        self._lock = threading.Lock()
        self._seen: WeakSet[ParquetFile] = WeakSet()

    def find(self, place: ChunkPlace) -> Column | None:
        """What is kept there; None when it is missing or broken: Parquet has it."""
        with self._lock:
            is_new = place.file not in self._seen
            self._seen.add(place.file)
        if is_new:
            self._cache.look(place.file)
        chunk = self._cache.store.find(place)
        if chunk is None:
            return None
        try:
            (buffer,) = self._fetch(chunk.path, [Extent(0, chunk.nbytes)], self._cache.store.root)
        except PystachioError:
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
