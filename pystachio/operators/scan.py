"""The scan: rows of a registered table that pass a predicate and runtime filters.

Row groups that statistics rule out are never read. The others are read ahead of the decoders in units, under transient
reservations; workers decode, select and put out one unit per job. Usually a unit's columns come in one read; once most
units turn out to have no surviving row, the columns that are only put out are read separately, after the selection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pystachio.operators.batch import Batch, Schema
from pystachio.operators.chunk_cache import ChunkCache
from pystachio.operators.chunk_columns import ChunkColumns
from pystachio.operators.evaluate import bind_scalars, select
from pystachio.operators.expressions import Expression
from pystachio.operators.hot_columns import HotColumns
from pystachio.operators.operator import Output
from pystachio.operators.parquet_dictionary import SharedDictionary
from pystachio.operators.runtime_filter import RuntimeFilter
from pystachio.operators.scan_rows import FilterUse, RowReader
from pystachio.operators.scan_run import ScanRun
from pystachio.operators.scan_units import Answered, ScanUnits, plan_units, require_unchanged, unit_rows
from pystachio.operators.table import Table
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context


@dataclass(frozen=True, slots=True)
class ScanFilter:
    """The runtime filter of the plan's slot `slot` applies to the scan's `columns[column]`."""

    slot: int
    column: int


@dataclass(frozen=True, slots=True)
class Scan:
    """`columns` are positions in the table's schema; `predicate` is over them, `output` are positions in them.

    `answered`: the row groups that somebody else answers for.
    """

    table: Table
    columns: tuple[int, ...]
    predicate: Expression | None
    output: tuple[int, ...]
    filters: tuple[ScanFilter, ...] = ()
    answered: Answered | None = None
    _units: dict[int, ScanUnits] = field(default_factory=dict, init=False, compare=False, repr=False)
    """What there is to read by the statistics alone, by how many rows are read together: a plan may run many times."""

    @property
    def inputs(self) -> tuple[()]:
        return ()

    @property
    def schema(self) -> Schema:
        return tuple(self.table.schema[self.columns[position]] for position in self.output)

    def label(self) -> str:
        names = ", ".join(field.name for field in self.schema)
        return f"Scan {self.table.name} [{names}]"

    async def run(self, ctx: Context, inputs: tuple[Receiver[Batch], ...], out: Output) -> None:
        reader, planned = await self.prepare(ctx)
        if not self.columns:
            # Without columns the predicate (a scalar subquery against a constant) is the same for every row.
            survives = reader.predicate is None or select(reader.predicate, Batch((), 1, None)) is None
            if survives and planned.units:
                await out.emit(lambda: (Batch((), unit.rows, None) for unit in planned.units), last=True)
            return
        run = ScanRun(ctx, out, reader, planned.units)
        await run.run()
        if run.has_read:
            # One that is written in place meanwhile may have given rows of two versions.
            require_unchanged(self.table)

    async def prepare(self, ctx: Context) -> tuple[RowReader, ScanUnits]:
        """What there is to read, and how; waits for the scalars and filters that the scan depends on."""
        predicate = None if self.predicate is None else await bind_scalars(ctx, self.predicate)
        published = [(used.column, await ctx.slots["filter", used.slot].wait()) for used in self.filters]
        filters = [(column, value) for column, value in published if isinstance(value, RuntimeFilter)]
        require_unchanged(self.table)
        planned = self._planned(ctx, predicate, filters)
        ctx.metrics.count("row groups pruned", planned.pruned_row_groups)
        ctx.metrics.count("bytes not read", planned.skipped_bytes)
        ctx.metrics.add_batch(rows_in=self.table.rows - sum(unit.rows for unit in planned.units), batches=0)
        bounds = tuple(self.table.bounds(column) for column in self.columns)
        dictionaries = self._dictionaries() if ctx.settings.dictionary_codes else {}
        hot = HotColumns(ctx.hot, dictionaries, bounds)
        reader = RowReader(
            predicate=predicate,
            filters=tuple(FilterUse(column, value) for column, value in filters),
            output=self.output,
            dictionaries=dictionaries,
            bounds=bounds,
            batch_rows=ctx.settings.batch_rows,
            hot=hot,
            chunks=ChunkColumns(ctx.chunks, dictionaries, bounds, hot) if isinstance(ctx.chunks, ChunkCache) else None,
            metrics=ctx.metrics,
        )
        return reader, planned

    def _planned(
        self, ctx: Context, predicate: Expression | None, filters: Sequence[tuple[int, RuntimeFilter]]
    ) -> ScanUnits:
        rows = unit_rows(self.table, ctx)
        if filters or predicate is not self.predicate:
            return plan_units(self.table, self.columns, predicate, filters, rows, self.answered)
        planned = self._units.get(rows)
        if planned is None:
            planned = self._units[rows] = plan_units(self.table, self.columns, predicate, (), rows, self.answered)
        return planned

    def _dictionaries(self) -> dict[int, SharedDictionary]:
        """The shared dictionaries of the columns that are read as codes, by position in `columns`."""
        found = {}
        for position, column in enumerate(self.columns):
            if self.table.codes_pay(column):
                found[position] = self.table.dictionary(column)
                found[position].begin_scan()
        return found
