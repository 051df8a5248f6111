"""The bytes of a unit on their way: from the chunk cache where its columns are stored, else from Parquet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pystachio.io_scheduler.prefetch import Prefetch
from pystachio.operators.chunks.columns import ChunkColumns, FetchedChunk
from pystachio.operators.chunks.store import StoredChunk
from pystachio.operators.column import Column
from pystachio.operators.parquet.decode import FetchedExtents
from pystachio.operators.scans.units import Unit
from pystachio.runtime.context import Context
from pystachio.runtime.memory import Reservation


@dataclass(frozen=True, slots=True, eq=False)
class Fetched:
    """What is there of a unit: Parquet's bytes, and those of columns by position that were `stored` decoded."""

    source: FetchedExtents
    stored: dict[int, FetchedChunk]


@dataclass(slots=True, eq=False)
class Fetch:
    """A unit whose bytes are on their way. `split`: only the columns that decide; `spread`: over all workers.

    `hot` columns are there already, by position, and are not read; `stored` ones are read from the chunk cache.
    """

    unit: Unit
    hot: dict[int, Column]
    stored: dict[int, StoredChunk]
    split: bool
    spread: bool
    nbytes: int
    reservation: Reservation
    fetched: asyncio.Task[Fetched]


class Fetcher:
    """Reads the units of one run of a scan; `chunks` is what is stored of its columns, if anything may be."""

    def __init__(self, ctx: Context, chunks: ChunkColumns | None) -> None:
        self.has_read = False
        """Bytes came from the table's files."""
        self._ctx = ctx
        self._chunks = chunks

    async def look(self, units: Iterable[Unit]) -> None:
        """What is stored of these units will be asked for soon."""
        if self._chunks is not None:
            await self._chunks.look(self._ctx, units)

    async def find(self, unit: Unit, positions: Sequence[int]) -> dict[int, StoredChunk]:
        """Those of the unit's columns that are stored, by position."""
        return {} if self._chunks is None else await self._chunks.find(self._ctx, unit, positions)

    async def fetch(
        self,
        unit: Unit,
        positions: Sequence[int],
        stored: Mapping[int, StoredChunk],
        prefetch: Prefetch | None = None,
    ) -> Fetched:
        """The columns' bytes, from the chunk cache where they are `stored` and still there, else from Parquet."""
        wanted = {position: stored[position] for position in positions if position in stored}
        found: dict[int, FetchedChunk] = {}
        if wanted and self._chunks is not None:
            found = await self._chunks.fetch(self._ctx, wanted, prefetch)
        encoded = [position for position in positions if position not in found]
        return Fetched(await self.fetch_parquet(unit, encoded, prefetch), found)

    async def fetch_parquet(
        self, unit: Unit, positions: Sequence[int], prefetch: Prefetch | None = None
    ) -> FetchedExtents:
        extents = [extent for extent in unit.extents(positions) if extent.length]
        if not extents:
            return FetchedExtents(unit.file.path, unit.file.size, ())
        self.has_read = True
        buffers = await self._ctx.transfers.read(unit.file.path, extents, prefetch=prefetch)
        self._ctx.metrics.count("bytes read", sum(extent.length for extent in extents))
        views = [(extent.offset, buffer.view) for extent, buffer in zip(extents, buffers, strict=True)]
        return FetchedExtents(unit.file.path, unit.file.size, views)


def fetched_bytes(unit: Unit, positions: Sequence[int], stored: Mapping[int, StoredChunk]) -> int:
    """Bytes to read for these columns."""
    encoded = sum(extent.length for extent in unit.extents([p for p in positions if p not in stored]))
    return encoded + sum(stored[p].nbytes for p in positions if p in stored)
