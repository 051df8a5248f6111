"""One run of a scan that is not in memory as a whole, on the loop: reads ahead of the decoders, under reservations. One
worker job for each unit that is read; one for each worker takes from all rows that are in memory.

When fewer units than workers are left, each of them is spread over the workers: its columns first, then its rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import TypeVar

from pystachio.operators.batch import column_nbytes
from pystachio.operators.column import Column
from pystachio.operators.fusion.flow import can_fuse
from pystachio.operators.operator import Output
from pystachio.operators.parquet.decode import FetchedExtents
from pystachio.operators.placement import to_device
from pystachio.operators.scans.early_reads import EarlyReads
from pystachio.operators.scans.fetching import Fetch, Fetcher, fetched_bytes
from pystachio.operators.scans.hot_rows import HotRows, gathered
from pystachio.operators.scans.ready import Left, Ready, Window
from pystachio.operators.scans.rows import LostChunks, Piece, RowReader, ScanRows, UnitRows
from pystachio.operators.scans.units import Unit, in_turns
from pystachio.runtime.context import Context
from pystachio.runtime.failures import root_cause
from pystachio.runtime.memory import Reservation, Tier
from pystachio.runtime.tracing import WaitReason

T = TypeVar("T")

_READ_AHEAD_BYTES = 8 << 20
"""Bytes for each link, under way or fetched, and not taken up by a worker, beyond which no unit is read ahead..."""

_READ_AHEAD_UNITS = 2
"""...but always these many units for each link, beyond one for each worker."""

_LOOK_UNITS = 64
"""Of which is found out together what is stored of them."""

_LEAST_SHARE = 4096
"""Rows of a unit that are worth a job."""

_TRIAL_UNITS = 4
_OFTEN_DEAD = 0.2
_MOSTLY_DEAD = 0.5
"""From this share of units without a survivor on, two smaller reads cost less than one."""


class ScanRun:
    """Feeds `out` with the rows of `units`, from the host if `on_host`. One object per run of the operator."""

    def __init__(
        self,
        ctx: Context,
        out: Output,
        reader: RowReader,
        units: Sequence[Unit],
        *,
        on_host: bool = False,
        early: EarlyReads | None = None,
    ) -> None:
        """`early`: what was begun to be read before it was known which units are."""
        self._ctx = ctx
        self._out = out
        self._reader = reader
        self._on_host = on_host or ctx.stream.device.type == "cpu"
        self._units = in_turns(units, ctx.transfers.link)
        # One more than can run: none idles while a batch is handed over. A single worker keeps the file's order.
        workers = ctx.settings.workers
        most = max(len(units), reader.pace.jobs_for(sum(unit.rows for unit in units)))
        self._takers = min(workers + 1, most) if workers > 1 else 1
        self._ready: Ready[Fetch] = Ready(workers)
        links = len({ctx.transfers.link(path) for path in {unit.file.path for unit in units}})
        self._window = Window(links * _READ_AHEAD_BYTES, self._takers + links * _READ_AHEAD_UNITS)
        self._held: set[Reservation] = set()
        self._finished = 0
        self._dead = 0
        self._left = Left(len(units))
        self._begun = asyncio.Event()
        """Some unit has been worked on."""
        self._early = early
        self._fetcher = Fetcher(ctx, reader.chunks) if early is None else early.fetcher

    @property
    def has_read(self) -> bool:
        """Bytes came from the table's files."""
        return self._fetcher.has_read

    async def run(self) -> None:
        if not self._units:
            return
        try:
            async with asyncio.TaskGroup() as group:
                if len(self._units) == 1:
                    await self._read_ahead(group)
                else:
                    group.create_task(self._read_ahead(group))
                for _ in range(self._takers - 1):
                    group.create_task(self._work())
                await self._work()
        except BaseExceptionGroup as failures:
            raise root_cause(failures) from None
        finally:
            for reservation in self._held:
                reservation.release()

    async def _read_ahead(self, group: asyncio.TaskGroup) -> None:
        everything = self._reader.positions
        bytes_from_memory = looked = 0
        for index, unit in enumerate(self._units):
            early = None if self._early is None else self._early.take(unit)
            if early is not None:
                self._held.add(early.reservation)
                early.spread = self._spreads(index, unit)
                early.fetched = group.create_task(_of(early.fetched))
                await self._window.enter(early.nbytes)
                self._ready.put(early)
                continue
            hot, hot_bytes = ({}, 0) if self._reader.hot is None else self._reader.hot.find(unit, everything)
            if len(hot) == len(everything):
                self._put_hot(unit, hot)
                bytes_from_memory += hot_bytes
                continue
            if self._reader.narrows and index >= self._takers:
                await self._begun.wait()
            cold = [position for position in everything if position not in hot]
            if self._is_skipped(unit):
                self._ctx.metrics.count("bytes not read", fetched_bytes(unit, cold, {}))
                continue
            if index >= looked:
                looked = index + _LOOK_UNITS
                await self._fetcher.look(self._units[index:looked])
            split = self._reads_twice() and any(position in cold for position in self._reader.rest)
            stored = await self._fetcher.find(unit, cold)
            nbytes = fetched_bytes(unit, cold, stored)
            await self._window.enter(nbytes)
            reservation = await self._reserve(nbytes + unit.decoded_bytes(cold), Tier.HOST)
            first = [position for position in self._reader.first if position in cold]
            fetched = group.create_task(self._fetcher.fetch(unit, first if split else cold, stored))
            spread = self._spreads(index, unit)
            self._ready.put(Fetch(unit, hot, stored, split, spread, nbytes, reservation, fetched))
        self._ready.close()
        if bytes_from_memory:
            self._ctx.metrics.count("bytes from memory", bytes_from_memory)

    def _is_skipped(self, unit: Unit) -> bool:
        """Whether the reader does not want the unit any more, which is then done with."""
        if not self._reader.rules_out(unit):
            return False
        self._reader.skipped(unit, 0, unit.rows)
        self._ctx.metrics.add_batch(rows_in=unit.rows, batches=0)
        self._left.unit_ended()
        return True

    def _put_hot(self, unit: Unit, columns: dict[int, Column]) -> None:
        unit_rows = UnitRows(self._reader, unit, columns)
        rows = ScanRows(self._reader, columns, Piece(0, unit.rows, None), is_tested=False, unit=unit_rows)
        self._left.became_hot(self._ready.put_hot(rows))

    async def _reserve(self, nbytes: int, tier: Tier) -> Reservation:
        reservation = await self._ctx.memory.reserve(nbytes, tier=tier, transient=True)
        self._held.add(reservation)
        return reservation

    def _release(self, reservation: Reservation) -> None:
        self._held.discard(reservation)
        reservation.release()

    def _reads_twice(self) -> bool:
        """Whether units without survivors are so frequent that the output columns are better read when needed."""
        if not self._reader.first or not self._reader.rest:
            return False
        return self._finished >= _TRIAL_UNITS and self._dead >= _MOSTLY_DEAD * self._finished

    def _selects_first(self) -> bool:
        """Whether it is better to find survivors before the output columns are decoded: a program does both in one
        go, which is quicker unless many units have none."""
        return not can_fuse(self._ctx) or self._dead > _OFTEN_DEAD * self._finished

    def _spreads(self, index: int, unit: Unit) -> bool:
        """Whether this unit would leave workers idle, and is worth the hops."""
        whole = len(self._units) - len(self._units) % self._ctx.settings.workers
        return index >= whole and unit.rows >= 2 * self._ctx.settings.batch_rows

    async def _work(self) -> None:
        while (taken := await self._ready.take()) is not None:
            if isinstance(taken, HotRows):
                await self._put_out_hot(taken)
                continue
            fetch = taken
            with self._ctx.metrics.waiting(WaitReason.IO, fetch.unit.file.path, fetch.nbytes):
                fetched = await fetch.fetched
            self._window.leave(fetch.nbytes)
            if self._is_skipped(fetch.unit):
                self._begun.set()
                self._release(fetch.reservation)
                continue
            rows = UnitRows(self._reader, fetch.unit, dict(fetch.hot), fetched.stored)
            if fetch.spread:
                await self._spread(rows, fetched.source, fetch)
                self._left.unit_ended()
            elif fetch.split:
                select = partial(self._run, rows.select)
                await self._with_source(rows, fetched.source, select)
                if rows.alive:
                    rest = await self._read_rest(rows, fetch)
                    await self._put_out_from(rows, rows.put_out, rest)
                else:
                    spared = fetched_bytes(fetch.unit, rows.missing(self._reader.rest), fetch.stored)
                    self._ctx.metrics.count("bytes not read", spared)
                    self._ctx.metrics.add_batch(rows_in=fetch.unit.rows, batches=0)
                    self._left.unit_ended()
            else:
                produce = rows.select_and_put_out if self._selects_first() else rows.decode_and_put_out
                await self._put_out_from(rows, produce, fetched.source)
            if fetch.hot:
                self._ctx.metrics.count("bytes from memory", sum(map(column_nbytes, fetch.hot.values())))
            self._finished += 1
            self._dead += not rows.alive and not rows.survivors
            self._begun.set()
            self._release(fetch.reservation)

    async def _run(self, work: Callable[[FetchedExtents], object], source: FetchedExtents) -> None:
        await self._ctx.stream.run(work, source)

    async def _with_source(
        self, rows: UnitRows, source: FetchedExtents, work: Callable[[FetchedExtents], Awaitable[object]]
    ) -> None:
        """Do `work`, which decodes columns of the unit. What the chunk cache had of them may prove corrupt, before
        anything is put out: then again, with what Parquet has."""
        reserved: list[Reservation] = []
        while True:
            try:
                await work(source)
                break
            except LostChunks as lost:
                positions = lost.positions
            reserved.append(await self._reserve(fetched_bytes(rows.unit, positions, {}), Tier.HOST))
            source = source.beside(await self._fetcher.fetch_parquet(rows.unit, positions))
        for reservation in reserved:
            self._release(reservation)

    async def _put_out_from(
        self,
        rows: UnitRows,
        produce: Callable[[FetchedExtents], Iterable[ScanRows]],
        source: FetchedExtents,
    ) -> None:
        """Emit all rows of the unit, whose columns `produce` decodes."""
        await self._with_source(rows, source, lambda found: self._put_out(rows, partial(produce, found)))

    async def _put_out_hot(self, hot: HotRows) -> None:
        self._left.job_began()
        if self._on_host:
            small = self._ready.is_complete and hot.is_small
            await self._out.emit(lambda: (hot,), last=self._left.job_ended, small=small)
        else:
            while taken := hot.take():
                units = [rows.unit.unit for rows in taken if rows.unit is not None]
                await self._emit(units, partial(iter, taken), last=False)
            self._left.job_ended()
        self._ready.hot_job_ended()
        self._begun.set()

    async def _put_out(
        self, rows: UnitRows, produce: Callable[[], Iterable[ScanRows]], *, is_whole: bool = True
    ) -> None:
        """Emit rows of the unit; `is_whole`: all that it has."""
        await self._emit([rows.unit], produce, last=self._left.unit_ended if is_whole else False)

    async def _emit(
        self, units: Iterable[Unit], produce: Callable[[], Iterable[ScanRows]], *, last: bool | Callable[[], bool]
    ) -> None:
        """Put out rows of the units, from the device where one computes."""
        if self._on_host:
            await self._out.emit(produce, last=last)
            return
        stream, units = self._ctx.stream, tuple(units)
        nbytes = sum(unit.decoded_bytes(self._reader.output) for unit in units)
        reservation = await self._reserve(nbytes, Tier.DEVICE)
        try:
            await self._out.emit(lambda: (to_device(batch, stream) for batch in gathered(produce())), last=last)
        finally:
            self._release(reservation)
        self._ctx.metrics.add_batch(rows_in=sum(unit.rows for unit in units), batches=0)

    async def _read_rest(self, rows: UnitRows, fetch: Fetch) -> FetchedExtents:
        with self._ctx.metrics.waiting(WaitReason.IO, rows.unit.file.path):
            fetched = await self._fetcher.fetch(rows.unit, rows.missing(self._reader.rest), fetch.stored)
        rows.stored.update(fetched.stored)
        return fetched.source

    async def _spread(self, rows: UnitRows, source: FetchedExtents, fetch: Fetch) -> None:
        reader, run = self._reader, self._ctx.stream.run
        if not fetch.split and not self._selects_first():
            await self._decode_together(rows, reader.positions, source)
            untested = [partial(rows.put_out_untested, piece) for piece in self._shares(rows.unit.rows)]
            await _all([self._put_out(rows, produce, is_whole=False) for produce in untested])
            return
        await self._decode_together(rows, reader.first, source)
        pieces = reader.pieces(rows.unit.rows)
        rows.keep(await _all([run(reader.select, rows.columns, *piece) for piece in pieces]))
        if rows.alive:
            rest = await self._read_rest(rows, fetch) if fetch.split else source
            await self._decode_together(rows, reader.rest, rest)
            pieces_left = [partial(rows.put_out_piece, piece) for piece in rows.alive]
            await _all([self._put_out(rows, produce, is_whole=False) for produce in pieces_left])

    def _shares(self, rows: int) -> list[Piece]:
        """The rows in equal parts, one for each worker that has enough to do."""
        shares = max(1, min(self._ctx.settings.workers, rows // _LEAST_SHARE))
        return [Piece(rows * share // shares, rows * (share + 1) // shares, None) for share in range(shares)]

    async def _decode_together(self, rows: UnitRows, positions: Sequence[int], source: FetchedExtents) -> None:
        """Each column that is encoded in a job of its own; stored ones, which take less, in one for each worker."""
        positions = rows.missing(positions)
        encoded = [(position,) for position in positions if position not in rows.stored]
        stored = [position for position in positions if position in rows.stored]
        stored.sort(key=lambda position: rows.stored[position].chunk.nbytes, reverse=True)
        workers = self._ctx.settings.workers
        together = [*encoded, *filter(None, (tuple(stored[worker::workers]) for worker in range(workers)))]
        parts = [UnitRows(self._reader, rows.unit) for _ in together]
        decoding = []
        for part, group in zip(parts, together, strict=True):
            part.stored.update((position, rows.stored.pop(position)) for position in group if position in rows.stored)
            decode = partial(part.decode, group)
            decoding.append(self._with_source(part, source.reopened(), partial(self._run, decode)))
        await _all(decoding)
        for part in parts:
            rows.columns.update(part.columns)


async def _of(task: asyncio.Task[T]) -> T:
    """Its result, for whose task it is from now on."""
    return await task


async def _all(coroutines: Sequence[Coroutine[object, object, T]]) -> list[T]:
    """Their results, run together; the first failure cancels the others."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(coroutine) for coroutine in coroutines]
    return [task.result() for task in tasks]
