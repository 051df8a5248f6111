"""What a scan does with the chunk cache on disk: reads its columns there instead of in Parquet, offers its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import NamedTuple

import xxhash

from pystachio.errors import Cancelled, PystachioError
from pystachio.io_scheduler.client import HostBuffer
from pystachio.io_scheduler.prefetch import Prefetch
from pystachio.operators.chunks.cache import USUAL_RATE, ChunkCache
from pystachio.operators.chunks.decoding import NotUsable, decode_all
from pystachio.operators.chunks.place import ChunkPlace
from pystachio.operators.chunks.store import StoredChunk
from pystachio.operators.column import Bounds, BytesColumn, Column, Dictionary, DictionaryColumn
from pystachio.operators.hot_columns import HotColumns
from pystachio.operators.kernels import selection
from pystachio.operators.kernels.host_memory import Memory
from pystachio.operators.narrowing import narrowest_dtype
from pystachio.operators.parquet.dictionary import SharedDictionary, over
from pystachio.operators.scans.units import Unit
from pystachio.operators.table import ParquetFile
from pystachio.records import record
from pystachio.runtime.context import Context

_CODES = "codes"
_PLAIN = "plain"


class FetchedChunk(NamedTuple):
    """A stored column's bytes, not yet checked."""

    chunk: StoredChunk
    buffer: HostBuffer


@record(eq=False)
class ChunkColumns:
    """The columns of one scan. `dictionaries` and `bounds` are those of `RowReader`, by position.

    What decodes differently is stored side by side: as codes or not, and in the dtype that its table needs.
    """

    cache: ChunkCache
    dictionaries: dict[int, SharedDictionary]
    bounds: tuple[Bounds | None, ...]
    hot: HotColumns
    memory: Memory
    """For what is unpacked: that of the buffers that reads land in, which outlives a session."""
    _seen: set[ParquetFile] = field(default_factory=set)
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def look(self, ctx: Context, units: Iterable[Unit]) -> None:
        """See together what is stored of the units' files: for each of many small ones a job of its own would take
        longer than to read it."""
        async with self._looking:
            files = [file for file in dict.fromkeys(unit.file for unit in units) if file not in self._seen]
            unknown = [file for file in files if not self.cache.store.is_known(file)]
            if unknown:
                await ctx.stream.run(self.cache.look, unknown)
            self._seen.update(files)

    async def find(self, ctx: Context, unit: Unit, positions: Iterable[int]) -> dict[int, StoredChunk]:
        """Those of the unit's columns that are stored, by position."""
        positions = tuple(positions)
        if not positions:
            return {}
        if unit.file not in self._seen:
            await self.look(ctx, (unit,))
        found = {position: self._find(unit, position) for position in positions}
        return {position: chunk for position, chunk in found.items() if chunk is not None}

    async def fetch(
        self, ctx: Context, stored: Mapping[int, StoredChunk], prefetch: Prefetch | None = None
    ) -> dict[int, FetchedChunk]:
        """Their bytes, by position, without those that turn out to be missing: Parquet has them."""
        store = self.cache.store
        files = [(chunk.path, chunk.nbytes) for chunk in stored.values()]
        buffers: Sequence[HostBuffer | PystachioError]
        try:
            buffers = await ctx.transfers.read_files(files, beside=store.root, prefetch=prefetch)
        except Cancelled:
            raise
        except PystachioError as error:  # the whole folder is gone
            buffers = [error] * len(files)
        fetched = {}
        nbytes = 0
        for (position, chunk), buffer in zip(stored.items(), buffers, strict=True):
            if isinstance(buffer, PystachioError):
                store.forget(chunk)
            else:
                fetched[position] = FetchedChunk(chunk, buffer)
                nbytes += chunk.nbytes
        ctx.metrics.count("bytes from chunk cache", nbytes)
        return fetched

    def decode(self, unit: Unit, fetched: Mapping[int, FetchedChunk]) -> dict[int, Column | None]:
        """On a worker: the columns, by position. None where the bytes are corrupt: Parquet has them."""
        started = time.thread_time()
        found = decode_all([(stored.buffer.view, stored.chunk.key) for stored in fetched.values()], self.memory)
        columns: dict[int, Column | None] = {}
        for (position, stored), column in zip(fetched.items(), found, strict=True):
            if isinstance(column, NotUsable):
                self.cache.store.discard(stored.chunk)
                columns[position] = None
            else:
                self.cache.store.used(stored.chunk)
                columns[position] = self._shared(position, column)
        # What each took of the time is not known: to read it took much longer.
        seconds = (time.thread_time() - started) / len(fetched)
        for position, kept in columns.items():
            if kept is not None:
                self.hot.keep(unit, position, kept, seconds + fetched[position].chunk.nbytes / USUAL_RATE)
        return columns

    def _shared(self, position: int, column: Column) -> Column:
        """Over the dictionary that the table's scans share, if the column is to be read as codes."""
        shared = self.dictionaries.get(position)
        if isinstance(column, DictionaryColumn):
            return translated(column, shared)
        if isinstance(column, BytesColumn) and shared is not None:
            coded = shared.encode_plain(column)
            return column if coded is None else coded
        return column

    def offer(self, unit: Unit, position: int, column: Column, seconds: float) -> None:
        """A column that took so long to decode, once its bytes were there."""
        form = self._form(position, coded=isinstance(column, DictionaryColumn))
        source_bytes = sum(extent.length for extent in unit.extents([position]))
        self.cache.offer(place(unit, position, form), column, source_bytes=source_bytes, seconds=seconds)

    def place(self, unit: Unit, position: int, column: Column) -> ChunkPlace:
        """Where the column belongs, which was decoded by this scan."""
        return place(unit, position, self._form(position, coded=isinstance(column, DictionaryColumn)))

    def _find(self, unit: Unit, position: int) -> StoredChunk | None:
        """A column that is wanted as codes may be there without: its dictionary was too large when it was stored."""
        shared = self.dictionaries.get(position)
        if shared is not None and not shared.overflowed:
            found = self.cache.store.find(place(unit, position, _CODES))
            if found is not None:
                return found
        return self.cache.store.find(place(unit, position, self._form(position, coded=False)))

    def _form(self, position: int, *, coded: bool) -> str:
        return _CODES if coded else _plain_form(self.bounds[position])


def translated(column: DictionaryColumn, shared: SharedDictionary | None) -> Column:
    """The column over the dictionary that the table's scans share; plain where that has become too large."""
    values = column.dictionary
    found = None
    if shared is not None:
        content = _content(values)
        assert isinstance(values.values, BytesColumn)
        found = shared.kept(content, len(values)) or shared.translate(values.values, content, are_distinct=True)
    if found is None:
        return selection.decode(column)
    translation, dictionary = found
    return over(dictionary, translation, column)


@lru_cache(maxsize=1024)
def _plain_form(bounds: Bounds | None) -> str:
    return _PLAIN if bounds is None else str(narrowest_dtype(bounds))


def place(unit: Unit, position: int, form: str) -> ChunkPlace:
    return ChunkPlace(unit.file, unit.groups, unit.columns[position], unit.rows, form)


def _content(dictionary: Dictionary) -> str:
    """Equal for equal values in the same order, which is up to who stored them and when."""
    values = dictionary.values
    assert isinstance(values, BytesColumn)
    digest = xxhash.xxh3_128(values.offsets.numpy().data)
    digest.update(values.data.numpy().data)
    return digest.hexdigest()
