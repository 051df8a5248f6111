"""ScanTopN: the first rows of an order straight from a table, without decoding the rest.

Late materialisation: the sort keys are read first, then what the predicate reads, where rows are still of interest
(`top_n_rows`). The other columns are fetched for the rows of the answer only, by their numbers in the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from pystachio.operators.batch import Batch, Schema
from pystachio.operators.expressions import SortKey
from pystachio.operators.kernels.ordering import Direction
from pystachio.operators.kernels.selection import slice_batch
from pystachio.operators.operator import Output, Produced
from pystachio.operators.placement import to_device
from pystachio.operators.scans.hot_rows import HotRows
from pystachio.operators.scans.hot_run import put_out, rows_in_memory
from pystachio.operators.scans.rows import ScanRows
from pystachio.operators.scans.run import ScanRun
from pystachio.operators.scans.scan import Scan
from pystachio.operators.scans.top_n_rows import BestRows, CandidateReader, LateRows, best_first, numbers_of
from pystachio.operators.scans.units import require_unchanged
from pystachio.operators.sort import described
from pystachio.operators.table import Table
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context
from pystachio.runtime.memory import Reservation

_JOB_SECONDS: Final = 0.1
"""A worker job pauses after this long, so that a plan can be cancelled and others get their turn."""


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
        directions = [Direction(key.descending, key.nulls_first) for key in self.keys]
        best = BestRows(directions, self.offset + self.count)
        candidates = CandidateReader.of(reader, self._positions, best, numbers)
        missing = tuple(sorted(set(self.scan.output) - set(self._positions)))
        late = LateRows(planned.units, starts, missing)
        with await ctx.memory.reserve(0) as reservation:
            sink = _Sink(ctx, candidates.offer, lambda: best.nbytes, reservation)
            ordered = best_first(planned.units, self._positions[0], directions[0])
            rows = rows_in_memory(ctx, candidates, planned, ordered)
            if rows is not None:
                await put_out(ctx, sink, rows)
            else:
                await ScanRun(ctx, sink, candidates, ordered, on_host=True).run()
            if missing:
                chosen = await ctx.stream.run(self._after_offset, best)
                if chosen is None:
                    return
                late.numbers = numbers_of(chosen)
                ctx.metrics.count("rows fetched late", len(late.numbers))
                fetching = replace(reader, predicate=None, filters=(), output=missing, known_order=None)
                sink = _Sink(ctx, partial(late.take, numbers=numbers), lambda: best.nbytes + late.nbytes, reservation)
                await ScanRun(ctx, sink, fetching, late.needed(), on_host=True).run()
            await reservation.resize(2 * (best.nbytes + late.nbytes))
            require_unchanged(self.table, self.scan.answered)
            await out.emit(lambda: (to_device(rows, ctx.stream) for rows in self._answer(best, late)), last=True)

    @property
    def _positions(self) -> tuple[int, ...]:
        """Of the keys among the scan's columns."""
        return tuple(self.scan.output[key.index] for key in self.keys)

    def _after_offset(self, best: BestRows) -> Batch | None:
        """The keys and numbers of the answer's rows, if it has any."""
        rows = best.taken()
        return None if rows is None or rows.length <= self.offset else slice_batch(rows, self.offset, rows.length)

    def _answer(self, best: BestRows, late: LateRows) -> Iterator[Batch]:
        """Keys from one side, all other columns from the other."""
        keys = self._after_offset(best)
        if keys is not None:
            found = dict(zip(self._positions, keys.columns, strict=False))
            if late.output:
                found.update(zip(late.output, late.taken().columns, strict=True))
            yield Batch(tuple(found[position] for position in self.scan.output), keys.length, None)


@dataclass(frozen=True, slots=True)
class _Sink:
    """`operator.Output` of a scan whose rows stay with this operator: `take` keeps `nbytes` of them."""

    ctx: Context
    take: Callable[[ScanRows], None]
    nbytes: Callable[[], int]
    reservation: Reservation

    async def emit(
        self,
        produce: Callable[[], Iterable[Produced]],
        *,
        last: bool | Callable[[], bool] = False,
        small: bool = False,
    ) -> None:
        parts = _produced(produce)
        ended = False
        while not ended:
            ended = await self.ctx.stream.run(self._take_some, parts)
            await self.reservation.resize(self.nbytes())

    async def send(self, batch: Batch) -> None:
        raise AssertionError("a scan emits its rows")

    async def until_unwanted(self) -> None:
        raise AssertionError("a scan waits for nobody")

    def _take_some(self, parts: Iterator[ScanRows]) -> bool:
        """Until enough time has passed; True when there are no more."""
        end = time.perf_counter() + _JOB_SECONDS
        for part in parts:
            self.take(part)
            self.ctx.metrics.add_batch(rows_in=part.length, batches=0)
            if time.perf_counter() >= end:
                return False
        return True


def _produced(produce: Callable[[], Iterable[Produced]]) -> Iterator[ScanRows]:
    """Made on the worker, not before."""
    for part in produce():
        if isinstance(part, HotRows):
            while taken := part.take():
                yield from taken
        else:
            assert isinstance(part, ScanRows)
            yield part
