"""One run of a scan on the loop: reads ahead of the decoders, under reservations; one worker job per unit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from pystachio.operators.operator import Output
from pystachio.operators.parquet_decode import FetchedExtents
from pystachio.operators.scan_rows import RowReader, UnitRows
from pystachio.operators.scan_units import Unit
from pystachio.runtime.context import Context
from pystachio.runtime.failures import root_cause
from pystachio.runtime.memory import Reservation
from pystachio.runtime.metrics import WaitReason

_READ_AHEAD_BYTES = 64 << 20
"""Fetched and not yet decoded bytes beyond which no further unit is read ahead."""

_TRIAL_UNITS = 4
_MOSTLY_DEAD = 0.5
"""From this share of units without a survivor on, two smaller reads cost less than one."""


@dataclass(slots=True, eq=False)
class _Fetch:
    """A unit whose bytes are on their way. `positions`: what is read in the first (mostly the only) read."""

    unit: Unit
    positions: tuple[int, ...]
    split: bool
    nbytes: int
    reservation: Reservation
    source: asyncio.Task[FetchedExtents]


class ScanRun:
    """Feeds `out` with the rows of `units`. One object per run of the operator."""

    def __init__(self, ctx: Context, out: Output, reader: RowReader, units: Sequence[Unit]) -> None:
        self._ctx = ctx
        self._out = out
        self._reader = reader
        self._units = units
        self._workers = min(ctx.settings.workers, len(units)) or 1
        self._ready: asyncio.Queue[_Fetch | None] = asyncio.Queue()
        self._window = _Window(_READ_AHEAD_BYTES)
        self._held: set[Reservation] = set()
        self._finished = 0
        self._dead = 0

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read_ahead(group))
                for _ in range(self._workers + 1):  # one more than runs, so that a second read keeps no worker idle
                    group.create_task(self._work())
        except BaseExceptionGroup as failures:
            raise root_cause(failures) from None
        finally:
            for reservation in self._held:
                reservation.release()

    async def _read_ahead(self, group: asyncio.TaskGroup) -> None:
        everything = tuple(sorted({*self._reader.first, *self._reader.rest}))
        for unit in self._units:
            split = self._reads_twice()
            positions = self._reader.first if split else everything
            nbytes = sum(extent.length for extent in unit.extents(everything))
            await self._window.enter(nbytes)
            reservation = await self._ctx.memory.reserve(
                nbytes + unit.decoded_bytes(everything), net_delta=0, transient=True
            )
            self._held.add(reservation)
            source = group.create_task(self._read(unit, positions))
            self._ready.put_nowait(_Fetch(unit, positions, split, nbytes, reservation, source))
        for _ in range(self._workers + 1):
            self._ready.put_nowait(None)

    def _reads_twice(self) -> bool:
        """Whether units without survivors are so frequent that the output columns are better read when needed."""
        if not self._reader.first or not self._reader.rest:
            return False
        return self._finished >= _TRIAL_UNITS and self._dead >= _MOSTLY_DEAD * self._finished

    async def _read(self, unit: Unit, positions: Sequence[int]) -> FetchedExtents:
        extents = [extent for extent in unit.extents(positions) if extent.length]
        buffers = await self._ctx.transfers.read(unit.file.path, extents)
        views = [(extent.offset, buffer.view) for extent, buffer in zip(extents, buffers, strict=True)]
        return FetchedExtents(unit.file.path, unit.file.size, views)

    async def _work(self) -> None:
        while (fetch := await self._ready.get()) is not None:
            with self._ctx.metrics.waiting(WaitReason.IO):
                source = await fetch.source
            self._window.leave(fetch.nbytes)
            rows = UnitRows(self._reader, fetch.unit)
            if fetch.split:
                await self._select_then_read(rows, source)
            else:
                await self._out.emit(lambda rows=rows, source=source: rows.select_and_put_out(source))  # type: ignore[misc]
            self._finished += 1
            self._dead += not rows.alive
            self._held.discard(fetch.reservation)
            fetch.reservation.release()

    async def _select_then_read(self, rows: UnitRows, source: FetchedExtents) -> None:
        await self._ctx.stream.run(rows.select, source)
        if rows.alive:
            with self._ctx.metrics.waiting(WaitReason.IO):
                rest = await self._read(rows.unit, self._reader.rest)
            await self._out.emit(lambda: rows.put_out(rest))


class _Window:
    """Bytes that are read and not yet taken up; one task enters, others leave."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._left = asyncio.Event()

    async def enter(self, nbytes: int) -> None:
        """Waits until there is room; anything enters an empty window."""
        while self._used and self._used + nbytes > self._limit:
            self._left.clear()
            await self._left.wait()
        self._used += nbytes

    def leave(self, nbytes: int) -> None:
        self._used -= nbytes
        self._left.set()
