"""WarmUp: fills the chunk cache on disk with a table's columns ahead of the queries."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from pystachio.errors import InvalidRequest
from pystachio.io_scheduler.core.request import Extent
from pystachio.operators.arrow import batch_from_arrow
from pystachio.operators.batch import Batch, Field, Schema
from pystachio.operators.chunks.cache import ChunkCache
from pystachio.operators.chunks.columns import ChunkColumns
from pystachio.operators.column import Column
from pystachio.operators.hot_columns import HotColumns
from pystachio.operators.operator import Output
from pystachio.operators.parquet.decode import FetchedExtents
from pystachio.operators.placement import to_device
from pystachio.operators.scans.rows import RowReader, UnitRows
from pystachio.operators.scans.units import Unit, plan_units, require_unchanged, unit_rows
from pystachio.operators.table import Table
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context
from pystachio.runtime.failures import root_cause
from pystachio.runtime.memory import Tier

_PARTS = 3
"""Of a column that is stored are in memory: the column, its encoded form, and a bit of both while that is made."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Breaker without inputs: stores those `columns` of the table that are not stored yet; one row per unit.

    What the budget has no room for without displacing chunks that were used since the start is left out.
    """

    table: Table
    columns: tuple[int, ...]

    names: ClassVar[tuple[str, ...]] = ("units", "stored", "present", "left_out", "bytes")
    """How many units there are; then of this unit the columns that were stored, were there already and were left out,
    and the bytes that were written."""

    @property
    def inputs(self) -> tuple[()]:
        return ()

    @property
    def schema(self) -> Schema:
        return tuple(Field(name, pa.int64(), nullable=False) for name in self.names)

    def label(self) -> str:
        return f"WarmUp {self.table.name}"

    async def run(self, ctx: Context, inputs: tuple[Receiver[Batch], ...], out: Output) -> None:
        """Raises InvalidRequest where nothing is stored on disk, and what goes wrong with writing."""
        if not isinstance(ctx.chunks, ChunkCache):
            raise InvalidRequest(
                "there is no chunk cache on disk", hint="set 'chunk_cache' to true and 'chunk_cache_bytes' above 0"
            )
        require_unchanged(self.table)
        units = plan_units(self.table, self.columns, None, (), unit_rows(self.table, ctx)).units
        run = _Run(ctx, out, ctx.chunks, self, len(units))
        remaining = iter(units)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(ctx.settings.workers):
                    group.create_task(run.work(remaining))
        except BaseExceptionGroup as failures:
            raise root_cause(failures) from None


class _Run:
    def __init__(self, ctx: Context, out: Output, cache: ChunkCache, warm_up: WarmUp, units: int) -> None:
        self._ctx = ctx
        self._out = out
        self._cache = cache
        self._units = units
        self._started_ns = cache.store.clock_ns()
        table, columns = warm_up.table, warm_up.columns
        bounds = tuple(table.bounds(column) for column in columns)
        coded = (position for position, column in enumerate(columns) if table.codes_pay(column))
        dictionaries = {p: table.dictionary(columns[p]) for p in coded} if ctx.settings.dictionary_codes else {}
        hot = HotColumns(ctx.hot, ctx.transfers.memory, dictionaries, bounds)
        self._columns = ChunkColumns(cache, dictionaries, bounds, hot, ctx.transfers.memory)
        self._positions = tuple(range(len(columns)))
        self._reader = RowReader(
            predicate=None,
            filters=(),
            output=self._positions,
            dictionaries=dictionaries,
            bounds=bounds,
            batch_rows=ctx.settings.batch_rows,
            metrics=ctx.metrics,
        )

    async def work(self, units: Iterator[Unit]) -> None:
        """One unit after the other, and in it one column after the other."""
        for unit in units:
            present = await self._columns.find(self._ctx, unit, self._positions)
            missing = [position for position in self._positions if position not in present]
            written = [await self._store(unit, position) for position in missing]
            stored = sum(nbytes > 0 for nbytes in written)
            row = (self._units, stored, len(present), len(missing) - stored, sum(written))
            await self._put_out(row)

    async def _store(self, unit: Unit, position: int) -> int:
        """Bytes written; 0 when the column was left out."""
        extents = [extent for extent in unit.extents([position]) if extent.length]
        nbytes = sum(extent.length for extent in extents) + _PARTS * unit.decoded_bytes([position])
        with await self._ctx.memory.reserve(nbytes, tier=Tier.HOST, transient=True):
            column = await self._decoded(unit, position, extents)
            place = self._columns.place(unit, position, column)
            (written,) = await self._cache.keep(self._ctx, [(place, column)], self._started_ns)
            return written

    async def _decoded(self, unit: Unit, position: int, extents: list[Extent]) -> Column:
        rows = UnitRows(self._reader, unit)
        buffers = await self._ctx.transfers.read(unit.file.path, extents) if extents else []
        views = [(extent.offset, buffer.view) for extent, buffer in zip(extents, buffers, strict=True)]
        await self._ctx.stream.run(rows.decode, [position], FetchedExtents(unit.file.path, unit.file.size, views))
        return rows.columns[position]

    async def _put_out(self, row: tuple[int, ...]) -> None:
        batch = batch_from_arrow(pa.table({name: [value] for name, value in zip(WarmUp.names, row, strict=True)}))
        await self._out.emit(lambda: [to_device(batch, self._ctx.stream)])
