"""The scan: rows of a registered table that pass a predicate and runtime filters.

Row groups that statistics rule out are never read. Where all others are in memory, they are put out from there
(`hot_run`). Else they are read ahead of the decoders in units, under transient reservations; workers decode, select and
put out one unit per job. Usually a unit's columns come in one read; once most units turn out to have no surviving row,
the columns that are only put out are read separately, after the selection.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from weakref import ReferenceType, ref

from pystachio.operators.batch import Batch, Schema
from pystachio.operators.chunks.cache import ChunkCache
from pystachio.operators.chunks.columns import ChunkColumns
from pystachio.operators.column import Bounds
from pystachio.operators.evaluate import Bound, bound_again, select
from pystachio.operators.expressions import Expression, ScalarSubquery, walk
from pystachio.operators.hot_columns import HotColumns
from pystachio.operators.operator import Output
from pystachio.operators.parquet.dictionary import SharedDictionary
from pystachio.operators.runtime_filter import RuntimeFilter
from pystachio.operators.scans.early_reads import MOST_UNITS, EarlyReads, surely_needed
from pystachio.operators.scans.fetching import Fetcher
from pystachio.operators.scans.hot_run import put_out, rows_in_memory
from pystachio.operators.scans.pace import Pace
from pystachio.operators.scans.rows import FilterUse, ReadOrder, RowReader
from pystachio.operators.scans.run import ScanRun
from pystachio.operators.scans.units import (
    Answered,
    Matching,
    ScanUnits,
    Unit,
    in_turns,
    matching_groups,
    require_unchanged,
    unit_rows,
    units_of,
)
from pystachio.operators.table import Table
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context


@dataclass(frozen=True, slots=True)
class ScanFilter:
    """The runtime filter of the plan's slot `slot` applies to the scan's `columns[column]`; `share` of that column's
    values are expected to pass."""

    slot: int
    column: int
    share: float = 1.0


_MOST_KNOWN: Final = 8


@dataclass(slots=True, eq=False)
class _Known:
    """What is the same in all runs of a scan: a plan may run many times.

    `matching`: the row groups that its constant predicate may match, of each file; empty at first. `units` by how many
    rows are read together, and by the row groups that are. `kept` and `pace` are those of `RowReader`.
    """

    schema: Schema | None = None
    bounds: tuple[Bounds | None, ...] | None = None
    """Of the columns in the whole table."""
    matching: Matching = ()
    units: dict[Hashable, ScanUnits] = field(default_factory=dict)
    kept: dict[Hashable, object] = field(default_factory=dict)
    pace: Pace = field(default_factory=Pace)
    orders: dict[tuple[int, ...], ReadOrder] = field(default_factory=dict)
    """With its constant predicate, by the positions of the runtime filters that there are."""
    is_hot: bool = False
    """The last run has found everything in memory."""
    bound: Bound | None = None
    """The predicate with the last run's scalars."""
    filtered: _Filtered | None = None
    """The last run's."""


@dataclass(frozen=True, slots=True, eq=False)
class _Filtered:
    """What there is to read `rows` at a time behind these filters, of which nothing is held."""

    rows: int
    filters: tuple[tuple[int, ReferenceType[RuntimeFilter]], ...]
    planned: ScanUnits

    def is_for(self, rows: int, filters: Sequence[tuple[int, RuntimeFilter]]) -> bool:
        """Joins that keep what they have stored give the very same filters in each run."""
        return (
            rows == self.rows
            and len(filters) == len(self.filters)
            and all(
                column == known and value is reference()
                for (column, value), (known, reference) in zip(filters, self.filters, strict=True)
            )
        )


class _Sources(NamedTuple):
    """What `RowReader` says of these."""

    dictionaries: dict[int, SharedDictionary]
    bounds: tuple[Bounds | None, ...]
    hot: HotColumns
    chunks: ChunkColumns | None


