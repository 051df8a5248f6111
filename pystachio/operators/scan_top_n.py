"""ScanTopN: the first rows of an order straight from a table, without decoding the rest.

Late materialisation: the sort keys are read first, then what the predicate reads, where rows are still of interest
(`top_n_rows`). The other columns are fetched for the rows of the answer only, by their numbers in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pystachio.operators.batch import Batch, Schema
from pystachio.operators.expressions import SortKey
from pystachio.operators.kernels.ordering import Direction
from pystachio.operators.kernels.selection import slice_batch
from pystachio.operators.operator import Output
from pystachio.operators.placement import to_device
from pystachio.operators.scan import Scan
from pystachio.operators.scan_rows import RowReader, ScanRows
from pystachio.operators.scan_run import ScanRun
from pystachio.operators.scan_units import Unit, require_unchanged
from pystachio.operators.sort import described
from pystachio.operators.table import Table
from pystachio.operators.top_n_rows import BestRows, CandidateReader, LateRows, best_first, numbers_of
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context
from pystachio.runtime.memory import Reservation


@dataclass(frozen=True, slots=True)
class ScanTopN:
    """Breaker: the rows numbered `offset` to `offset + count` of `scan` sorted by `keys`, in order; ties in the order
    that they stand in the files."""

    scan: Scan
    keys: tuple[SortKey, ...]
    count: int
    offset: int

    @property
    def inputs(self) -> tuple[()]:
        return ()

    @property
    def schema(self) -> Schema:
        return self.scan.schema

    @property
    def table(self) -> Table:
        return self.scan.table

    def label(self) -> str:
        offset = f" offset {self.offset}" if self.offset else ""
        return f"TopN {self.count}{offset} by {described(self.keys, self.schema)} of {self.scan.label()}"

    async def run(self, ctx: Context, inputs: tuple[Receiver[Batch], ...], out: Output) -> None:
        if self.count == 0:
            return
        reader, planned = await self.scan.prepare(ctx)
        if not planned.units:
            return
        starts = np.cumsum([0, *(unit.rows for unit in planned.units[:-1])])
        numbers = {id(unit): int(start) for unit, start in zip(planned.units, starts, strict=True)}
        with await ctx.memory.reserve(0) as reservation:
            best = await self._best(ctx, reader, planned.units, numbers, reservation)
            if best is None or best.length <= self.offset:
                return
            best = slice_batch(best, self.offset, best.length)
            missing = tuple(sorted(set(self.scan.output) - set(self._positions)))
            late = LateRows(numbers_of(best), planned.units, starts, missing)
            if missing:
                ctx.metrics.count("rows fetched late", best.length)
                fetching = replace(reader, predicate=None, filters=(), output=missing)
                sink = _Sink(ctx, partial(late.take, numbers=numbers), lambda: best.nbytes + late.nbytes, reservation)
                await ScanRun(ctx, sink, fetching, late.needed, on_host=True).run()
            await reservation.resize(2 * (best.nbytes + late.nbytes))
            require_unchanged(self.table)
            await out.emit(lambda: [to_device(self._joined(best, late), ctx.stream)], last=True)

    @property
    def _positions(self) -> tuple[int, ...]:
        """Of the keys among the scan's columns."""
        return tuple(self.scan.output[key.index] for key in self.keys)

    async def _best(
        self,
        ctx: Context,
        reader: RowReader,
        units: Sequence[Unit],
        numbers: dict[int, int],
        reservation: Reservation,
    ) -> Batch | None:
        """The keys and numbers of the rows up to the last one wanted."""
        directions = [Direction(key.descending, key.nulls_first) for key in self.keys]
        best = BestRows(directions, self.offset + self.count)
        candidates = CandidateReader.of(reader, self._positions, best, numbers)
        ordered = best_first(units, self._positions[0], directions[0])
        sink = _Sink(ctx, candidates.offer, lambda: best.nbytes, reservation)
        await ScanRun(ctx, sink, candidates, ordered, on_host=True).run()
        return await ctx.stream.run(best.taken)

    def _joined(self, best: Batch, late: LateRows) -> Batch:
        """The answer: keys from one side, all other columns from the other."""
        found = dict(zip(self._positions, best.columns, strict=False))
        if late.output:
            found.update(zip(late.output, late.taken().columns, strict=True))
        return Batch(tuple(found[position] for position in self.scan.output), best.length, None)


@dataclass(frozen=True, slots=True)
class _Sink:
    """`operator.Output` of a scan whose rows stay with this operator: `take` keeps `nbytes` of them."""

    ctx: Context
    take: Callable[[Iterable[ScanRows]], None]
    nbytes: Callable[[], int]
    reservation: Reservation

    async def emit(self, produce: Callable[[], Iterable[Batch | ScanRows]], *, last: bool = False) -> None:
        await self.ctx.stream.run(lambda: self.take(part for part in produce() if isinstance(part, ScanRows)))
        await self.reservation.resize(self.nbytes())

    async def send(self, batch: Batch) -> None:
        raise AssertionError("a scan emits its rows")