@dataclass(frozen=True, slots=True)
class Scan:
    """`columns` are positions in the table's schema; `predicate` is over them, `output` are positions in them.

    `answered`: the row groups that somebody else answers for. `reads_early`: it may read before its filters are there;
    where another scan of the plan reads the same table, that may bring its columns into memory meanwhile.
    """

    table: Table
    columns: tuple[int, ...]
    predicate: Expression | None
    output: tuple[int, ...]
    filters: tuple[ScanFilter, ...] = ()
    answered: Answered | None = None
    reads_early: bool = True
    _known: _Known = field(default_factory=_Known, init=False, compare=False, repr=False)

    @property
    def inputs(self) -> tuple[()]:
        return ()

    @property
    def schema(self) -> Schema:
        if self._known.schema is None:
            self._known.schema = tuple(self.table.schema[self.columns[position]] for position in self.output)
        return self._known.schema

    @property
    def rows(self) -> int:
        """Of the table, but for those that somebody else answers for."""
        if self.answered is None:
            return self.table.rows
        files = zip(self.table.files, self.answered, strict=True)
        return self.table.rows - sum(file.row_group_rows[group] for file, groups in files for group in groups)

    def label(self) -> str:
        names = ", ".join(field.name for field in self.schema)
        return f"Scan {self.table.name} [{names}]"

    async def run(self, ctx: Context, inputs: tuple[Receiver[Batch], ...], out: Output) -> None:
        sources, early_units = self._sources(ctx), self._early_units(ctx)
        if not early_units:
            await self._run(ctx, out, sources, None)
            return
        async with EarlyReads(ctx, Fetcher(ctx, sources.chunks), sources.hot) as early:
            early.begin(early_units, tuple(range(len(self.columns))))
            await self._run(ctx, out, sources, early)

    async def _run(self, ctx: Context, out: Output, sources: _Sources, early: EarlyReads | None) -> None:
        reader, planned = await self._prepare(ctx, sources)
        if early is not None:
            early.keep(planned.units)
        if not self.columns:
            # Without columns the predicate (a scalar subquery against a constant) is the same for every row.
            survives = reader.predicate is None or select(reader.predicate, Batch((), 1, None)) is None
            if survives and planned.units:
                await out.emit(lambda: (Batch((), unit.rows, None) for unit in planned.units), last=True)
            return
        rows = rows_in_memory(ctx, reader, planned)
        self._known.is_hot = rows is not None
        if rows is not None:
            if early is not None:
                early.give_up()
            await put_out(ctx, out, rows)
            return
        run = ScanRun(ctx, out, reader, planned.units, early=early)
        await run.run()
        if run.has_read:
            # One that is written in place meanwhile may have given rows of two versions.
            require_unchanged(self.table, self.answered)

    async def prepare(self, ctx: Context) -> tuple[RowReader, ScanUnits]:
        """What there is to read, and how; waits for the scalars and filters that the scan depends on."""
        return await self._prepare(ctx, self._sources(ctx))

    async def _prepare(self, ctx: Context, sources: _Sources) -> tuple[RowReader, ScanUnits]:
        predicate = None
        if self.predicate is not None:
            bound = self._known.bound = await bound_again(ctx, self.predicate, self._known.bound)
            predicate = bound.expression
        published = [(used.column, await ctx.slots["filter", used.slot].wait()) for used in self.filters]
        filters = [(column, value) for column, value in published if isinstance(value, RuntimeFilter)]
        require_unchanged(self.table, self.answered)
        planned = self._planned(ctx, predicate, filters)
        ctx.metrics.count("row groups pruned", planned.pruned_row_groups)
        ctx.metrics.count("bytes not read", planned.skipped_bytes)
        ctx.metrics.add_batch(rows_in=planned.pruned_rows, batches=0)
        reader = RowReader(
            predicate=predicate,
            filters=tuple(FilterUse(column, value) for column, value in filters),
            output=self.output,
            dictionaries=sources.dictionaries,
            bounds=sources.bounds,
            batch_rows=ctx.settings.batch_rows,
            hot=sources.hot,
            chunks=sources.chunks,
            metrics=ctx.metrics,
            kept=self._known.kept,
            pace=self._known.pace,
            known_order=self._order(filters) if predicate is self.predicate else None,
        )
        return reader, planned

    def _early_units(self, ctx: Context) -> list[Unit]:
        """Those that may be read before the filters are there."""
        awaits = any(not ctx.slots["filter", used.slot].is_set for used in self.filters)
        if not (awaits and self.columns and self.reads_early) or self._known.is_hot:
            return []
        if self.predicate is not None and any(isinstance(node, ScalarSubquery) for node in walk(self.predicate)):
            return []  # what it rules out is not known either
        units = in_turns(self._planned(ctx, self.predicate, ()).units, ctx.transfers.link)
        first = units[: ctx.settings.workers + MOST_UNITS]
        return surely_needed(first, [(used.column, used.share) for used in self.filters])

    def _sources(self, ctx: Context) -> _Sources:
        """Where columns that need not be decoded again may be, for one run."""
        bounds = self._known.bounds
        if bounds is None:
            bounds = self._known.bounds = tuple(self.table.bounds(column) for column in self.columns)
        dictionaries = self._dictionaries() if ctx.settings.dictionary_codes else {}
        hot = HotColumns(ctx.hot, ctx.transfers.memory, dictionaries, bounds)
        chunks = None
        if isinstance(ctx.chunks, ChunkCache):
            chunks = ChunkColumns(ctx.chunks, dictionaries, bounds, hot, ctx.transfers.memory)
        return _Sources(dictionaries, bounds, hot, chunks)

    def _order(self, filters: Sequence[tuple[int, RuntimeFilter]]) -> ReadOrder:
        positions = tuple(position for position, _ in filters)
        order = self._known.orders.get(positions)
        if order is None:
            order = self._known.orders[positions] = ReadOrder.of(self.predicate, positions, self.output)
        return order

    def _planned(
        self, ctx: Context, predicate: Expression | None, filters: Sequence[tuple[int, RuntimeFilter]]
    ) -> ScanUnits:
        known, rows = self._known, unit_rows(self.table, ctx)
        if predicate is self.predicate and known.filtered is not None and known.filtered.is_for(rows, filters):
            return known.filtered.planned
        constant, bound = (predicate, None) if predicate is self.predicate else (None, predicate)
        if not known.matching:
            known.matching = matching_groups(self.table, self.columns, constant, ())
        matching = known.matching
        if filters or bound is not None:
            matching = matching_groups(self.table, self.columns, bound, filters, matching)
        key = (rows, *(each.tobytes() for each in matching))
        planned = known.units.get(key)
        if planned is None:
            if len(known.units) >= _MOST_KNOWN:
                known.units.clear()
            planned = units_of(self.table, self.columns, matching, rows, self.answered)
            known.units[key] = planned
        if bound is None and filters:
            known.filtered = _Filtered(rows, tuple((column, ref(value)) for column, value in filters), planned)
        return planned

    def _dictionaries(self) -> dict[int, SharedDictionary]:
        """The shared dictionaries of the columns that are read as codes, by position in `columns`."""
        found = {}
        for position, column in enumerate(self.columns):
            if self.table.codes_pay(column):
                found[position] = self.table.dictionary(column)
                found[position].begin_scan()
        return found
